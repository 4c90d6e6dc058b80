"""django-q2's table of schedules, filled by its own functions; points as it computes them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from django_q.models import Schedule as Theirs
from django_q.tasks import schedule

from django_delayq.models import Schedule
from tests.importing.conftest import START, imported, our_points

RIGA = ZoneInfo("Europe/Riga")
ADD, NOOP, GATHER = (f"tests.app.tasks.{name}" for name in ("add", "noop", "gather"))


@pytest.mark.parametrize("kind", ["I", "H", "D", "W", "BW", "M", "BM", "Q", "Y"])
@pytest.mark.parametrize("first", [START, datetime(2027, 2, 28, 21, 15, 30, tzinfo=UTC)])
def test_the_points_are_those_of_django_q2(kind, first):
    row = schedule(NOOP, name="s", schedule_type=kind, minutes=25, next_run=first)
    assert imported("django-q2", write=True)[""]
    points = [first]
    while len(points) < 10:
        points.append(row.calculate_next_run(points[-1]))
    ours = our_points("s", first - timedelta(seconds=1))
    if kind == "BW":  # its hour moves with the clocks here, which the table says
        before = [point for point in points if point < datetime(2027, 3, 28, 1, tzinfo=UTC)]
        assert ours[: len(before)] == before and len(before) > 1
        return
    assert ours == points


@pytest.mark.parametrize(
    "cron", ["0 22 * * 1-5", "*/10 * * * *", "30 4 1,15 * 5", "0 0 */2 * 1", "0 12 1 * */2", "15 10 L * *",
             "0 9 * * 5#2", "0 9 * * L5", "5 4 * * sun", "0 0 1-31 * 1", "0 8-18/2 * jan-mar mon", "5/15 1 * * *",
             "0 0 13 * 5", "0 0 1-31 * */2", "0 0 */1 * 1", "30 8 15 * 1#3", "0 6 15W * 1",
             "0 6 L * 1"],
)  # fmt: skip
def test_the_points_of_a_cron_expression_are_those_of_croniter(cron):
    schedule(NOOP, name="s", schedule_type="C", cron=cron)
    assert imported("django-q2", write=True)[""]
    own = croniter(cron, START.astimezone(RIGA))
    assert our_points("s") == [own.get_next(datetime).astimezone(UTC) for _ in range(10)]


@pytest.mark.parametrize("first", [datetime(2027, 1, 31, 10, tzinfo=UTC), datetime(2027, 2, 28, 23, tzinfo=UTC)])
def test_a_day_that_months_do_not_have_is_refused_as_it_would_move(first):
    row = schedule(NOOP, name="s", schedule_type="M", next_run=first)
    after = row.calculate_next_run(first)
    assert [after.day, row.calculate_next_run(after).day] == [28, 28]
    found = imported("django-q2", write=True)
    assert (
        found["s"]["action"] == "refuse"
        and "moves it to an earlier day, and keeps that" in found["s"]["reason"]
        and not found[""]
    )


def test_arguments_and_options_come_over_or_are_named():
    soon = datetime.now(UTC) + timedelta(hours=3)
    schedule(ADD, 2, b=3, name="a", schedule_type="O", next_run=soon, hook="tests.app.tasks.noop")
    schedule(
        ADD,
        2,
        name="b",
        schedule_type="I",
        minutes=5,
        repeats=24,
        q_options={"timeout": 30, "group": "g"},
        cluster="mail",
    )
    Theirs.objects.create(func=ADD, args="7", schedule_type="H", next_run=soon)
    Theirs.objects.create(func=ADD, name="d", kwargs="a=1, b=2", schedule_type="H", next_run=soon)
    Theirs.objects.create(
        func=GATHER,
        name="e",
        kwargs="{'first': 1, 'b': [2]}",
        schedule_type="D",
        next_run=soon,
        intended_date_kwarg="x",
    )
    Theirs.objects.create(func=NOOP, name="f", schedule_type="D", repeats=0, next_run=soon)
    Theirs.objects.create(func=ADD, name="g", args="open('x')", schedule_type="D", next_run=soon)
    Theirs.objects.create(func=ADD, name="h", args="(b'bytes',)", schedule_type="D", next_run=soon)
    Theirs.objects.create(func="math.copysign", name="i", args="2, -2", schedule_type="D", next_run=soon)
    Theirs.objects.create(func=NOOP, name="j", schedule_type="O", next_run=soon - timedelta(days=1))
    found = imported("django-q2", write=True)
    actions = {name: entry["action"] for name, entry in found.items() if name}
    unnamed = next(name for name in actions if name.startswith(ADD))
    assert actions == {
        "a": "create", "b": "create", unnamed: "create", "d": "create", "e": "create", "f": "skip",
        "g": "refuse", "h": "refuse", "i": "refuse", "j": "refuse",
    }  # fmt: skip
    made = {row.name: row for row in Schedule.objects.all()}
    assert (made["a"].kind, made["a"].args, made["a"].kwargs) == ("once", [2], {"b": 3})
    assert any("hook" in note for note in found["a"]["notes"])
    second = made["b"]
    assert (second.max_runs, second.timeout, second.queue, second.missed) == (24, timedelta(seconds=30), "mail", "all")
    assert (made[unnamed].args, made["d"].kwargs, made["e"].kwargs) == ([7], {"a": 1, "b": 2}, {"first": 1, "b": [2]})
    assert any("intended_date_kwarg" in note for note in found["e"]["notes"])
    assert "JSON" in found["h"]["reason"]
    assert found["g"]["reason"] == "Its arguments are not Python literals. Correct them there."  # they may be secret
