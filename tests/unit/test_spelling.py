"""What is offered for a name that is not known."""

import pytest

from django_delayq.text import suggest_name


@pytest.mark.parametrize(
    ("name", "known", "offered"),
    [
        ("shop.tasks.boom", ["shop.tasks.slow", "shop.tasks.noop"], ""),
        ("shop.tasks.slwo", ["shop.tasks.slow", "shop.tasks.noop"], " Did you mean 'shop.tasks.slow'?"),
        ("shpo.tasks.slow", ["shop.tasks.slow"], " Did you mean 'shop.tasks.slow'?"),
        ("store.tasks.slow", ["shop.tasks.slow"], " Did you mean 'shop.tasks.slow'?"),
        ("THRADS", ["THREADS", "QUEUES"], " Did you mean 'THREADS'?"),
        ("x", [], ""),
    ],
)
def test_of_a_path_the_last_part_must_be_similar_too(name: str, known: list[str], offered: str) -> None:
    assert suggest_name(name, known) == offered
