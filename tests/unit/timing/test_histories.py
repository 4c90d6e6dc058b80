"""Whatever happens to a schedule, each of its points is decided, and none is decided twice."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from django_delayq.timing import Cron, Every, Once, Policies, Recurrence, Skip, Windowed

from .chain_model import Chain

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: A day before the end of summer time in Riga. At a full minute, because points, edits and claims at one and the same
#: instant are where mistakes are; so are most of the delays.
START = datetime(2026, 10, 24, 9, tzinfo=UTC)

RECURRENCES = [
    Cron("* * * * *", "Europe/Riga"),
    Cron("*/7 * * * *", "America/New_York"),
    Cron("0 * * * *", "Europe/Riga"),
    Cron("30 3,4 * * *", "Europe/Riga"),
    Cron("30 3 * * *", "Europe/Riga", dst_overlap="twice"),
    Cron("*/20 0-30 9-11 * * *"),
    Every(timedelta(seconds=97, milliseconds=250), START),
    Every(HOUR, START + 10 * MINUTE),
    Once(START + 5 * MINUTE),
    Windowed(Cron("* * * * *", "Europe/Riga"), end=START + 3 * HOUR),
]
POLICIES = st.builds(
    Policies,
    overlap=st.sampled_from(["skip", "queue_one", "queue_all", "allow"]),
    missed=st.sampled_from(["latest", "all", "skip"]),
    grace=st.sampled_from([None, None, timedelta(0), 10 * SECOND, HOUR]),
    catch_up_window=st.sampled_from([None, None, None, timedelta(0), MINUTE, HOUR]),
    max_catch_up=st.sampled_from([0, 1, 3, 100]),
    jitter=st.sampled_from([timedelta(0), timedelta(0), 5 * SECOND, 3 * MINUTE]),
    key=st.sampled_from(["", "report"]),
)
DELAYS = st.one_of(
    st.sampled_from([timedelta(0), SECOND, 30 * SECOND, MINUTE, 10 * MINUTE, HOUR]),
    st.integers(0, 240).map(lambda n: n * MINUTE / 2),
    st.timedeltas(timedelta(0), 10 * MINUTE),
    st.timedeltas(timedelta(0), 30 * HOUR),
)
#: Most workers live.
DEATHS = st.sampled_from(["", "", "", "recorded", "settled"])


class Histories(RuleBasedStateMachine):
    """One schedule, its workers, its editors and the time between."""

    @initialize(rule=st.sampled_from(RECURRENCES), policies=POLICIES)
    def create(self, rule: Recurrence, policies: Policies) -> None:
        self.now = START
        self.chain = Chain(rule, policies, START)

    @rule(delay=DELAYS)
    def wait(self, delay: timedelta) -> None:
        self.now += delay

    @precondition(lambda self: self.chain.is_due(self.now))
    @rule(dies=DEATHS)
    def claim(self, dies: str) -> None:
        self.chain.claim(self.now, dies)

    @precondition(lambda self: self.chain.running)
    @rule(delay=DELAYS)
    def finish(self, delay: timedelta) -> None:
        self.now += delay
        self.chain.finish(self.now)

    @precondition(lambda self: self.chain.running)
    @rule()
    def die_while_running(self) -> None:
        self.chain.die()

    @precondition(lambda self: self.chain.apart)
    @rule()
    def finish_one_that_was_handed_over(self) -> None:
        self.chain.finish_apart(self.now)

    @rule(recurrence=st.sampled_from(RECURRENCES))
    def edit_when(self, recurrence: Recurrence) -> None:
        self.chain.edit(recurrence, self.now)

    @rule(policies=POLICIES)
    def edit_policies(self, policies: Policies) -> None:
        self.chain.policies = policies

    @precondition(lambda self: not self.chain.running)
    @rule()
    def claim_as_long_as_something_is_due(self) -> None:
        """Deciding comes to an end while time stands still: at most four skips in a row."""
        skips = 0
        while self.chain.is_due(self.now):
            decision = self.chain.claim(self.now)
            skips = skips + 1 if isinstance(decision, Skip) else 0
            assert skips <= 4
            if self.chain.running:
                self.chain.finish(self.now)

    @invariant()
    def every_point_so_far_is_in_exactly_one_stretch(self) -> None:
        self.chain.check()

    def teardown(self) -> None:
        if not hasattr(self, "chain"):
            return
        if self.chain.running:
            self.chain.finish(self.now)
        self.now += self.chain.policies.jitter  # what fell due before an edit may still wait for its wake-up
        self.claim_as_long_as_something_is_due()
        self.chain.check()
        assert self.chain.nominal() == self.chain.decided


QUIET = settings(deadline=None, database=None, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])


class TestHistories(Histories.TestCase):  # type: ignore[misc]
    settings = settings(QUIET, max_examples=120)


@pytest.mark.everything
class TestManyHistories(Histories.TestCase):  # type: ignore[misc]
    settings = settings(QUIET, max_examples=400)


@pytest.mark.parametrize("recurrence", [Cron("* * * * *", "Europe/Riga"), Every(MINUTE, START)])
def test_a_weeks_outage_of_a_minutely_schedule_costs_two_claims_and_two_rows(recurrence: Recurrence) -> None:
    chain = Chain(recurrence, Policies(missed="latest"), START)
    now = START + 7 * DAY + 10 * SECOND
    while chain.is_due(now):
        chain.claim(now)
        if chain.running:
            chain.finish(now + SECOND)
    assert chain.claims == 2
    assert [(row.points, row.outcome) for row in chain.rows] == [(7 * 1440 - 1, "missed"), (1, "run")]
    assert chain.rows[-1].last == START + 7 * DAY
    assert chain.entry == START + 7 * DAY + MINUTE


def test_a_point_at_the_very_instant_of_an_edit_is_not_one_of_the_new_definition() -> None:
    chain = Chain(Cron("0 * * * *"), Policies(missed="latest"), START)
    chain.edit(Cron("* * * * *"), START + 70 * MINUTE)
    chain.claim(START + 100 * MINUTE)  # the point of 10:00, of the former definition, with those of 10:11 to 10:39
    assert [(row.points, row.outcome) for row in chain.rows] == [(30, "missed")]
    chain.check()
