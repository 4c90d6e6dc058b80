"""Modules that the backend needs and that need models: imported when they are first used.

Note [Before the apps are loaded]
`@task` makes the backend as soon as a module with a task is imported, and a project may do that before Django's apps
are loaded, where no model can be imported: in an app's `apps.py`, say. Django's own backends allow it, so do we.
"""

from types import ModuleType


def durable() -> ModuleType:
    """Return `backend.durable`."""
    from . import durable as module

    return module


def ledger() -> ModuleType:
    """Return `ledger`."""
    from .. import ledger as module

    return module


def mirror() -> ModuleType:
    """Return `mirror`."""
    from .. import mirror as module

    return module
