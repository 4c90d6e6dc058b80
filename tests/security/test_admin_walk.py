"""Every address of the app's admin, taken from the resolver: reading changes nothing, writing needs a POST, a token and
the permission, and hostile texts are escaped on every page.
"""

import html
import json
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import NoReverseMatch, reverse

from django_delayq import sync
from django_delayq.index.web import forget_broker
from django_delayq.models import Alert, Condition, Control, Definition, Run, Schedule, ScheduleState, Tombstone
from tests.app import tasks
from tests.faults.harness.servers import pointing_at
from tests.integration.admin_pages import LIST, RUNS, change_url, client_for, fields, make, make_job
from tests.integration.mirroring import schedule
from tests.jobs.support import row as row_of

pytestmark = pytest.mark.django_db(transaction=True)

PAYLOADS = {
    "tags": "\"><img src=x onerror=alert(1)>'<script>alert(1)</script>",
    "template and direction": "{{ 7|add:7 }}{% now 'Y' %}{0.__class__}%(name)s%s"
    "\u202etxt.exe\u2066 \u0007\x1b[31m\x7f\u2028",
    "long": "x" * 190 + "<b>",
}
#: The word of the admin's names that says what the page is about.
MODELS = ("schedule", "run", "control", "alert")


def names():
    """Return the names of every address of the app's admin."""
    found = []
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label == "django_delayq":
            found += [pattern.name for pattern in model_admin.get_urls() if pattern.name]
    return sorted(set(found))


def model_of(name):
    """Return the model that a page is about."""
    return name.removeprefix("django_delayq_").partition("_")[0]


def addresses(row, run, *jobs):
    """Return (name, address) of every page, for this schedule, run and jobs, and of the app's own index."""
    found = [("app_list", reverse("admin:app_list", args=["django_delayq"]))]
    for name in names():
        try:
            found.append((name, reverse(f"admin:{name}")))
            continue
        except NoReverseMatch:
            controls = Control.objects.values_list("pk", flat=True)
            pks = {"schedule": [row.pk], "run": [run.pk, *(job.pk for job in jobs)], "control": controls}
            pks["alert"] = Alert.objects.values_list("pk", flat=True)
            pks = pks[model_of(name)]
        found += [(name, reverse(f"admin:{name}", args=[pk])) for pk in pks]
    return found


NAMES = names()


def test_the_walk_knows_every_address():
    """Also those without a name: each pattern of the app's admins leads to a page that has one, or redirects to it."""
    assert {
        "django_delayq_schedule_changelist", "django_delayq_schedule_add", "django_delayq_schedule_change",
        "django_delayq_schedule_delete", "django_delayq_schedule_history", "django_delayq_schedule_run_now",
        "django_delayq_schedule_pause", "django_delayq_schedule_resume", "django_delayq_schedule_backfill",
        "django_delayq_schedule_preview", "django_delayq_run_changelist",
        "django_delayq_run_change", "django_delayq_run_run_now", "django_delayq_run_stop", "django_delayq_overview_now",
        "django_delayq_control_add", "django_delayq_control_change", "django_delayq_control_delete",
        "django_delayq_run_cancel", "django_delayq_run_retry", "django_delayq_run_delete",
        "django_delayq_run_failures", "django_delayq_run_dismiss", "django_delayq_schedule_restore",
        "django_delayq_run_take_back", "django_delayq_auditentry_changelist",
    } <= set(NAMES)  # fmt: skip
    unnamed = [
        str(pattern.pattern)
        for model, model_admin in admin.site._registry.items()
        if model._meta.app_label == "django_delayq"
        for pattern in model_admin.get_urls()
        if not pattern.name
    ]
    assert set(unnamed) == {"<path:object_id>/"}, "Django's redirect to the form"


@pytest.fixture
def row(broker):
    made = schedule("s", created_at=datetime.now(UTC) - timedelta(days=2))
    Schedule._base_manager.update(declared_key="s")
    made.pause()
    made.resume()
    Control.objects.create(name="mail", most=3)
    Alert.objects.create(
        kind="failing", subject=str(made.pk), name=made.name, text=made.task, reported_at=datetime.now(UTC)
    )
    sync.check_layout(broker)
    sync.sweep_fully(broker)
    return made


@pytest.fixture
def run(row):
    made = Run.build_for(row, datetime(2020, 1, 1, tzinfo=UTC), status="failed", error="Traceback", reason="X")
    made.save()
    return made


