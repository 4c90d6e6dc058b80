"""`delayq_import` and `delayq_export`: what needs no other scheduler."""

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command

from django_delayq.calls.commands import COMMAND_TASK
from django_delayq.models import Schedule
from django_delayq.sources.importing import ORIGINS
from tests.support import COMMANDS

pytestmark = pytest.mark.django_db

ADD, NOOP = "tests.app.tasks.add", "tests.app.tasks.noop"
SCHEDULES = {}
LINES = """
MAILTO=root
CRON_TZ=Europe/Riga
30 9 * * 1-5 /usr/bin/ping-everybody
@hourly /usr/bin/other
"""
MAPS = ["--map=*ping*=tests.app.tasks.noop", "--map=/usr/bin/other=tests.app.tasks.add"]


def run(*command, **options):
    """Return what the command wrote, and what it failed with."""
    out, error = io.StringIO(), ""
    try:
        call_command(*command, stdout=out, stderr=io.StringIO(), **options)
    except CommandError as failed:
        error = str(failed)
    return out.getvalue(), error


def entries(*command, **options):
    """Return the entries of an import by name."""
    out, _error = run("delayq_import", *command, json=True, **options)
    return {entry["name"]: entry for entry in json.loads(out.splitlines()[-1])["entries"]}


def actions(*command, **options):
    return {name: entry["action"] for name, entry in entries(*command, **options).items()}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file to import from, and returns its path."""

    def write(text):
        (tmp_path / "t").write_text(text)
        return str(tmp_path / "t")

    return write


@pytest.fixture
def table(written):
    return Path(written(LINES))


@pytest.fixture
def beat(monkeypatch):
    """Celery's beat_schedule, as a dict at a dotted path."""
    monkeypatch.setitem(globals(), "SCHEDULES", {})
    return lambda **told: SCHEDULES.update(told) or f"{__name__}.SCHEDULES"


# -- what is written when


def test_a_dry_run_shows_everything_and_writes_nothing(table):
    out, error = run("delayq_import", "crontab", str(table), *MAPS[:1])
    assert not Schedule.objects.exists()
    assert error == "1 of 2 entries refused: see the reasons above."
    lines = out.splitlines()
    assert lines[0].startswith(
        "create  /usr/bin/ping-everybody  cron '30 9 * * 1-5' Europe/Riga  tests.app.tasks.noop  next "
    )
    assert "        CRON_TZ is followed, as cronie does; Debian's cron ignores it" in lines
    assert any("mailed to root" in line for line in lines)
    assert any(line.startswith("refuse  /usr/bin/other") and "@hourly" in line for line in lines)
    assert any("--map '/usr/bin/other=app.tasks.name'" in line for line in lines)
    assert lines[-2] == "2 entries: 1 would be created, 1 refused. Nothing was written."
    assert lines[-1] == "Differences that concern all entries: docs/coming-over/crontab.md"


def test_written_once_and_unchanged_after_that(table):
    out, error = run("delayq_import", "crontab", str(table), *MAPS, write=True)
    assert "2 entries: 1 created, 1 refused.\n" in out and "1 of 2" in error  # add() needs an argument
    made = Schedule.objects.get()
    assert (made.cron, made.timezone, made.overlap, made.enabled) == ("30 9 * * 1-5", "Europe/Riga", "allow", True)
    assert made.description.startswith("Imported from crontab (")
    before = Schedule.objects.values().get()
    assert actions("crontab", str(table), *MAPS[:1], write=True, only=["*ping*"]) == {made.name: "same"}
    assert Schedule.objects.values().get() == before


def test_what_changes_there_changes_here_until_somebody_edits_it(table):
    command = ("crontab", str(table), *MAPS[:1])
    options = {"write": True, "only": ["*ping*"]}
    run("delayq_import", *command, **options)
    table.write_text(LINES.replace("30 9", "45 9"))
    assert list(actions(*command, only=["*ping*"]).values()) == ["update"]
    assert Schedule.objects.get().cron == "30 9 * * 1-5"
    assert "recurrence cron '30 9 * * 1-5' → cron '45 9 * * 1-5'" in run("delayq_import", *command, **options)[0]
    made = Schedule.objects.get()
    assert made.cron == "45 9 * * 1-5"
    assert made.definitions.get().by == "delayq_import"
    made.max_attempts = 3
    made.save()
    (entry,) = entries(*command, **options).values()
    assert entry["action"] == "keep" and "--overwrite takes max_attempts 3 → 1" in entry["reason"]
    assert run("delayq_import", *command, **options)[1] == ""  # no failure
    assert list(actions(*command, **options, overwrite=True).values()) == ["update"]
    made.refresh_from_db()
    assert made.max_attempts == 1
    assert list(actions(*command, **options).values()) == ["same"]


