"""F27: arguments of any size and shape are refused where they are saved, with an error at the field, or reach the task
as they were typed. Nothing in between: no worker ever meets what it cannot read.
"""

import json

import pytest
from django.core.exceptions import ValidationError

from django_delayq.calls import registry
from django_delayq.calls.compat import task
from django_delayq.calls.validators import MAX_ARGUMENT_BYTES, MAX_DEPTH
from django_delayq.models import Run, Schedule
from tests.faults.harness.oracle import histories_of
from tests.integration.admin_pages import ADD, change_url, client_for, errors, fields
from tests.support import DAILY_CRON, make_due, run_burst

pytestmark = [pytest.mark.django_db(transaction=True)]

RECEIVED = []


@task
def receive(*args, **kwargs):
    """Keep what comes."""
    RECEIVED.append([list(args), kwargs])


@pytest.fixture(autouse=True)
def receiving(monkeypatch, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None  # Django's own limit answers 400 to what is far too large
    monkeypatch.setitem(registry.get_tasks(), receive.module_path, receive)
    RECEIVED.clear()


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def nested_text(depth):
    return "[" * depth + "]" * depth


#: What is wrong, as typed into the form, as given to save(), what the error says. None: there is no such way to say it.
REFUSED = [
    ("one byte over 64 KiB", json.dumps(["x" * (MAX_ARGUMENT_BYTES - 5)]), ["x" * (MAX_ARGUMENT_BYTES - 5)],
     "64 KiB|65,536"),
    ("too deep", nested_text(MAX_DEPTH + 2), nested(MAX_DEPTH + 1), "nested"),
    ("a hundred thousand deep", nested_text(30_000), nested(100_000), "nested|64 KiB"),
    ("NaN", "[NaN]", [float("nan")], "NaN|finite"),
    ("1e400", "[1e400]", [1e400], "finite"),
    ("NUL", '["a\\u0000b"]', ["a\0b"], "NUL"),
    ("half an emoji", '["\\ud83d"]', ["\ud83d"], "surrogate"),
    ("a number of 5,000 digits", f"[{'9' * 5000}]", [10**5000], "digits"),
    ("bytes", None, [b"x"], "not plain JSON"),
    ("a set", None, [{1}], "not plain JSON"),
    ("a key that is no text", None, [{1: 2}], "text"),
]  # fmt: skip


def said(found, words):
    """Say whether one of the words separated by | is in the error."""
    return any(word in " ".join(found) for word in words.split("|"))


@pytest.mark.parametrize("case", REFUSED, ids=[row[0] for row in REFUSED])
def test_f27_what_cannot_be_stored_is_refused_at_its_field_however_it_is_saved(case):
    _, typed, given, words = case
    values = {"name": "s", "task": receive.module_path, "kind": "cron", "cron": DAILY_CRON, "args": given}
    for save in (lambda: Schedule(**values).save(), lambda: Schedule.objects.bulk_create([Schedule(**values)])):
        with pytest.raises(ValidationError) as caught:
            save()
        assert list(caught.value.message_dict) == ["args"]
        assert said(caught.value.message_dict["args"], words), str(caught.value)[:300]
    if typed is not None:
        response = client_for(superuser=True).post(ADD, fields(task=receive.module_path, args=typed))
        assert said(errors(response)["call"], words), errors(response)["call"][0][:300]
    assert not Schedule.objects.exists()


def just_64_kib():
    text = "🐍" * 1000
    return [text + "x" * (MAX_ARGUMENT_BYTES - len(json.dumps([[text], {}], ensure_ascii=False).encode()))]


STORED = [
    ("64 KiB with emoji", just_64_kib(), {}),
    ("as deep as allowed", nested(MAX_DEPTH - 2), {}),
    ("whole numbers", [2**63, -(2**63), 2**64 + 1, 10**300, 0], {}),
    ("fractions", [0.1, -1.5, 12345678.9, 5e-324], {}),
    (
        "words of many scripts",
        ["Ω≈ç√ 漢字 \u202etfel 👩‍👩‍👧 \u2028 \x01\x7f", ""],
        {"ключ": "значение", "ü": "\r\n\t\"\\'"},
    ),
    ("what reads like something else", ["null", "NaN", "s1", "'; DROP TABLE x; --", "{{ x }}", "%s"], {"": None}),
    ("empty containers", [[], {}, [[]], {"a": []}], {"b": {}}),
]


@pytest.mark.parametrize("how", ["save", "bulk_create", "form"])
def test_f27_what_is_stored_reaches_the_task_as_it_was_typed(broker, report, how):
    common = {"task": receive.module_path, "kind": "cron", "cron": DAILY_CRON}
    made = [Schedule(name=name, args=args, kwargs=kwargs, **common) for name, args, kwargs in STORED]
    if how == "save":
        for row in made:
            row.save()
    elif how == "bulk_create":
        Schedule.objects.bulk_create(made)
    else:
        boss = client_for(superuser=True)
        for row in made:
            typed = {
                "args": json.dumps(row.args, ensure_ascii=False),
                "kwargs": json.dumps(row.kwargs, ensure_ascii=False),
            }
            response = boss.post(ADD, fields(name=row.name, task=row.task, cron=row.cron, timezone="UTC", **typed))
            assert response.status_code == 302, errors(response)
    for row in Schedule.objects.all():
        make_due(broker, row)
    run_burst()
    assert list(Run.objects.values_list("status", flat=True)) == ["succeeded"] * len(STORED)
    wanted = [json.dumps([args, kwargs], sort_keys=True) for _, args, kwargs in STORED]
    assert sorted(json.dumps(call, sort_keys=True) for call in RECEIVED) == sorted(wanted)
    report(f"F27 stored by {how}", histories_of(Schedule.objects.all()), traced=False)


def test_f27_the_form_takes_back_what_it_shows_of_arguments_that_were_stored(broker):
    """It shows them indented, which takes more room than they do."""
    row = Schedule.objects.create(
        name="s", task=receive.module_path, kind="cron", cron=DAILY_CRON, args=[[n % 10] for n in range(10_000)]
    )
    boss = client_for(superuser=True)
    form = boss.get(change_url(row)).context["adminform"].form
    typed = form.fields["call"].widget.shown.data["args"]
    assert len(typed.encode()) > MAX_ARGUMENT_BYTES
    response = boss.post(change_url(row), fields(task=row.task, cron="1 1 * * *", timezone="UTC", args=typed))
    assert response.status_code == 302, errors(response)
    row.refresh_from_db()
    assert (row.cron, row.args) == ("1 1 * * *", [[n % 10] for n in range(10_000)])