def waiting(*args):
    return row_of(tasks.add.using(run_after=timedelta(hours=1)).enqueue(*args or (1,)))


@pytest.fixture
def jobs(broker, row):
    """A job that waits, and one that has failed."""
    return waiting(), make_job()


ROWS = (
    Schedule, ScheduleState, Run, Tombstone, LogEntry, Control,
    Definition, Alert,
)  # fmt: skip


def everything(broker):
    """Return all rows of the app and all keys of the prefix, as they are."""
    rows = {model.__name__: list(model._base_manager.order_by("pk").values()) for model in ROWS}
    keys = {name: broker.client.dump(name) for name in broker.find_keys()}
    assert keys
    return rows, keys


SPAN = {"start_0": "2024-12-01", "start_1": "00:00:00", "end_0": "2099-01-01", "end_1": "00:00:00"}
DISGUISED = f"?action=run_now&_selected_action={{pk}}&apply=1&reason=x&{urlencode(SPAN)}"


@pytest.mark.everything
@pytest.mark.parametrize("query", ["", DISGUISED])
def test_a_get_changes_nothing(boss, broker, row, run, jobs, query):
    before = everything(broker)
    for name, address in addresses(row, run, *jobs):
        page = boss.get(address + query.format(pk=row.pk))
        assert page.status_code in (200, 302, 403, 405), (name, page.status_code)
        if name.endswith("_schedule_preview"):
            assert page.status_code == 405
        assert everything(broker) == before, name


@pytest.mark.everything
@pytest.mark.parametrize("method", ["options", "put", "patch", "delete"])
def test_no_other_method_than_post_changes_anything(boss, broker, row, run, jobs, method):
    before = everything(broker)
    for _name, address in addresses(row, run, *jobs):
        getattr(boss, method)(address)
    assert everything(broker) == before


def post_values(name, row, *jobs):
    """Return what would do the most on this page."""
    if name == "django_delayq_run_changelist":
        return {"action": "cancel", "_selected_action": [job.pk for job in jobs], "apply": "1"}
    if name.endswith("_changelist"):
        return {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}
    if name.endswith(("_add", "_change", "_preview")):
        return fields(name=f"another for {name}")
    if name.endswith("_backfill"):
        yesterday = datetime.now(UTC) - timedelta(days=1)
        return {"start_0": f"{yesterday:%Y-%m-%d}", "start_1": "00:00:00", "end_0": "2099-01-01", "end_1": "00:00:00"}
    if name.endswith("_restore"):
        return {"definition": str(row.definitions.order_by("pk")[0].pk), "seen": str(row.generation)}
    return {"post": "yes", "apply": "1", "reason": "because", "action": "run_now"}


STRANGERS = {
    "staff without a permission": [],
    "who may see": ["view_schedule", "view_run", "view_control", "view_alert"],
    "who may write something else": ["add_user", "change_user", "delete_user", "view_user"],
    "who may see runs and their arguments": ["view_run", "view_job_arguments"],
}


@pytest.mark.everything
@pytest.mark.parametrize("permissions", STRANGERS.values(), ids=STRANGERS)
def test_without_the_permission_nothing_is_written(broker, row, run, jobs, permissions):
    client = client_for(*permissions)
    before = everything(broker)
    for name, address in addresses(row, run, *jobs):
        seen, posted = client.get(address), client.post(address, post_values(name, row, *jobs))
        about = model_of(name).replace("overview", "schedule").replace("auditentry", "schedule")
        readable = any(f"view_{model}" in permissions and about == model for model in MODELS)
        if not readable and name != "app_list":
            assert seen.status_code in (403, 404, 405), (name, seen.status_code)
            assert posted.status_code in (403, 404), (name, posted.status_code)
            assert row.task not in seen.content.decode()
            assert not any(job.token in seen.content.decode() for job in jobs)
        assert everything(broker) == before, name


def test_nobody_who_is_not_logged_in_sees_or_writes_anything(broker, row, run, jobs):
    before = everything(broker)
    user = client_for()
    User.objects.update(is_staff=False, is_superuser=True)  # who may do everything, but not here
    for client in (Client(), user):
        for name, address in addresses(row, run, *jobs):
            for reply in (client.get(address), client.post(address, post_values(name, row, *jobs))):
                assert reply.status_code == 302, name
                assert reply["Location"].startswith("/admin/login/"), name
    assert everything(broker) == before


