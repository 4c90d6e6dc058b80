"""The backport of Django's tasks is taken under the names of every release that may be installed."""

import subprocess
import sys

import django
import pytest

#: Gives both exceptions one ending, whichever they have, after the backport's own modules have taken theirs.
RENAMED = """
from django.conf import settings
settings.configure(INSTALLED_APPS=[])
import django_tasks.backends.base, django_tasks.exceptions as exceptions
names, found = ("InvalidTask", "InvalidTaskBackend"), []
for name in names:
    found.append(exceptions.__dict__.pop(name, None) or exceptions.__dict__.pop(name + "Error"))
    setattr(exceptions, name + {ending!r}, found[-1])
from django_delayq.calls import compat
print([getattr(compat, name) for name in names] == found)
"""


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django 6 brings the framework itself")
@pytest.mark.parametrize("ending", ["Error", ""])  # up to django-tasks 0.12, and after it
def test_the_backports_exceptions_are_found_under_their_former_and_their_later_names(ending: str) -> None:
    told = subprocess.run([sys.executable, "-c", RENAMED.format(ending=ending)], capture_output=True, text=True)
    assert told.stdout == "True\n", told.stderr
