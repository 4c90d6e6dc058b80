"""Tasks of these tests."""

from datetime import UTC, datetime, timedelta

from django.contrib.auth.models import Group
from django.db import IntegrityError, transaction
from django.utils.timezone import is_naive, localtime, now

from django_delayq.calls.compat import TaskContext, task
from django_delayq.models import Schedule

COMMITTED: list[str] = []
RUNNER = None


def _shown(moment) -> str:
    return moment.astimezone(UTC).isoformat()


@task
def what_time() -> list[str]:
    """Tell the time, by a name that was imported long ago."""
    local = now() if is_naive(now()) else localtime()
    return [_shown(now()), _shown(local)]


@task
def nested() -> None:
    """Run what is due."""
    RUNNER.run_due()


@task
def after_commit(text: str) -> str:
    """Have something done after the commit, with and without a transaction of its own."""
    transaction.on_commit(lambda: COMMITTED.append(text))
    with transaction.atomic():
        transaction.on_commit(lambda: COMMITTED.append(text.upper()))
    return text


@task
def spoil(catches: bool) -> str:
    """Break a rule of the database, outside of any block."""
    Group.objects.create(name="twins")
    try:
        Group.objects.create(name="twins")
    except IntegrityError:
        if not catches:
            raise
    return "caught"


@task
def plan(minutes: int) -> None:
    """Schedule something for later."""
    at = datetime.fromisoformat(what_time.call()[0]) + timedelta(minutes=minutes)
    Schedule.objects.create(name="planned", task="tests.app.tasks.noop", kind="once", at=at)


@task
def follow_up(text: str) -> None:
    """Enqueue another job."""
    after_commit.enqueue(text)


@task(takes_context=True)
def keys(context: TaskContext) -> list[object]:
    """Tell what the context knows."""
    return [context.idempotency_key, context.attempt, context.lease_lost]