def test_every_write_needs_a_token(boss, broker, row, run, jobs):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    before = everything(broker)
    for name, address in addresses(row, run, *jobs):
        reply = strict.post(address, post_values(name, row, *jobs))
        assert reply.status_code == 403, name
        assert b"CSRF" in reply.content, name
    assert everything(broker) == before


NEEDED = {"add": "add_schedule", "delete": "delete_schedule"}


def test_each_write_works_with_exactly_its_permission(broker, row, run, jobs):
    """So that the refusals above are for want of the permission, and not because nothing works at all."""
    Schedule._base_manager.update(declared_key=None)  # nobody restores what the code owns
    for name, address in addresses(row, run, *jobs):
        kind = name.rpartition("_schedule_")[2] if "_schedule_" in name else ""
        if kind not in ("add", "change", "run_now", "pause", "resume", "backfill", "delete", "restore"):
            continue
        row.refresh_from_db()
        needed = NEEDED.get(kind, "change_schedule")
        others = {"add_schedule", "change_schedule", "delete_schedule"} - {needed}
        before, values = everything(broker), post_values(name, row, *jobs)
        assert client_for("view_schedule", *others).post(address, values).status_code == 403, name
        assert everything(broker)[0]["Schedule"] == before[0]["Schedule"]
        if kind == "delete":
            continue  # the last one; see below
        assert client_for("view_schedule", needed).post(address, values).status_code == 302, name
        assert everything(broker) != before, name
    assert client_for("view_schedule", "delete_schedule").post(
        reverse("admin:django_delayq_schedule_delete", args=[row.pk]), {"post": "yes"}
    ).status_code == 302  # fmt: skip
    assert not Schedule.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("order", ["run_now", "cancel", "stop", "retry", "delete"])
def test_each_order_to_a_job_works_with_exactly_its_permission(broker, row, order):
    job = waiting() if order in ("run_now", "cancel") else make_job(status="running" if order == "stop" else "failed")
    needed = {"delete": "delete_run", "stop": "stop_run"}.get(order, "change_run")
    address = reverse(f"admin:django_delayq_run_{order}", args=[job.pk])
    action = {"action": order, "_selected_action": [job.pk], "apply": "1"}
    before = everything(broker)
    others = {f"{kind}_{model}" for kind in ("add", "change", "delete") for model in MODELS}
    stranger = client_for("view_run", *({*others, "stop_run"} - {needed}))
    assert stranger.get(address).status_code == 403
    assert stranger.post(address).status_code == 403
    assert stranger.post(RUNS, action, follow=True).status_code == 200
    assert everything(broker) == before
    allowed = client_for("view_run", needed)
    assert allowed.get(address).status_code == 200
    assert everything(broker) == before, "the page that asks does nothing"
    assert allowed.post(address).status_code == 302
    assert everything(broker) != before


