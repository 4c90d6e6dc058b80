"""Bad input: each mistake is refused with a message that names the value and the way out."""

import sys
import zoneinfo
from datetime import UTC, datetime, timedelta

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import override_settings

from django_delayq import conf
from django_delayq.admin.forms import list_zones
from django_delayq.calls import registry
from django_delayq.calls.compat import TaskContext, task
from django_delayq.calls.validators import MAX_ARGUMENT_BYTES, validate_json
from django_delayq.exceptions import InvalidArguments, UnknownTask
from django_delayq.models import Schedule
from django_delayq.monitoring.explain.moment import parse_moment
from django_delayq.monitoring.explain.situation import list_next
from django_delayq.recurrence.point import utcnow
from django_delayq.recurrence.zone import get_zone

pytestmark = pytest.mark.django_db(transaction=True)

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
LATER = datetime(2090, 1, 1, tzinfo=UTC)
CRON = {"kind": "cron", "cron": "0 * * * *"}
EVERY = {"kind": "every", "cron": ""}
ADD = "tests.app.tasks.add"


def definition(**values):
    return Schedule(**{"name": "s", "task": "tests.app.tasks.noop", **CRON, **values})


def refusal(call):
    """Return the errors by field."""
    with pytest.raises(ValidationError) as caught:
        call()
    return caught.value.message_dict


# -- definitions: (what, values, field, what the message must name)

