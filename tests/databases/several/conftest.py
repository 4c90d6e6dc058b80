"""Fixtures of the tests with several databases."""

import pytest

from tests.integration.admin_pages import client_for


@pytest.fixture
def boss():
    """A client that may do everything."""
    return client_for(superuser=True)