def test_the_switch_is_people_s(table):
    command, options = ("crontab", str(table), *MAPS[:1]), {"write": True, "only": ["*ping*"]}
    run("delayq_import", *command, **options, disabled=True)
    made = Schedule.objects.get()
    assert (made.enabled, made.pause_reason) == (False, "Enable it when crontab is off.")
    assert list(actions(*command, **options).values()) == ["same"]
    made.resume()
    table.write_text(LINES.replace("30 9", "45 9"))
    assert list(actions(*command, **options, disabled=True).values()) == ["update"]
    made.refresh_from_db()
    assert (made.cron, made.enabled) == ("45 9 * * 1-5", True)


def test_a_schedule_of_the_same_name_that_was_made_here_is_left_alone(table):
    Schedule.objects.create(name="/usr/bin/ping-everybody", task=NOOP, kind="cron", cron="0 0 * * *")
    command, options = ("crontab", str(table), *MAPS[:1]), {"write": True, "only": ["*ping*"]}
    (entry,) = entries(*command, **options).values()
    assert entry["action"] == "refuse" and "--prefix" in entry["reason"]
    assert Schedule.objects.get().cron == "0 0 * * *"
    assert actions(*command, **options, prefix="cron: ") == {"cron: /usr/bin/ping-everybody": "create"}
    assert actions(*command, **options, overwrite=True) == {"/usr/bin/ping-everybody": "update"}
    assert set(Schedule.objects.values_list("cron", flat=True)) == {"30 9 * * 1-5"}


def test_enable_switches_on_what_the_import_held_back_and_nothing_else(written):
    common = {"version": 1, "task": NOOP, "kind": "cron", "cron": "0 0 * * *"}
    lines = [{**common, "name": "on"}, {**common, "name": "later"}, {**common, "name": "mine"}]
    off = {**common, "enabled": False}
    lines += [{**off, "name": "off"}, {**off, "name": "away", "pause_reason": "x"}]
    path = written("\n".join(map(json.dumps, lines)))
    run("delayq_import", "json", path, write=True, disabled=True)
    assert not Schedule.objects.filter(enabled=True).exists()
    Schedule.objects.get(name="mine").pause("not before June")
    beat = {**off, "name": "of another origin", "pause_reason": "Enable it when celery is off."}
    del beat["version"]
    Schedule.objects.create(**beat)
    assert run("delayq_import", "json", enable=True, only=["o*"])[0] == "enabled  on\n1 schedules enabled.\n"
    assert json.loads(run("delayq_import", "json", enable=True, json=True)[0])["enabled"] == ["later"]
    assert run("delayq_import", "json", enable=True)[0] == "0 schedules enabled.\n"
    rows = Schedule.objects.values_list("name", "enabled", "pause_reason")
    assert set(rows) == {
        ("on", True, ""), ("later", True, ""), ("off", False, ""), ("away", False, "x"),
        ("mine", False, "not before June"), ("of another origin", False, "Enable it when celery is off."),
    }  # fmt: skip
    assert "Give one of them" in run("delayq_import", "json", enable=True, disabled=True)[1]
    assert set(actions("json", path).values()) == {"same"}


# -- crontab