BAD = [
    ("unknown zone", {"timezone": "Mars/Olympus"}, "timezone", ["Mars/Olympus"]),
    ("minute out of range", {"cron": "61 * * * *"}, "cron", ["minute", "61", "59"]),
    ("a phrase", {"cron": "every weekday at 9"}, "cron", ["Did you mean 0 9 * * 1-5: at 09:00, Monday to Friday?"]),
    ("no cron at all", {"cron": "every day"}, "cron", ["2 fields", "'every day'"]),
    ("a date that never comes", {"cron": "0 0 31 2 *"}, "cron", ["never"]),
    ("cron of 300 characters", {"cron": "0 0 * * " + "1," * 146 + "1"}, "cron", ["255"]),
    ("interval of zero", {**EVERY, "every": 0 * SECOND}, "every", ["0", "at least 1 s"]),
    ("negative interval", {**EVERY, "every": -HOUR}, "every", ["-", "at least 1 s"]),
    ("one-off in the past", {"kind": "once", "cron": "", "at": datetime(2020, 2, 1, tzinfo=UTC)}, "at",
     ["2020-02-01", "Run now"]),
    ("cron and interval", {"every": HOUR}, "every", ["'cron'", "exactly one"]),
    ("interval and cron", {"kind": "every", "every": HOUR}, "cron", ["'every'", "exactly one"]),
    ("kind without its value", {"kind": "every", "cron": ""}, "every", ["'every'"]),
    ("unknown kind", {"kind": "solar"}, "kind", ["'solar'", "cron, every and once"]),
    ("unknown every_from", {"kind": "every", "cron": "", "every": HOUR, "every_from": "start"}, "every_from",
     ["due or finish, not 'start'"]),
    ("end before start", {"start_at": LATER, "end_at": LATER - HOUR}, "end_at", ["before the start"]),
    ("no point in the window", {"cron": "0 0 1 1 *", "start_at": LATER + HOUR, "end_at": LATER + 2 * HOUR}, "end_at",
     ["no due point"]),
    ("negative jitter", {"jitter": -SECOND}, "jitter", ["zero or more"]),
    ("jitter as long as the gap", {"jitter": HOUR}, "jitter", ["shorter", "1:00:00"]),
    ("jitter of ages", {"jitter": timedelta(days=365 * 100_000)}, "jitter", ["shorter"]),
    ("unknown queue", {"queue": "mial"}, "queue", ["'mial'", "default, mail", "DELAYQ['QUEUES']"]),
    ("unknown task", {"task": "tests.app.tasks.nop"}, "task", ["'tests.app.tasks.nop'", "tests.app.tasks.noop"]),
    ("a function that is no task", {"task": "os.system"}, "task", ["'os.system'", "INSTALLED_APPS"]),
    ("unknown overlap", {"overlap": "side_by_side"}, "overlap", ["side_by_side"]),
    ("unknown dst_gap", {"dst_gap": "jump"}, "dst_gap", ["jump", "run_after"]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "field", "parts"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
@pytest.mark.parametrize("how", ["form", "save"])
def test_a_bad_definition_is_refused_by_field_with_value_and_way_out(values, field, parts, how):
    row = definition(**values)
    found = refusal(row.full_clean if how == "form" else row.save)
    assert field in found
    text = " ".join(found[field])
    assert [part for part in parts if part not in text] == [], text
    assert not Schedule.objects.exists()


ARGUMENTS = [
    ("too many", {"args": [1, 2, 3]}, "args", ["too many", "add(a: int, b: int = 1)"]),
    ("missing", {}, "args", ["'a'", "add(a: int, b: int = 1)"]),
    ("unknown name", {"args": [1], "kwargs": {"c": 1}}, "kwargs", ["'c'", "add(a: int, b: int = 1)"]),
    ("given twice", {"args": [1], "kwargs": {"a": 1}}, "kwargs", ["'a'"]),
    ("args no list", {"args": {"a": 1}}, "args", ["list", "dict"]),
    ("kwargs no object", {"args": [1], "kwargs": [1]}, "kwargs", ["object", "list"]),
    ("a datetime", {"args": [LATER]}, "args", ["datetime", "Allowed are"]),
    ("NaN", {"args": [float("nan")]}, "args", ["JSON", "finite numbers"]),
    ("NUL", {"args": ["a\0b"]}, "args", ["NUL"]),
    ("half a surrogate pair", {"args": ["\ud800"]}, "args", ["surrogate"]),
    ("keys that are no text", {"args": [{1: 2}]}, "args", ["text", "1"]),
    ("too large", {"args": ["x" * (64 * 1024)]}, "args", ["65,", "65,536"]),
]


@pytest.mark.parametrize(("values", "field", "parts"), [row[1:] for row in ARGUMENTS], ids=[r[0] for r in ARGUMENTS])
def test_arguments_that_do_not_fit_or_are_no_json_are_refused(values, field, parts):
    found = refusal(definition(task=ADD, **values).save)
    assert list(found) == [field]
    assert [part for part in parts if part not in found[field][0]] == [], found[field][0]
    assert not Schedule.objects.exists()


REPORT = "tests.app.tasks.report"
MISFITS = [
    ({"args": ["soon"]}, "args", "day must be a date such as 2026-01-31, not 'soon'"),
    ({"args": ["2026-01-31"], "kwargs": {"style": "Rich"}}, "kwargs",
     "style must be one of 'plain', 'rich' or null, not 'Rich'"),
    ({"args": ["2026-01-31"], "kwargs": {"api_token": 12345}}, "kwargs", "api_token must be a text, not ********"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "field", "message"), MISFITS)
@pytest.mark.parametrize("how", ["save", "bulk_create"])
def test_values_that_are_none_of_the_annotations_are_refused(values, field, message, how):
    row = definition(task=REPORT, **values)
    found = refusal(row.save if how == "save" else lambda: Schedule.objects.bulk_create([row]))
    assert found == {field: [message]}


def test_what_annotations_do_not_understand_is_saved():
    definition(task=REPORT, args=["2026-01-31"], kwargs={"options": 5, "written": "page", "draft": True}).save()
    definition(name="other", task="tests.app.tasks.gather", args=[1, 2, 3], kwargs={"any": "text"}).save()


def test_arguments_that_are_stored_are_not_judged_again_but_their_changes_are():
    row = definition(task=ADD, args=[1])
    row.save()
    Schedule._base_manager.filter(pk=row.pk).update(args=["1"])  # as SQL can
    row.refresh_from_db()
    row.cron = "0 8 * * *"
    row.full_clean()
    row.save()
    row.kwargs = {"b": 2}
    assert refusal(row.save) == {"args": ["a must be a whole number, not '1'"]}
    row.args = [1]
    row.save()


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_is_refused_without_recursion():
    validate_json([nested(20)], {})
    with pytest.raises(InvalidArguments, match="32"):
        validate_json([nested(100_000)], {})


def test_arguments_of_just_64_kib_with_emoji_are_stored_as_they_are():
    text = "🐍" * 1000
    text += "x" * (MAX_ARGUMENT_BYTES - len(f'[["{text}"], {{}}]'.encode()))
    row = definition(task="tests.app.tasks.fail", args=[text])
    row.save()
    row.refresh_from_db()
    assert row.args == [text]
    row.args = [text + "x"]
    assert "65,537" in refusal(row.save)["args"][0]


def test_every_mistake_is_told_at_once():
    found = refusal(definition(task="gone", queue="mial", every=HOUR).full_clean)
    assert {"task", "queue", "every"} <= found.keys()


def test_a_finished_one_off_can_be_edited_but_not_moved_to_another_past():
    row = definition(kind="once", cron="", at=utcnow() + HOUR)
    row.save()
    before = utcnow() - HOUR
    Schedule._base_manager.filter(pk=row.pk).update(at=before)
    row.refresh_from_db()
    row.description = "finished"
    row.full_clean()
    row.save()
    row.at = before - SECOND
    assert "has passed" in refusal(row.save)["at"][0]
    row.at = utcnow() + HOUR
    row.save()


def test_a_schedule_whose_task_is_gone_can_still_be_paused_and_described():
    row = definition()
    row.save()
    Schedule._base_manager.update(task="tests.app.tasks.gone")
    row.refresh_from_db()
    row.pause("until it is back")
    row.description = "broken"
    row.save()
    assert "tests.app.tasks.gone" in refusal(row.full_clean)["task"][0]


@task(takes_context=True)
def with_context(context: TaskContext, path: str, *, mode: str = "w") -> None:
    """Take the context first."""


@task
def anything(*args: object, **kwargs: object) -> None:
    """Take whatever comes."""


CALLS = [
    (with_context, ["a"], {}, True),
    (with_context, [], {"path": "a", "mode": "r"}, True),
    (with_context, [], {}, False),
    (with_context, ["a", "b"], {}, False),
    (with_context, ["a"], {"context": 1}, False),
    (anything, [1, 2], {"x": 1}, True),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "fits"), CALLS)
def test_the_context_is_not_for_the_caller_to_give(function, args, kwargs, fits):
    if fits:
        registry.check_call(function, args, kwargs)
    else:
        with pytest.raises(InvalidArguments) as caught:
            registry.check_call(function, args, kwargs)
        assert "with_context(path: str, *, mode: str = 'w')" in str(caught.value)


def test_the_registry_knows_the_tasks_of_installed_apps_and_nothing_else():
    paths = list(registry.get_tasks())
    assert paths == sorted(paths)
    assert "tests.app.tasks.anote" in paths
    assert not any(path.startswith(__name__) for path in paths)
    assert registry.get_summary(registry.get_task("tests.app.tasks.noop")) == "Do nothing."
    for path in ("os.system", "tests.app.tasks.CALLS", "tests.app.tasks", "", "tests.app.tasks.nop"):
        with pytest.raises(UnknownTask) as caught:
            registry.get_task(path)
        assert repr(path) in str(caught.value)


def test_a_task_module_that_only_some_apps_have_may_be_dotted(settings):
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": ["tasks", "jobs.nightly"]}
    assert "tests.app.tasks.noop" in registry.get_tasks()


SETTINGS = [
    ("no dict", ["x"], ["dict", "list"]),
    ("none", None, ["dict", "NoneType"]),
    ("unknown key", {"QUEUE": ["a"]}, ["'QUEUE'", "'QUEUES'", "LEASE_SECONDS"]),
    ("several", {"QUEUE": ["a"], "SHARD": 1, "LEASE_SECONDS": 0, "ALERTS": {"MAILS": True, "FAILURES": 0}},
     ["'QUEUE'. Did you mean 'QUEUES'?", "'SHARD'. Did you mean 'SHARDS'?", "['LEASE_SECONDS']", "['FAILURES'] must be",
      "DELAYQ['ALERTS'] has an unknown key 'MAILS'. Did you mean 'MAIL'?"]),
    ("lower case", {"prefix": "a"}, ["'prefix'", "'PREFIX'"]),
    ("key that is no text", {5: 1}, ["5"]),
    ("REDIS", {"REDIS": 5}, ["DELAYQ['REDIS']", "alias", "5"]),
    ("REDIS empty", {"REDIS": ""}, ["DELAYQ['REDIS']", "''"]),
    ("COMMANDS", {"COMMANDS": "tell"}, ["DELAYQ['COMMANDS']", "a list of names", "'tell'"]),
    ("COMMANDS not a name", {"COMMANDS": ["a b"]}, ["DELAYQ['COMMANDS']", "a b"]),
    ("COMMAND_MEMORY_MB", {"COMMAND_MEMORY_MB": 1}, ["DELAYQ['COMMAND_MEMORY_MB']", "64"]),
    ("PREFIX", {"PREFIX": "a{b}"}, ["DELAYQ['PREFIX']", "'a{b}'", "A-Z"]),
    ("PREFIX long", {"PREFIX": "a" * 65}, ["DELAYQ['PREFIX']", "64"]),
    ("QUEUES a text", {"QUEUES": "mail"}, ["DELAYQ['QUEUES']", "list", "'mail'"]),
    ("QUEUES empty", {"QUEUES": []}, ["DELAYQ['QUEUES']", "[]"]),
    ("QUEUES twice", {"QUEUES": ["a", "a"]}, ["DELAYQ['QUEUES']", "different"]),
    ("QUEUES colon", {"QUEUES": ["a:b"]}, ["DELAYQ['QUEUES']", "'a:b'"]),
    ("QUEUES numbers", {"QUEUES": [1]}, ["DELAYQ['QUEUES']", "[1]"]),
    ("SHARDS zero", {"SHARDS": 0}, ["DELAYQ['SHARDS']", "from 1 to 4096", "0"]),
    ("SHARDS of a queue", {"SHARDS": {"default": 0}}, ["DELAYQ['SHARDS']", "from 1 to 4096", "{'default': 0}"]),
    ("SHARDS of a stranger", {"SHARDS": {"mail": 2}}, ["DELAYQ['SHARDS']", "'mail'", "default"]),
    ("LEASE_SECONDS", {"LEASE_SECONDS": 0.5}, ["DELAYQ['LEASE_SECONDS']", "from 1 to 3600", "0.5"]),
    ("LEASE_SECONDS text", {"LEASE_SECONDS": "30"}, ["DELAYQ['LEASE_SECONDS']", "'30'"]),
    ("DRAIN_SECONDS", {"DRAIN_SECONDS": None}, ["DELAYQ['DRAIN_SECONDS']", "None"]),
    ("TASK_MODULES", {"TASK_MODULES": "tasks"}, ["DELAYQ['TASK_MODULES']", "['tasks']"]),
    ("TASK_MODULES of no list", {"TASK_MODULES": {"shop": "tasks"}}, ["dict of these"]),
    ("TASK_MODULES of no name", {"TASK_MODULES": {"shop": [""]}}, ["dict of these"]),
    ("TASK_MODULES of no app", {"TASK_MODULES": {1: ["tasks"]}}, ["dict of these"]),
    ("TASK_MODULES empty", {"TASK_MODULES": []}, ["dict of these"]),
    ("TASK_ALIASES", {"TASK_ALIASES": ["a.b"]}, ["DELAYQ['TASK_ALIASES']", "a dict", "['a.b']"]),
    ("TASK_ALIASES no path", {"TASK_ALIASES": {"a.b": "send"}}, ["DELAYQ['TASK_ALIASES']", "'send'"]),
    ("TASK_ALIASES no text", {"TASK_ALIASES": {"a.b": 1}}, ["DELAYQ['TASK_ALIASES']", "{'a.b': 1}"]),
    ("MIRROR", {"MIRROR": 0}, ["DELAYQ['MIRROR']", "True or False", "0"]),
    ("REDIS_IN_TESTS", {"REDIS_IN_TESTS": "no"}, ["DELAYQ['REDIS_IN_TESTS']", "True or False", "'no'"]),
    ("HISTORY_DAYS", {"HISTORY_DAYS": 0}, ["DELAYQ['HISTORY_DAYS']", "from 1", "0"]),
    ("HISTORY_DAYS text", {"HISTORY_DAYS": "30"}, ["DELAYQ['HISTORY_DAYS']", "None", "dict", "'30'"]),
    ("HISTORY_DAYS of open ones", {"HISTORY_DAYS": {"running": 1}}, ["succeeded, failed, skipped, lost", "'running'"]),
    ("HISTORY_DAYS deeper", {"HISTORY_DAYS": {"failed": {"failed": 1}}}, ["DELAYQ['HISTORY_DAYS']"]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "parts"), [row[1:] for row in SETTINGS], ids=[row[0] for row in SETTINGS])
def test_a_bad_setting_is_refused_with_key_value_and_what_is_allowed(value, parts):
    with override_settings(DELAYQ=value):
        with pytest.raises(ImproperlyConfigured) as caught:
            conf.get_config()
        text = str(caught.value)
        assert [part for part in parts if part not in text] == [], text
        messages = checked()
    assert [(message.id, message.msg) for message in messages] == [("delayq.E001", text)]
    assert messages[0].hint


def test_every_key_is_optional_and_takes_what_the_documentation_says(settings):
    unsaid = conf.Config(mirror=False)  # as in every test that does not say otherwise
    settings.DELAYQ = {}
    assert (conf.get_config(), conf.can_mirror()) == (unsaid, True)
    del settings.DELAYQ
    assert (conf.get_config(), conf.can_mirror()) == (unsaid, True)
    settings.DELAYQ = {"QUEUES": ("a", "b"), "SHARDS": {"b": 3}, "LEASE_SECONDS": 1.5, "HISTORY_DAYS": None}
    config = conf.get_config()
    assert (config.queues, config.get_shard_count("a"), config.get_shard_count("b")) == (("a", "b"), 1, 3)
    assert (config.lease_seconds, config.get_days_kept("failed")) == (1.5, None)
    settings.DELAYQ = {"HISTORY_DAYS": 30}
    assert [conf.get_config().get_days_kept(outcome) for outcome in ("succeeded", "lost")] == [30, 30]
    settings.DELAYQ = {"HISTORY_DAYS": {"succeeded": 7, "failed": None}}
    assert [conf.get_config().get_days_kept(outcome) for outcome in ("succeeded", "failed", "lost")] == [7, None, None]


ALIASES = [
    ("missing", {"REDIS": "sessions"}, ["'sessions'", "default, local", "django_redis.cache.RedisCache"]),
    ("not django-redis", {"REDIS": "local"}, ["'local'", "not a django-redis cache", "DELAYQ['REDIS']"]),
]


@pytest.mark.parametrize(("value", "parts"), [row[1:] for row in ALIASES], ids=[row[0] for row in ALIASES])
def test_a_cache_alias_that_cannot_serve_is_a_check_with_a_hint(value, parts):
    value = {**value, "REDIS_IN_TESTS": True}
    with override_settings(DELAYQ=value):
        (message,) = checked()
        with pytest.raises(SystemCheckError, match=r"delayq\.E002"):
            call_command("check", "--tag", "delayq")
    assert message.id == "delayq.E002"
    assert [part for part in parts if part not in message.msg] == [], message.msg
    assert "DELAYQ['MIRROR']" in message.hint, "settings for tests may have no such alias"
    with override_settings(DELAYQ={**value, "MIRROR": False}):
        assert checked() == []


def checked():
    """Return what the checks say, but for what they say of a cluster as the tests use it."""
    return [message for message in checks.run_checks(tags=["delayq"]) if message.id != "delayq.W004"]


def test_good_settings_pass_the_checks_without_a_connection(settings):
    assert checked() == []
    closed = {**settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1"}
    with override_settings(CACHES={**settings.CACHES, "closed": closed}, DELAYQ={"REDIS": "closed"}):
        assert checked() == []


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"keep": "some"}, "keep", "all, failures, last, none, or empty, not 'some'"),
        ({"keep": "last"}, "keep_last", "from 1 to 100,000"),
        ({"keep": "last", "keep_last": 0}, "keep_last", "from 1 to 100,000"),
        ({"keep": "last", "keep_last": 100_001}, "keep_last", "from 1 to 100,000"),
        ({"keep": "none", "keep_last": 5}, "keep_last", "Leave this empty"),
        ({"keep_last": 5}, "keep_last", "Leave this empty"),
        ({"expected_within": timedelta(0)}, "expected_within", "longer than zero"),
        ({**EVERY, "every": 15}, "every", "timedelta, not int 15"),
        ({"kind": "once", "cron": "", "at": "2090-01-01T00:00:00Z"}, "at", "datetime, not str '2090"),
        ({"jitter": 5}, "jitter", "timedelta, not int 5"),
    ],
)
def test_what_is_kept_what_is_expected_and_types_are_checked_with_the_definition(values, field, words):
    assert words in refusal(definition(**values).save)[field][0]


