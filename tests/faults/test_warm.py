"""A forked process is as one that was started: its settings, its exit status. It does not outlive the tests."""

import os
import select
import subprocess
import sys

import pytest

from tests.acceptance.support import ROOT, command_environment
from tests.acceptance.warm import Forker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def forker(broker):
    own = Forker(command_environment({"DELAYQ_TEST_LOCK_SECONDS": "7", "DELAYQ_TEST_PREFIX": "of another"}), ROOT)
    yield own
    own.close()


def test_a_forked_process_has_the_settings_of_its_own_environment(forker, tmp_path):
    """All that Django and the configuration are told, as a command prints it."""
    command = ["shell", "-v0", "-c", PROGRAM]
    environment = command_environment({"DELAYQ_FAILPOINTS": "after_claim=kill@3"}, LEASE_SECONDS=17)
    with (tmp_path / "warm").open("wb") as output:
        assert forker.start(command, environment, output).wait() == 0
    cold = subprocess.run([sys.executable, "-m", "django", *command], env=environment, cwd=ROOT, capture_output=True)
    assert cold.returncode == 0
    assert (tmp_path / "warm").read_bytes() == cold.stdout
    assert b"lease_seconds=17" in cold.stdout


PROGRAM = """
import os, signal, sys
from django.conf import settings
from django.core.cache import caches
from django.db import connection
from django_delayq import conf
from tests import failpoints
print(conf.get_config(), connection.settings_dict, caches["default"]._server, failpoints.reach.__qualname__)
print([(name, getattr(settings, name)) for name in dir(settings) if name.isupper()])
print(sorted(os.environ.items()), sys.argv[1:], sys.orig_argv, os.getcwd(), sys.path)
print({number: str(signal.getsignal(number)) for number in signal.valid_signals()}, os.listdir("/proc/self/fd"))
"""


def test_nothing_that_was_forked_outlives_the_tests(forker, tmp_path):
    with (tmp_path / "output").open("wb") as output:
        process = forker.start(["delayq_worker"], command_environment(), output)
    watched = os.pidfd_open(process.pid)
    assert process.poll() is None
    forker.close()
    assert select.select([watched], [], [], 60)[0], "it lives on"
    os.close(watched)
    with pytest.raises(ConnectionError):
        process.wait()
