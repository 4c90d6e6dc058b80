"""Fixtures of the security tests: those of the admin's tests."""

from tests.integration.conftest import boss

__all__ = ["boss"]
