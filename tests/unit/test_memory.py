"""How much memory this process holds."""

import sys

import pytest

from django_delayq.worker.process import read_resident_mb


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel says it in /proc")
def test_the_memory_is_told_by_the_kernel():
    assert 10 < read_resident_mb() < 10_000
