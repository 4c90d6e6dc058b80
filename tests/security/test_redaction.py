"""Secrets are hidden where they are shown, and stay where they are needed."""

import inspect
import io
import json
import logging
import signal
import sys
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from urllib.parse import quote, quote_plus

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.test import override_settings

from django_delayq import actions, conf
from django_delayq import text as texts_of_people
from django_delayq.calls import registry
from django_delayq.calls.compat import task as make_task
from django_delayq.exceptions import BrokerUnavailable
from django_delayq.index import Broker
from django_delayq.models import Run, Schedule
from django_delayq.text import (
    HIDDEN,
    SECRET_PAIRS,
    SECRET_WORDS,
    find_secret_texts,
    is_secret_name,
    redact,
    redact_arguments,
    redact_signature,
    redact_text,
)
from django_delayq.worker.logs import JsonFormatter, LineFormatter
from tests.faults.harness.servers import pointing_at
from tests.integration.admin_pages import change_url, client_for
from tests.support import run_burst

SECRET = "hunter2-Ünïcode'\"x"
LISTED = (
    "password", "passwd", "secret", "token", "api_key", "apikey", "access_key", "private_key", "authorization",
    "credential", "credentials", "session", "cookie",
)  # fmt: skip


@pytest.mark.parametrize("shape", ["{0}", "{1}", "db_{0}", "X-{0}-2", "my{2}"])
def test_a_name_is_secret_in_every_spelling(shape):
    for name in (*LISTED, *SECRET_WORDS, *("_".join(pair) for pair in SECRET_PAIRS)):
        assert is_secret_name(shape.format(name, name.upper(), name[0].upper() + name[1:])), name


@pytest.mark.parametrize("shape", ["{}=hunter2", "now {}: hunter2", '{{"{}": "hunter2"}}'])
def test_every_secret_name_is_seen_in_a_text_in_any_case(shape):
    names = [*SECRET_WORDS, *("_".join(pair) for pair in SECRET_PAIRS)]
    for name in names:
        for text in (shape.format(name), shape.format(name.upper())):
            assert "hunter2" not in redact_text(text), text


@pytest.mark.parametrize("name", ["tokenizer", "author", "keyboard", "key", "days", "", "cookiecutter", "sessional"])
def test_a_name_that_only_contains_the_letters_is_not(name):
    assert not is_secret_name(name)


def test_values_are_hidden_at_any_depth_and_nothing_else_is():
    value = {"days": 2, "login": [{"Password": {"a": 1}, "user": "u"}], "url": "redis://u:p@h/0", "nothing": None}
    shown = {"days": 2, "login": [{"Password": HIDDEN, "user": "u"}], "url": f"redis://{HIDDEN}@h/0", "nothing": None}
    assert redact(value) == shown
    assert value["login"][0]["Password"] == {"a": 1}


def call(user, token="x", *cookies, days=1):  # noqa: S107 - what this is about
    """Take some arguments."""


PARAMETERS = list(inspect.signature(call).parameters.values())


def test_positional_arguments_have_the_names_of_their_parameters():
    assert redact_arguments(["u", "t", "c1", "c2"], {"days": 3}, PARAMETERS) == (
        ["u", HIDDEN, HIDDEN, HIDDEN],
        {"days": 3},
    )
    assert redact_arguments(["u"], {}, None) == ([HIDDEN], {}), "nobody knows what it is"
    assert redact_arguments("garbage", None, PARAMETERS) == ([], {})
    assert find_secret_texts(["user", "the token", "abc"], {"a": [{"pwd": ["deep one", 12345]}]}, PARAMETERS) == [
        "the token",
        "deep one",
    ]


def test_a_signature_is_shown_without_secret_defaults():
    assert str(redact_signature(inspect.signature(call))) == f"(user, token={HIDDEN}, *cookies, days=1)"


