"""Failpoints act on the passing they name, once, and do nothing where they are not asked for."""

import subprocess
import sys

import pytest

from tests import failpoints


def test_the_nth_passing_raises_and_no_other():
    reach = failpoints.prepare("after_ledger=raise@2, before_claim=sleep:0")
    reach("after_ledger")
    reach("after_claim")
    with pytest.raises(RuntimeError, match="after_ledger"):
        reach("after_ledger")
    reach("after_ledger")


@pytest.mark.parametrize("text", ["nowhere=kill", "after_ledger=explode", "after_ledger"])
def test_a_misspelt_one_is_refused(text):
    with pytest.raises(ValueError, match="known names"):
        failpoints.prepare(text)


@pytest.mark.parametrize(("action", "status"), [("kill", -9), ("exit", 1)])
def test_a_process_ends_at_its_failpoint(action, status):
    code = f"from tests import failpoints; failpoints.prepare('after_claim={action}')('after_claim'); print(1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, "")
