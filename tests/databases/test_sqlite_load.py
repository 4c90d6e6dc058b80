"""SQLite with two workers and people who save all the time: nobody is told that the database is locked.

DELAYQ_LOAD_ROUNDS=20 plays it longer. With the OPTIONS of the README, which are those of tests/settings.py.
"""

import json
import os
from collections import Counter
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test import Client

from django_delayq.models import Run, Schedule
from tests.acceptance.support import wait_until
from tests.faults.harness.background import Background
from tests.faults.harness.load import schedules
from tests.faults.harness.trace import Trace
from tests.faults.harness.verdict import decided
from tests.faults.harness.workers import Fleet
from tests.integration.admin_pages import ADD, LIST, change_url, client_for, fields

pytestmark = pytest.mark.django_db(transaction=True)
#: How often each person does each thing.
ROUNDS = int(os.environ.get("DELAYQ_LOAD_ROUNDS", "12"))
PEOPLE = 3


class Person(Background):
    """Edits, adds, pauses, resumes, orders and deletes in the admin without a break. Counts what it is answered."""

    def __init__(self, client: Client, name: str, pks: list[int]) -> None:
        super().__init__()
        client.raise_request_exception = False
        self.client, self.name, self.pks = client, name, pks
        self.answers: Counter[int] = Counter()
        self.wrong: list[str] = []

    def watch(self) -> None:
        """Go on until the end."""
        try:
            number = 0
            while not self.ended.is_set():
                number += 1
                self.once(number)
        except Exception as error:
            self.wrong.append(repr(error))
        finally:
            connections.close_all()

    def once(self, number: int) -> None:
        """Do one of each."""
        row = Schedule.objects.get(pk=self.pks[number % len(self.pks)])
        form = fields(
            name=row.name, cron="", kind="every", every="1s", task=row.task, description=str(number),
            timezone=row.timezone, kwargs=json.dumps(row.kwargs), missed=row.missed, overlap=row.overlap,
        )  # fmt: skip
        self.post(change_url(row), form)
        self.post(f"{LIST}{row.pk}/run-now/")
        self.post(ADD, fields(name=f"{self.name} {number}"))
        own = Schedule.objects.get(name=f"{self.name} {number}")
        self.post(f"{LIST}{own.pk}/pause/", {"reason": "why not"})
        self.post(f"{LIST}{own.pk}/resume/")
        self.post(f"{LIST}{own.pk}/delete/", {"post": "yes"})
        self.note(self.client.get(LIST))

    def post(self, url: str, data: dict[str, str] | None = None) -> None:
        """Send a form that must be taken."""
        answer = self.client.post(url, data or {})
        self.note(answer)
        if answer.status_code == 200:
            self.wrong.append(f"{url}: {answer.context['errors']}")

    def note(self, answer) -> None:
        """Count an answer."""
        self.answers[answer.status_code] += 1


def test_two_workers_and_people_who_save_all_the_time_never_find_the_database_locked(broker, tmp_path):
    if connection.vendor != "sqlite":
        pytest.skip("about SQLite")
    trace = Trace(tmp_path / "trace")
    histories = schedules(20, trace, missed="all", overlap="queue_all", every=timedelta(seconds=1))
    people = [
        Person(client_for(superuser=True), f"person {number}", [history.pk for history in histories[number::PEOPLE]])
        for number in range(PEOPLE)
    ]
    with Fleet(2, "--threads", "8", folder=tmp_path) as fleet:
        for person in people:
            person.__enter__()
        rounds = 6 * ROUNDS
        wait_until(lambda: all(person.wrong or person.answers[302] > rounds for person in people), what="all rounds")
        for person in people:
            person.__exit__()
        verdict = decided(histories, trace)
        assert fleet.stop() == [0, 0]
        logs = "".join(worker.log() for worker in fleet.workers)
    answers = sum((person.answers for person in people), Counter())
    print(f"{verdict.points} points, {answers} answers")
    assert not [wrong for person in people for wrong in person.wrong]
    assert set(answers) == {200, 302}, answers
    assert verdict.points > 0
    assert verdict.clean, verdict.complaints()
    assert set(Run.objects.finished().values_list("status", flat=True)) == {"succeeded"}
    assert "locked" not in logs