TEXTS = [
    ("cannot reach redis://user:pw@host:6379/0", f"cannot reach redis://{HIDDEN}@host:6379/0"),
    ("postgres://u:a@b@c/d", f"postgres://{HIDDEN}@c/d"),
    ("password=pw host=x", f"password={HIDDEN} host=x"),
    ('{"api_key": "pw", "a": 1}', f'{{"api_key": "{HIDDEN}", "a": 1}}'),
    ("{'Authorization': 'Bearer pw'}", f"{{'Authorization': '{HIDDEN}'}}"),
    ("Authorization: Bearer pw, x", f"Authorization: {HIDDEN}"),
    ("Cookie: a=pw; b=pw\nnext", f"Cookie: {HIDDEN}\nnext"),
    ('\\"token\\": \\"pw\\", x', f'\\"token\\": \\"{HIDDEN}\\", x'),
    ("secret = 'p\\'w' + 1", f"secret = '{HIDDEN}' + 1"),
    ("Error: password=pw and a=b=token=pw", f"Error: password={HIDDEN} and a=b=token={HIDDEN}"),
    ("InvalidToken: it has expired", "InvalidToken: it has expired"),
    ("Config(_password='pw', a=1)", f"Config(_password='{HIDDEN}', a=1)"),
    ("//host/:_authToken=pw", f"//host/:_authToken={HIDDEN}"),
    ("run --password=pw --2fa-token: pw", f"run --password={HIDDEN} --2fa-token: {HIDDEN}"),
    ("apiKey: pw", f"apiKey: {HIDDEN}"),
    ("password=b'pw' or u\"pw\"", f'password={HIDDEN} or u"pw"'),
    ("password == 'pw', 'token' => 'pw'", f"password == '{HIDDEN}', 'token' => '{HIDDEN}'"),
    ("{'tokens': ['pw', 'pw'], 'a': [1]}", f"{{'tokens': {HIDDEN}, 'a': [1]}}"),
    ("User(password=SecretStr('pw'), a=1)", f"User(password={HIDDEN}, a=1)"),
    ("KeyError: 'token'", "KeyError: 'token'"),
    ("the author: me, keyboard=1", "the author: me, keyboard=1"),
    ("see http://host/path?q=1 or mail a@b.c", "see http://host/path?q=1 or mail a@b.c"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "shown"), TEXTS)
def test_what_a_text_gives_away_is_hidden(text, shown):
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


