import pytest
from django.test import override_settings
from tests.app import tasks
from tests.jobs import tasks as jobtasks
from tests.jobs.support import run, row, Standing
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)

def test_one(broker):
    result = tasks.add.enqueue(1, b=2)
    print(result.id, Standing(result).view)
    run(result)
    print(result, row(result).__dict__)
    assert result.return_value == 3

def test_fail(broker):
    result = tasks.fail.enqueue("x")
    run(result)
    print(result.errors)
    assert str(result.status) == "FAILED"

def test_ctx(broker):
    result = jobtasks.tell.enqueue(1)
    run(result)
    print(result.return_value)

def test_many(broker):
    results = jobtasks.echo.enqueue_many([([i], {}) for i in range(500)])
    run_burst()
    results[7].refresh(); assert results[7].return_value == [[7], {}]
def test_cancel(broker):
    from datetime import timedelta
    result = tasks.add.using(run_after=timedelta(hours=1)).enqueue(1)
    b = result.task.get_backend()
    assert b.reschedule(result.id, timedelta(hours=2))
    print(Standing(result).view)
    assert b.cancel(result.id)
    result.refresh(); print(result)
    assert Standing(result).gone()
    assert b.retry(result.id)
    run(result); assert result.return_value == 2
