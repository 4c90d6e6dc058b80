"""Which tests a command plays, and that the default tier has a test with real processes of each family of faults."""

from types import SimpleNamespace

import pytest

from tests.conftest import TESTS, pytest_collection_modifyitems

#: The file that holds the smoke test of each family.
SMOKE = {
    "claim": "faults/test_f22_same_moment.py",
    "kill": "faults/test_f01_kill.py",
    "stop": "faults/test_f03_stop.py",
    "lost reply": "faults/test_f07_lost_reply.py",
    "database away": "faults/test_f08_cut_off.py",
    "Redis away and flushed": "faults/test_f10_flush.py",
    "edit": "faults/test_f19_transactions.py",
    "delete": "faults/test_f20_writes.py",
    "jobs": "acceptance/test_job_processes.py",
    "supervisor": "acceptance/test_supervisor.py",
    "somebody's test suite": "faults/test_f38_suites.py",
}


class Item:
    """A test that lies somewhere and has markers."""

    def __init__(self, path, *markers):
        self.path, self.markers = TESTS / path, {*markers}

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def add_marker(self, name):
        self.markers.add(name)


def played(*arguments, expression=""):
    """Return which tests a command plays, and the markers of all."""
    items = {
        "unit": Item("unit/test_words.py"),
        "sweep": Item("unit/test_words.py", "everything"),
        "kill": Item("faults/test_f01_kill.py"),
        "minutes": Item("faults/test_f01_kill.py", "long"),
        "smoke": Item("faults/test_f01_kill.py", "smoke"),
        "wheel": Item("acceptance/test_wheel.py"),
    }
    left_out = []
    config = SimpleNamespace(
        option=SimpleNamespace(markexpr=expression),
        args=arguments or ["tests"],
        invocation_params=SimpleNamespace(dir=TESTS.parent),
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
    )
    kept = list(items.values())
    pytest_collection_modifyitems(config, kept)
    assert {*kept, *left_out} == {*items.values()}
    assert len(kept) + len(left_out) == len(items)
    return {name for name, item in items.items() if item in kept}, {name: item.markers for name, item in items.items()}


def test_what_has_real_processes_is_in_the_second_tier_but_for_the_smoke_tests():
    _, markers = played()
    assert markers == {
        "unit": set(),
        "sweep": {"everything"},
        "kill": {"everything"},
        "minutes": {"everything", "long"},
        "smoke": {"smoke"},
        "wheel": {"everything"},
    }


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], {"unit", "smoke"}),
        (["tests"], {"unit", "smoke"}),
        (["."], {"unit", "smoke"}),
        (["tests/faults"], {"unit", "smoke", "kill"}),
        (["tests/unit/test_words.py::test_one[a-b]"], {"unit", "smoke", "sweep"}),
        (["tests/faults/test_f01_kill.py", "tests/unit"], {"unit", "smoke", "kill", "sweep"}),
    ],
)
def test_what_is_named_is_played_but_for_its_long_forms(arguments, wanted):
    assert played(*arguments)[0] == wanted


def test_an_expression_of_one_s_own_decides_alone():
    assert len(played(expression="not long")[0]) == len(played("tests/unit", expression="long")[0]) == 6


@pytest.mark.parametrize("family", SMOKE)
def test_each_family_of_faults_has_its_smoke_test(family):
    assert "mark.smoke" in (TESTS / SMOKE[family]).read_text()