@pytest.fixture
def install(settings, monkeypatch, tmp_path):
    """Return what installs an app whose tasks.py has this text: the project's own one, or one of `site-packages`."""

    def write(source, folder="site-packages"):
        name = f"broken_{len(list(tmp_path.glob('*/*')))}_{folder[:4]}_{tmp_path.name}"
        package = tmp_path / folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "tasks.py").write_text(source)
        monkeypatch.syspath_prepend(package.parent)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, name]
        return name

    return write


MISSING = "import os\nimport not_to_be_found.here\n"


@pytest.mark.parametrize(("source", "folder", "wanted", "parts"), [
    (MISSING, "site-packages", "delayq.W005", ["tasks.py, line 2", "'not_to_be_found'"]),
    (MISSING, "project", "delayq.E003", ["tasks.py, line 2", "'not_to_be_found'"]),
    (
        "try:\n  import not_to_be_found\nexcept ImportError:\n  raise ImportError('pip install it')",
        "site-packages", "delayq.W005", ["tasks.py, line 4", "pip install it"],
    ),
    ("raise SystemExit('no config')", "site-packages", "delayq.E003", ["tasks.py, line 1", "SystemExit: no config"]),
    ("from . import nothing", "site-packages", "delayq.E003", ["tasks.py, line 1", "'nothing'"]),
    ("from .nothing import x", "site-packages", "delayq.E003", ["tasks.py, line 1", "nothing'"]),
    ("x = (\n", "site-packages", "delayq.E003", ["SyntaxError", "tasks.py, line 1"]),
    (
        "from django.core.exceptions import ImproperlyConfigured\nraise ImproperlyConfigured('set X')",
        "site-packages", "delayq.E003", ["tasks.py, line 2", "ImproperlyConfigured: set X"],
    ),
    (
        "import importlib\nimportlib.import_module('django_delayq.nothing')",
        "project", "delayq.E003", ["tasks.py, line 2", "django_delayq.nothing"],
    ),
])  # fmt: skip
def test_a_task_module_that_cannot_be_imported_stops_no_other_apps_tasks(
    settings, install, source, folder, wanted, parts
):
    name = install(source, folder)
    (message,) = checked()
    assert message.id == wanted
    assert [part for part in (f"{name}.tasks", *parts) if part not in message.msg] == [], message.msg
    assert f"{{'*': ['tasks'], '{name}': []}}" in message.hint
    definition().save()
    registry.get_task(ADD)
    with pytest.raises(UnknownTask, match=rf"{name}\.tasks cannot be imported: .*tasks\.py, line \d"):
        registry.get_task(f"{name}.jobs.run")
    settings.DELAYQ = {**settings.DELAYQ, "TASK_MODULES": {"*": ["tasks"], name: []}}
    assert checked() == []
    registry.get_task(ADD)