def test_management_commands_need_no_map(written, settings):
    path = written(
        "0 1 * * * cd /srv && python manage.py clearsessions >> log 2>&1\n"
        "0 2 * * * flock -n /tmp/l ./manage.py clearsessions\n"
        "0 3 * * * python manage.py tell two 'wor ds' --seconds=2\n"
        "0 3 * * * python manage.py tell --second=soon\n"
        "0 3 * * * python manage.py migrate\n"
    )
    why = entries("crontab", path, timezone="UTC")["clearsessions"]["reason"]
    assert "'clearsessions', which DELAYQ['COMMANDS'] does not name. Add it" in why
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS}
    found = entries("crontab", path, timezone="UTC", write=True)
    assert "invalid float" in found["tell --second=soon"]["reason"]
    assert "'migrate' may not be scheduled" in found["migrate"]["reason"] and "Add it" in found["migrate"]["reason"]
    assert {name: entry["action"] for name, entry in found.items()} == {
        "clearsessions": "create", "clearsessions (2)": "create", "tell two 'wor ds' --seconds=2": "create",
        "tell --second=soon": "refuse", "migrate": "refuse",
    }  # fmt: skip
    assert found["clearsessions"]["notes"] == ["left out: cd /srv, >> log, 2>&1"]
    made = Schedule.objects.in_bulk(field_name="name")
    told = made["tell two 'wor ds' --seconds=2"]
    assert (told.task, told.args) == (COMMAND_TASK, ["tell", "two", "wor ds", "--seconds=2"])
    assert (made["clearsessions"].overlap, made["clearsessions (2)"].overlap) == ("allow", "skip")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot x", "@reboot"),
        ("@never x", "not a known macro"),
        ("0 0 * * *", "not an entry"),
        ("0~30 * * * * x", "random"),
        ("0 0 * * * mail%hello", "input by %"),
        ("61 * * * * x", "minute field"),
        ("0 0 * * 7-1 x", "reversed"),
    ],
)
def test_what_cannot_be_taken_from_a_crontab_says_why(written, line, why):
    path = written(f"# nothing\n\n{line}\n5 5 * * * good\n")
    found = entries("crontab", path, "--map=*=tests.app.tasks.noop", write=True)
    good = found.pop("good")
    assert good["action"] == "create"
    (bad,) = found.values()
    assert bad["action"] == "refuse" and why in bad["reason"]


def test_lines_end_at_a_line_feed_alone(tmp_path):
    path = tmp_path / "t"
    path.write_bytes("5 5 * * * x a\x0cb\u2028c\rd\n6 6 * * * y\r\n\r\n".encode())
    found = entries("crontab", str(path), "--map=*=tests.app.tasks.noop")
    assert [found[name]["action"] for name in found] == ["create", "refuse"]
    assert "carriage return" in found["6 6 * * * y"]["reason"]
    path.write_text(json.dumps({"version": 1, "name": "a\u2028b", "task": NOOP}, ensure_ascii=False))
    assert [entry["name"] for entry in entries("json", str(path)).values()] == ["a\u2028b"]


def test_percent_signs_are_those_of_cron(written, settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS}
    path = written(r"5 5 * * * python manage.py tell 'a\%b'" "\n" r"5 5 * * * python manage.py tell a\\%b" "\n")
    told, given = entries("crontab", path).values()
    assert told["schedule"]["args"] == ["tell", "a%b"]
    assert "input by %" in given["reason"]


def test_the_words_of_another_shell_are_not_read(written):
    (entry,) = entries("crontab", written("SHELL=/usr/bin/fish\n5 5 * * * python manage.py clearsessions\n")).values()
    assert "SHELL is /usr/bin/fish" in entry["reason"]


def test_an_assignment_with_a_path_is_left_out(written, settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS}
    path = written("5 5 * * * PYTHONPATH=/srv/app flock -w 0.0 /tmp/l python manage.py tell a\n")
    (entry,) = entries("crontab", path).values()
    assert (entry["schedule"]["args"], entry["schedule"]["overlap"]) == (["tell", "a"], "skip")


def test_a_lock_that_lines_share_is_named(written):
    path = written("1 1 * * * flock /tmp/l x\n2 2 * * * flock -n /tmp/l y\n3 3 * * * flock /tmp/m z\n")
    found = entries("crontab", path, "--map=*=tests.app.tasks.noop")
    x, y, z = (" ".join(entry["notes"]) for entry in found.values())
    assert "its lock /tmp/l is shared with 'flock -n /tmp/l y': overlap concerns only runs of one schedule" in x
    assert "shared with 'flock /tmp/l x'" in y and "shared with" not in z
    assert [entry["schedule"]["overlap"] for entry in found.values()] == ["queue_all", "skip", "queue_all"]


AT_1, AT_13, AT_14 = (f"0 {hour} * * * x\n" for hour in (1, 13, 14))


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ([AT_1, AT_13], [AT_13, AT_1], {"x": "0 1 * * *", "x (2)": "0 13 * * *"}),
        ([AT_1, AT_13], [AT_13], {"x": "0 1 * * *", "x (2)": "0 13 * * *"}),
        ([AT_1], [AT_13, AT_1], {"x": "0 1 * * *", "x (2)": "0 13 * * *"}),
        ([AT_1, AT_13], [AT_13, AT_14], {"x": "0 14 * * *", "x (2)": "0 13 * * *"}),
        ([AT_1, AT_13], [AT_1, AT_14], {"x": "0 1 * * *", "x (2)": "0 14 * * *"}),
        ([AT_1, AT_13], [AT_14, AT_13, AT_1], {"x": "0 1 * * *", "x (2)": "0 13 * * *", "x (3)": "0 14 * * *"}),
    ],
)
def test_a_line_keeps_its_schedule_wherever_it_is(written, before, after, wanted):
    for lines in (before, after, after):
        found = actions("crontab", written("".join(lines)), "--map=x=tests.app.tasks.noop", write=True)
    assert dict(Schedule.objects.values_list("name", "cron")) == wanted
    assert set(found.values()) == {"same"}


