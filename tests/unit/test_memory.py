"""How much memory this process holds."""

import pytest

from django_delayq.worker.processes.process import _asked_of_ps, resident_mb


def test_the_memory_is_told_alike_by_the_kernel_and_by_ps():
    assert 10 < resident_mb() < 10_000
    assert _asked_of_ps() == pytest.approx(resident_mb(), rel=0.2)