def test_a_task_of_an_app_within_an_app_whose_module_is_broken_is_not_blamed_on_that(settings, install, tmp_path):
    name = install("x = (")
    (tmp_path / "site-packages" / name / "inner").mkdir()
    (tmp_path / "site-packages" / name / "inner" / "__init__.py").touch()
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, f"{name}.inner"]
    with pytest.raises(UnknownTask, match=rf"No installed app has a @task function '{name}\.inner\.tasks\.run'"):
        registry.get_task(f"{name}.inner.tasks.run")


def test_a_task_module_that_failed_at_first_offers_its_tasks_once_other_code_has_imported_it(install):
    name = install(
        "from django_delayq.calls.compat import task\nimport tests.app as x\nx.ready\n@task\ndef run(): pass"
    )
    path = f"{name}.tasks.run"
    assert registry.find_task(path) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.app.ready", True, raising=False)
        __import__(f"{name}.tasks")
    assert registry.find_task(path) is not None
    assert registry.list_broken_modules() == []


def test_a_lazy_object_of_a_task_module_is_not_evaluated(install):
    name = install("from django.utils.functional import SimpleLazyObject\nlazy = SimpleLazyObject(lambda: 1 / 0)")
    assert registry.find_task(f"{name}.tasks.lazy") is None
    assert checked() == []