@pytest.mark.everything
@pytest.mark.parametrize("text", PAYLOADS.values(), ids=PAYLOADS)
def test_hostile_texts_are_escaped_on_every_page_and_in_every_message(boss, broker, text):
    name, short = text[:195], text[:190]
    row = schedule(
        name,
        description=text,
        task="tests.app.tasks.fail",
        args=[text],
        cron="0 9 1 1 *",
        created_at=datetime.now(UTC) - timedelta(days=800),
    )
    sync.check_layout(broker)
    sync.sweep_fully(broker)
    Schedule._base_manager.update(declared_key=name)
    state = {"condition": Condition.BROKEN, "condition_reason": text, "last_status": short[:16]}
    ScheduleState.objects.update_or_create(schedule=row, defaults=state)
    row.changed_by = text
    row.save()
    row.pause(short, by=text)
    row.resume()
    Control.objects.create(name=short, paused=True, reason=text, changed_by=short)
    stored = text.replace("\0", "")
    for number, status in enumerate(("failed", "skipped", "lost", "running")):
        made = Run.build_for(
            row, datetime(2020, 1, 1 + number, tzinfo=UTC), status=status, error=stored, reason=short,
            worker=short[:100], result={text: [text]},
        )  # fmt: skip
        made.save()
    broker.write_heartbeat(broker.read_now_ms(), text)
    broker.client.zadd(f"{broker.config.prefix}:workers", {text.encode(): broker.read_now_ms()})
    job = waiting()
    call = {"args": [text], "kwargs": {text: text}}
    Run.objects.filter(pk=job.pk).update(call=call, queue=short[:64], backend=short)
    said = {"on_failure": text, "max_attempts": 3, "unique_key": text}
    make_job(text, task=short, error=f"{text}\n{text}", kwargs={text: text}, options=said, result={text: [text]})
    make_job(text, task=short, status="running", worker=short[:100])
    viewer = client_for("view_schedule", "view_run", "view_job_arguments")
    typed = fields(**dict.fromkeys(fields(), text))
    runs = list(Run.objects.all())
    pages = [client.get(address) for _, address in addresses(row, runs[0], job) for client in (boss, viewer)]
    pages += [viewer.get(reverse("admin:django_delayq_run_change", args=[run.pk])) for run in runs[1:]]
    pages += [
        boss.get(RUNS, {"status__exact": text}),
        boss.get(RUNS, {"error": text}),
        boss.post(RUNS, {"action": "delete", "_selected_action": [run.pk for run in Run.objects.all()]}),
        boss.post(RUNS, {"action": text, "_selected_action": [job.pk], "apply": text}),
        boss.post(reverse("admin:django_delayq_run_cancel", args=[job.pk]), follow=True),
        boss.get(LIST, {"q": text}),
        boss.get(LIST, {"state": text}),
        boss.get(LIST, {"queue": text}),
        boss.get(RUNS, {"q": text}),
        boss.get(reverse("admin:django_delayq_schedule_backfill", args=[row.pk]), {"start_0": text, "end_0": text}),
        boss.post(reverse("admin:django_delayq_schedule_pause", args=[row.pk]), {"reason": text + "y" * 300}),
        boss.post(LIST, {"action": "pause", "_selected_action": [row.pk], "reason": text}),
        boss.post(
            reverse("admin:django_delayq_schedule_change", args=[row.pk]), fields(**dict.fromkeys(fields(), text))
        ),
        boss.post(reverse("admin:django_delayq_schedule_add"), typed),
        boss.post(
            reverse("admin:django_delayq_schedule_preview", args=[row.pk]), fields(**dict.fromkeys(fields(), text))
        ),
        boss.post(reverse("admin:django_delayq_schedule_preview", args=[0]), fields(name=text, task=text, cron=text)),
    ]
    shown = 0
    for kind in ("run_now", "pause", "resume", "backfill"):
        address = reverse(f"admin:django_delayq_schedule_{kind}", args=[row.pk])
        page = boss.post(address, {"reason": short, **SPAN}, follow=True)
        told = [str(message) for message in get_messages(page.wsgi_request)]
        shown += any(html.escape(name) in message or name in message for message in told)
        pages.append(page)
    pages.append(boss.get(reverse("admin:django_delayq_schedule_history", args=[row.pk])))
    for page in pages:
        assert page.status_code in (200, 302, 403, 405), page.request["PATH_INFO"]
        _check(page.content.decode(), page.request["PATH_INFO"])
    assert shown, "some message named it"
    assert any(html.escape(name) in page.content.decode() for page in pages), "it was shown at all"


@pytest.mark.parametrize("rows", [0, 1])
def test_who_may_only_see_is_not_told_the_address_of_redis(rows):
    pages = [LIST, *(change_url(make()) for _ in range(rows))]
    with pointing_at("redis://127.0.0.1:1/0"):
        for who, wanted in ((client_for("view_schedule", "view_run"), 0), (client_for(superuser=True), len(pages))):
            told = 0
            for address in pages:
                forget_broker()  # else only the first page asks
                page = who.get(address)
                assert "Redis" in page.content.decode()
                assert re.search(r"does not answer|cannot be used", page.content.decode())
                told += "127.0.0.1" in page.content.decode()
            assert told == wanted


def _check(text, where):
    if where.endswith("/preview/") and text.startswith("{"):
        text = "".join(str(value) for value in json.loads(text).values())
    for tag in ("<script>alert", "<img src=x", "<b>"):
        assert tag not in text, where
    assert not re.search(r"<[^>]*\sonerror\s*=", re.sub(r'"[^"]*"', '""', text)), where
    assert "{0.__class__}" not in text or "{{ 7|add:7 }}" in text, f"{where} was read as a template"