def test_a_line_whose_schedule_was_edited_here_is_known_by_its_import(written):
    command = ("crontab", written(AT_1 + AT_13), "--map=x=tests.app.tasks.noop")
    actions(*command, write=True)
    Schedule.objects.filter(name="x").update(cron="0 13 * * *")
    written(AT_13 + AT_1)
    assert actions(*command, write=True) == {"x": "keep", "x (2)": "same"}
    Schedule.objects.create(name="x (3)", task=NOOP, kind="cron", cron="0 14 * * *")
    written(AT_14 + AT_13 + AT_1)
    assert actions(*command, write=True) == {"x": "keep", "x (2)": "same", "x (3)": "refuse"}  # made here


def test_the_system_form_has_a_user(written):
    path = written("17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly\n")
    (name,) = entries("crontab", path, "--map=*=tests.app.tasks.noop", system=True)
    assert name == "cd / && run-parts --report /etc/cron.hourly"


def test_a_zone_that_nothing_names_is_the_project_s_and_said(written):
    path = written("0 9 * * * x\n")
    maps = "--map=x=tests.app.tasks.noop"
    assert any("--timezone" in note for note in entries("crontab", path, maps)["x"]["notes"])
    found = entries("crontab", path, maps, timezone="Europe/Riga")["x"]
    assert not any("--timezone" in note for note in found["notes"])
    assert found["schedule"]["timezone"] == "Europe/Riga"
    assert "time zone" in entries("crontab", path, maps, timezone="Europe/Rigo")["x"]["reason"]


def test_secrets_are_hidden(written, beat):
    path = written("0 9 * * * API_TOKEN=abcdefgh python manage.py send\n")
    (sent,) = entries("crontab", path, "--map=*send=tests.app.tasks.noop").values()
    assert "left out: API_TOKEN=********" in sent["notes"]
    source = beat(s={"task": "tests.app.tasks.urgent", "schedule": 60, "kwargs": {"token": "abcdefgh"}})
    out = run("delayq_import", "celery", source, json=True, write=True)[0]
    assert "abcdefgh" not in out and '"token": "********"' in out
    assert Schedule.objects.get().kwargs == {"token": "abcdefgh"}


def test_secrets_of_command_lines_are_hidden(written, settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS}
    words = ["-u root:abcdefgh", "--user 'root:abcdefgh'", "--api-key abcdefgh", "--password 'abcd efgh' x"]
    words += ["--token=efgh", "https://root:abcdefgh@host/", "-H 'X-Api-Key: abcdefgh'"]
    words.append("-H 'Authorization: Bearer abcdefgh' x")
    commands = [f"{command} {word}" for word in words for command in ("curl", "python manage.py tell", "ls | curl")]
    commands += ["PGPASSWORD=abcdefgh pg_dump x", "mysqldump -u root -pabcdefgh x", "curl --api-key abcdefgh % x"]
    path = written("".join(f"0 9 * * * {command}\n" for command in commands))
    for options in ({}, {"json": True}):
        out, error = run("delayq_import", "crontab", path, write=True, **options)
        assert "refuse" in out and "efgh" not in out + error
    assert not [name for name in Schedule.objects.values_list("name", flat=True) if "efgh" in name]
    assert "abcdefgh" in json.dumps([*Schedule.objects.values_list("args", flat=True)])  # the command needs it


def test_the_hidden_line_of_a_hint_is_a_pattern_that_fits(written):
    path = written("0 9 * * * curl -u root:abcdefgh https://x/\n")
    (entry,) = entries("crontab", path).values()
    pattern = entry["reason"].partition("--map '")[2].partition("=app.tasks")[0]
    assert pattern == "curl -u root:******** https://x/"
    assert list(actions("crontab", path, f"--map={pattern}={NOOP}").values()) == ["create"]