def test_an_address_that_is_none_is_told(settings):
    with override_settings(CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "localhost:1"}}):
        ids = [message.id for message in checked()]
    assert ids == ["delayq.E002"]


@pytest.fixture
def no_zones(monkeypatch):
    """Hide all time zone data, as a slim image has none."""

    def forget():
        zoneinfo.ZoneInfo.clear_cache()
        get_zone.cache_clear()
        list_zones.cache_clear()

    for name in ["tzdata", *(each for each in sys.modules if each.startswith("tzdata."))]:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(to=[])
    forget()
    yield
    zoneinfo.reset_tzpath()
    forget()


def test_without_time_zone_data_utc_works_and_the_checks_say_what_to_install(no_zones, settings):
    (message,) = checked()
    assert (message.id, "pip install tzdata" in message.hint) == ("delayq.W006", True)
    row = definition(timezone="UTC")
    row.save()
    row.full_clean()
    assert row.preview(1)
    assert list_next(row, 1)
    assert parse_moment("09:00", "UTC", LATER).first.hour == 9
    assert list_zones() == ["UTC"]
    (text,) = refusal(definition(name="b", cron="7 7 7 7 7", timezone="Europe/Riga").save)["timezone"]
    assert "'Europe/Riga'" in text
    assert "pip install tzdata" in text
    assert "such as Europe/Riga" not in text