SPELLINGS = [
    str, repr, ascii, json.dumps, lambda text: json.dumps(text, ensure_ascii=False), lambda text: repr(text.encode()),
    quote, lambda text: quote(text, safe=""), quote_plus, lambda text: repr(repr(text)),
    lambda text: repr([repr(text)]), lambda text: repr(json.dumps(text)),
    lambda text: json.dumps(json.dumps({"key": text})),
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", [SECRET, "hunter2/a+b c==", "it's \"hunter2", "hunter2\n\\", "\0hunter2"])
def test_known_secrets_are_found_in_every_spelling(spelling, secret):
    assert "hunter2" not in redact_text(f"no luck with {spelling(secret)}!", [secret])


def test_of_two_secrets_the_longer_one_is_hidden_first():
    assert redact_text("of the long one, of the long", ["the long", "the long one"]) == f"of {HIDDEN}, of {HIDDEN}"


def test_the_lines_of_a_secret_are_found_where_they_are_indented():
    key = "-----BEGIN KEY-----\nhunter2hunter2\n-----END KEY-----\n"
    group = ExceptionGroup("several", [RuntimeError(f"no luck with {key}")])
    text = "".join(traceback.format_exception(group))
    assert "  | hunter2" in "".join(traceback.format_exception(group)), "what this is about"
    assert "hunter2" not in redact_text(text, [key])
    assert "several" in redact_text(text, [key])


def test_secrets_that_overlap_are_hidden_whole():
    assert redact_text("say abcdefghijk now", ["abcdef", "defghijk"]) == f"say {HIDDEN} now"


class Counted(str):
    """Counts the characters that are taken out or looked through."""

    work = 0

    def __getitem__(self, key):
        taken = Counted(str.__getitem__(self, key))
        Counted.work += len(taken)
        return taken

    def replace(self, *args):
        Counted.work += len(self)
        return Counted(str.replace(self, *args))


def test_thousands_of_secrets_are_found_in_one_pass():
    secrets = [f"{number}-it's \u20ac" for number in range(5_000)]
    text = Counted(" ".join(secrets[::10] + ["x" * 8] * 1_000))
    assert redact_text(text, secrets) == " ".join([HIDDEN] * 500 + ["x" * 8] * 1_000)
    assert Counted.work < 100 * len(text)


def test_what_is_beyond_the_bound_of_a_search_is_hidden(monkeypatch):
    monkeypatch.setattr(texts_of_people, "MOST_COMPARED", 1_000)
    secrets = ["a" * count + "b" for count in range(4, 200)]
    assert redact_text("well " + "a" * 300 + "b", [*secrets, "a" * 9]) == f"well {HIDDEN}"


@pytest.fixture
def minute_of_processor_time():
    """End what would take minutes, however fast this machine is."""

    def end(number, frame):
        raise AssertionError("it took a minute of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, 60)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.usefixtures("minute_of_processor_time")
def test_the_longest_text_costs_no_long_time():
    """A pattern that walks back would take minutes for each of these, not hundredths of a second."""
    for piece in (
        "a", '"a:', 'password=\\"', "://", ' \\\\"a', "-a=", "x" * 63 + "=", "cookie:", "'", "_-", "1", "token=[",
        "token=(a", "token=[a,", "token=a.", "token==>", "token=b'",
    ):  # fmt: skip
        redact_text(piece * (300_000 // len(piece)))


# -- what the app shows


@make_task
def leak(user: str, password: str = "default-pw") -> None:  # noqa: S107 - what this is about
    """Say too much, in several ways."""
    raise RuntimeError(f"{user}: no luck with {password!r} at redis://me:{password}@host; token={password}")


@pytest.fixture
def leaking(monkeypatch):
    """The task `leak`, as if an installed app had it."""
    monkeypatch.setattr(registry, "_tasks", {**registry.get_tasks(), leak.module_path: leak})
    return leak.module_path


def order(path, args, kwargs):
    row = Schedule.objects.create(name="s", task=path, args=args, kwargs=kwargs, kind="cron", cron="0 9 1 1 *")
    actions.run_now(row)
    run_burst()
    return row, Run.objects.get()


@pytest.mark.parametrize("how", ["args", "kwargs"])
@pytest.mark.django_db(transaction=True)
def test_a_failing_task_gives_its_secret_argument_away_nowhere(boss, leaking, how, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("django_delayq"), "propagate", True)  # a command may have changed that
    args, kwargs = (["eve", SECRET], {}) if how == "args" else (["eve"], {"password": SECRET})
    row, run = order(leaking, args, kwargs)
    assert run.status == "failed"
    assert "hunter2" not in run.error + run.reason
    assert "no luck with" in run.error
    assert "eve" in run.reason
    assert caplog.records
    assert "hunter2" not in caplog.text
    said = io.StringIO()
    call_command("delayq_status", "s", stdout=said)
    call_command("delayq_status", "s", "--at", run.due_at.isoformat(), stdout=said)
    assert "no luck with" in said.getvalue()
    viewer = client_for("view_schedule", "view_run")
    pages = [viewer.get(url) for url in (change_url(row), f"/admin/django_delayq/run/{run.pk}/change/")]
    pages += [viewer.get("/admin/django_delayq/run/"), viewer.get("/admin/django_delayq/schedule/")]
    pages += [boss.get(f"/admin/django_delayq/schedule/{row.pk}/{page}/") for page in ("history", "delete", "pause")]
    for page in pages:
        assert page.status_code == 200
        assert "hunter2" not in page.content.decode() + said.getvalue()
    assert HIDDEN in pages[0].content.decode()
    assert "eve" in pages[0].content.decode()
    row.refresh_from_db()
    assert [row.args, row.kwargs] == [args, kwargs], "the database keeps them"


@pytest.mark.django_db(transaction=True)
def test_who_may_change_the_schedule_sees_the_value_and_saves_it_unharmed(boss, leaking):
    row = Schedule.objects.create(
        name="s", task=leaking, args=["eve"], kwargs={"password": "hunter2"}, kind="cron", cron="0 9 * * *"
    )
    page = boss.get(change_url(row))
    form = page.context["adminform"].form
    assert "hunter2" in page.content.decode()
    assert "default-pw" not in page.content.decode(), "a default in the code is nothing to edit"
    values = {}
    for bound in form:
        name, value = bound.html_name, bound.value()
        if hasattr(bound.field.widget, "widgets"):
            parts = bound.field.widget.decompress(value)
            values.update({f"{name}_{n}": part or "" for n, part in enumerate(parts)})
        elif name == "call":
            values.update(bound.field.widget.shown.data)
        elif value not in (None, False):
            values[name] = value
    response = boss.post(change_url(row), {**values, "description": "edited"})
    assert response.status_code == 302, response.context["adminform"].form.errors
    row.refresh_from_db()
    assert (row.description, row.kwargs) == ("edited", {"password": "hunter2"})


@pytest.mark.django_db(transaction=True)
def test_a_row_stored_unredacted_and_a_result_are_shown_redacted():
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
    run = Run.build_for(
        row,
        datetime(2020, 1, 1, tzinfo=UTC),
        status="failed",
        error="Traceback\nX: password=hunter2",
        reason="X: password=hunter2",
        result={"token": "hunter2", "count": 3},
    )
    run.save()
    viewer = client_for("view_schedule", "view_run")
    said = io.StringIO()
    call_command("delayq_status", "s", stdout=said)
    texts = [viewer.get(url).content.decode() for url in (
        f"/admin/django_delayq/run/{run.pk}/change/", "/admin/django_delayq/run/", change_url(row),
    )]  # fmt: skip
    for text in [*texts, said.getvalue()]:
        assert "hunter2" not in text
        assert HIDDEN in text
    assert "count" in texts[0]


GUESSES = [
    (Schedule, "kwargs__password__startswith"), (Schedule, "kwargs__icontains"), (Schedule, "args__0"),
    (Schedule, "runs__result__token"), (Run, "result__token__startswith"), (Run, "result__icontains"),
    (Run, "schedule__kwargs__password__startswith"),
]  # fmt: skip


@pytest.mark.parametrize("who", ["boss", "viewer"])
@pytest.mark.parametrize(("model", "lookup"), GUESSES)
@pytest.mark.django_db
def test_a_list_does_not_tell_whether_a_hidden_value_was_guessed(boss, model, lookup, who):
    """Django takes any column of the model in a list's address: what is hidden could be guessed letter by letter."""
    secret = {"kwargs": {"password": "hunter2"}, "args": ["hunter2"]}
    row = Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
    Schedule._base_manager.filter(pk=row.pk).update(**secret)
    Run.build_for(row, datetime(2020, 1, 1, tzinfo=UTC), status="succeeded", result={"token": "hunter2"}).save()
    client = boss if who == "boss" else client_for("view_schedule", "view_run")
    address = f"/admin/django_delayq/{model.__name__.lower()}/"
    assert client.get(address, {lookup: "h"}).status_code == 400
    assert client.get(address, {"task__startswith": "tests"}).context["cl"].result_count == 1


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_log_lines_hide_credentials_in_messages_events_and_tracebacks(formatter):
    try:
        raise RuntimeError("redis://me:hunter2@host")
    except RuntimeError:
        failure = sys.exc_info()
    record = logging.LogRecord("x", logging.ERROR, "", 0, "to %s", ("redis://me:hunter2@host",), failure)
    line = formatter.format(record)
    assert "hunter2" not in line
    assert line.count(HIDDEN) == 3, "in the message, in the line of code and in the error"


# -- addresses of Redis


def all_that_is_said(location):
    """Return what every command, the checks, a save and the log say where the alias has this LOCATION."""
    Schedule.objects.create(name="s", task="tests.app.tasks.noop", kind="cron", cron="0 9 * * *")
    said = io.StringIO()
    log = logging.StreamHandler(said)
    logging.getLogger("django_delayq").addHandler(log)
    with ExitStack() as stack:
        stack.callback(logging.getLogger("django_delayq").removeHandler, log)
        stack.enter_context(pointing_at(location))
        for command in (
            ["check"], ["delayq_status"], ["delayq_status", "--json"], ["delayq_sync"], ["delayq_status", "s"],
            ["delayq_worker", "--burst"],
        ):  # fmt: skip
            try:
                call_command(*command, stdout=said, stderr=said)
            except (Exception, SystemExit) as error:
                link = error
                while link is not None:
                    said.write(f"{command}: {link}\n")
                    link = link.__cause__
        try:
            Schedule.objects.get().save()
        except ImproperlyConfigured as error:
            said.write(str(error))
    return said.getvalue()


@pytest.mark.parametrize(
    "location",
    [
        "redis://user:hunter2@127.0.0.1:1/0",
        "unix://user:hunter2@/nowhere/at/all",
        "redis://:hunt/er2hunter2@127.0.0.1:1/0",
        "redis://:x?hunter2@127.0.0.1:1/0",
        "wrong://user:hunter2@127.0.0.1",
    ],
)
@pytest.mark.django_db(transaction=True)
def test_no_command_log_or_check_tells_the_password_of_redis(location):
    said = all_that_is_said(location)
    assert said
    assert "hunter2" not in said


@pytest.mark.django_db(transaction=True)
def test_a_refused_login_does_not_tell_the_password(settings):
    said = all_that_is_said(settings.CACHES["default"]["LOCATION"].replace("unix://", "unix://nobody:hunter2@"))
    assert "refused the login" in said
    assert "hunter2" not in said


@pytest.mark.django_db
def test_sentinels_that_are_away_are_told_without_their_password(settings):
    """Of some releases redis-py's own message holds all arguments of each Sentinel's client."""
    options = {
        "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
        "SENTINELS": [["127.0.0.1", 1], ["127.0.0.1", 2]],
        "SENTINEL_KWARGS": {"password": "not hunter2"},
    }
    default = {**settings.CACHES["default"], "LOCATION": "redis://:hunter2@orders/0", "OPTIONS": options}
    away = pytest.raises(BrokerUnavailable, match=r"No master found for 'orders'.*ConnectionError")
    with override_settings(CACHES={**settings.CACHES, "default": default}), away as caught:
        Broker(timeout_seconds=1).read_layout()
    said = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in said
    assert "ConnectionPool" not in str(caught.value)
    assert "decode_responses" not in said, "nobody reads that"


def test_an_address_in_the_wrong_setting_is_refused_without_its_password(settings, db):
    wrong = {**settings.DELAYQ, "REDIS": "redis://user:hunter2@host"}
    with override_settings(DELAYQ=wrong), pytest.raises(ImproperlyConfigured, match="alias") as failure:
        conf.get_config()
    assert "hunter2" not in str(failure.value)