def test_texts_of_others_do_not_move_the_cursor(written):
    assert "\x1b" not in run("delayq_import", "crontab", written("0 9 * * * x \x1b[2J\n"))[0]


# -- Celery's values, without Celery


def test_numbers_and_timedeltas_of_a_beat_schedule_come_over(beat):
    source = beat(
        number={"task": ADD, "schedule": 30.0, "args": (16, 16)},
        delta={"task": ADD, "schedule": timedelta(hours=2), "kwargs": {"a": 1}, "options": {"queue": "mail"}},
        expiring={"task": NOOP, "schedule": 60, "options": {"expires": 15.0, "priority": 3}},
        until={"task": NOOP, "schedule": 60, "options": {"expires": datetime(2099, 1, 1, tzinfo=UTC)}},
        relative={"task": NOOP, "schedule": timedelta(days=1), "relative": True},
        elsewhere={"task": NOOP, "schedule": 60, "options": {"queue": "gpu"}},
    )
    found = entries("celery", source, write=True)
    assert {entry["action"] for entry in found.values()} == {"create"}
    made = Schedule.objects.in_bulk(field_name="name")
    assert (made["number"].every, made["number"].args) == (timedelta(seconds=30), [16, 16])
    assert (made["delta"].queue, made["delta"].kwargs) == ("mail", {"a": 1})
    assert (made["expiring"].grace, made["expiring"].missed) == (timedelta(seconds=15), "skip")
    assert made["until"].end_at == datetime(2099, 1, 1, tzinfo=UTC)
    assert made["relative"].every == timedelta(days=1) and "rounds" in found["relative"]["notes"][0]
    assert made["elsewhere"].queue == "default" and "'gpu'" in found["elsewhere"]["notes"][-1]


def test_an_object_that_looks_like_celery_s_crontab_takes_both_days(beat):
    told = {"minute": {0}, "hour": {9}, "day_of_month": set(range(8, 15)), "month_of_year": {1}, "day_of_week": {2}}
    source = beat(s={"task": NOOP, "schedule": SimpleNamespace(**told)})
    assert entries("celery", source, timezone="Europe/Riga")["s"]["schedule"]["cron"] == "0 9 * 1 2#2"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"task": "shop.gone.task", "schedule": 5}, "Put @task above task in shop.gone"),
        ({"task": "gone", "schedule": 5}, "No installed app has a @task function"),
        ({"task": ADD, "schedule": 5}, "missing a required argument"),
        ({"task": ADD, "schedule": 5, "args": (object(),)}, "not plain JSON"),
        ({"task": ADD, "schedule": 5, "kwargs": {"a": datetime(2027, 1, 1, tzinfo=UTC)}}, "not plain JSON"),
        ({"task": NOOP, "schedule": 0}, "An interval of 0:00:00 has no length"),
        ({"task": NOOP, "schedule": object()}, "not known here"),
        ({"task": NOOP, "schedule": SimpleNamespace(event="sunset", lat=1)}, "sun"),
        ({"task": NOOP, "schedule": 5, "options": 5}, "It cannot be read: TypeError"),
        ({"task": NOOP, "schedule": 5, "args": {"a": 1}}, "args must be"),
        ({"task": NOOP}, "'schedule'"),
        ("text", "is a dict"),
    ],
)
def test_what_cannot_be_taken_over_says_why_and_holds_up_nothing(beat, told, why):
    found = entries("celery", beat(bad=told, good={"task": NOOP, "schedule": 60}), write=True)
    assert (found["bad"]["action"], found["good"]["action"]) == ("refuse", "create")
    assert why in found["bad"]["reason"]


def test_a_function_that_calls_management_commands_is_ours(beat, settings):
    settings.DELAYQ = {**settings.DELAYQ, "COMMANDS": COMMANDS}
    source = beat(s={"task": "django.core.management.call_command", "schedule": 60, "args": ("clearsessions",)})
    assert entries("celery", source)["s"]["schedule"]["task"] == COMMAND_TASK


# -- between projects


def test_what_is_exported_is_imported_as_it_was_and_once(written):
    Schedule.objects.create(
        name="a", task=ADD, args=[1], kwargs={"b": 2}, kind="cron", cron="H 9 * * 1-5", timezone="Europe/Riga",
        start_at=datetime(2027, 1, 1, tzinfo=UTC), jitter=timedelta(seconds=90), description="why\n\nthat is",
        on_failure="tests.jobs.tasks.heard_of_run",
        keep="last", keep_last=5, grace=timedelta(minutes=2), enabled=False, pause_reason="holidays",
    )  # fmt: skip
    Schedule.objects.create(
        name="b", task=NOOP, kind="every", every=timedelta(hours=1), queue="mail", every_from="finish"
    )
    Schedule.objects.create(name="c", task=NOOP, kind="once", at=datetime(2099, 1, 1, tzinfo=UTC))
    out, error = run("delayq_export")
    path = written(out)
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["name"] for one in told] == ["a", "b", "c"] and {one["version"] for one in told} == {1}
    assert told[0]["jitter"] == "00:01:30"
    assert set(actions("json", path, write=True).values()) == {"same"}
    Schedule.objects.all().delete()
    assert set(actions("json", path, write=True).values()) == {"create"}
    assert run("delayq_export")[0] == out and error == ""
    assert set(actions("json", path, write=True).values()) == {"same"}
    made = Schedule.objects.get(name="a")
    assert (made.enabled, made.pause_reason, made.jitter) == (False, "holidays", timedelta(seconds=90))
    assert made.description.startswith("why\n\nthat is\n\nImported from json (")
    assert json.loads(run("delayq_export", "b")[0])["name"] == "b"
    assert run("delayq_export", "none")[1] == "There is no schedule 'none'."


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "This line is not JSON: "),
        ("[]", "not a schedule"),
        ('{"version": 1, "name": "s"}', "not a schedule"),
        ('{"version": 2, "name": "s", "task": "t"}', "the version 2; this release reads only 1"),
        ('{"version": 1, "name": "s", "task": "t", "colour": 1}', "has no fields colour: upgrade"),
        ('{"version": 1, "name": "s", "task": "t", "args": {}}', "args must be"),
        (
            '{"version": 1, "name": "s", "task": "t", "every": "soon"}',
            "A value does not fit its field: “soon” value has",
        ),
        ('{"version": 1, "name": "s", "task": "tests.app.tasks.noop"}', "kind"),
        ('{"version": 1, "name": "s", "task": "tests.app.tasks.noop", "kind": "cron", "cron": 5}', "cron"),
    ],
)
def test_a_line_that_is_no_schedule_says_why(written, line, why):
    (entry,) = entries("json", written(line), write=True).values()
    assert entry["action"] == "refuse" and why in entry["reason"]


def test_two_entries_of_one_name_are_one_and_a_refusal(written):
    line = json.dumps({"version": 1, "name": "s", "task": NOOP, "kind": "cron", "cron": "0 0 * * *"})
    out, error = run("delayq_import", "json", written(f"{line}\n{line}\n"), write=True)
    assert "another entry of the name 's'" in out and "1 of 2" in error
    assert Schedule.objects.count() == 1


# -- sources


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("crontab", "/nowhere"), "cannot be read"),
        (("celery",), "Give the dotted path"),
        (("celery", "nowhere.app"), "No module named 'nowhere'"),
        (("celery", "tests.app.nowhere"), "has no attribute 'nowhere'"),
        (("celery", "tests.app.tasks.CALLS"), "is not a Celery app"),
        (("celery", "..x"), "'..x' is invalid"),
        (("huey", "tests.app.tasks.CALLS"), "is not a Huey"),
        (("procrastinate", "tests.app.tasks.CALLS"), "is not a procrastinate"),
        (("apscheduler", "tests.app.tasks.CALLS"), "is not a scheduler"),
        (("rq-scheduler", "tests.app.tasks.CALLS"), "is not a rq_scheduler"),
        (("django-celery-beat",), "INSTALLED_APPS lacks 'django_celery_beat'"),
        (("django-q2",), "INSTALLED_APPS lacks 'django_q'"),
        (("django-tasks-scheduler",), "INSTALLED_APPS lacks 'scheduler'"),
        (("crontab", "x", "--map=x"), "is not of the form PATTERN="),
        (("nothing",), "invalid choice"),
    ],
)
def test_a_source_that_is_none_says_what_to_give(command, why):
    _out, error = run("delayq_import", *command)
    assert why in error


@pytest.mark.parametrize("name", ORIGINS)
def test_each_origin_has_a_page_that_enables_only_what_the_import_held_back(name):
    pages = Path(__file__).parents[2] / "docs" / "coming-over"
    page = (pages / f"{name}.md").read_text("utf-8")
    assert f"delayq_import {name}" in page
    assert ("--disabled" in page) == (f"delayq_import {name} --enable" in page)
    assert ".update(enabled=True" not in page + (pages / "README.md").read_text("utf-8")
