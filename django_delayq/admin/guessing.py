"""Keeps what pages hide from being guessed by filters in the address of a list."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = object


class NoGuessing(Base):
    """Refuses lookups on columns that may hold secrets.

    Django takes `?kwargs__password__startswith=a` from whoever may see the list: it would tell the value, letter by
    letter, to somebody from whom every page hides it.
    """

    #: The columns whose values are shown with secrets hidden.
    hidden_columns: tuple[str, ...] = ()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Say whether a list may be filtered like this; where it may not, Django answers with 400."""
        return lookup.partition("__")[0] not in self.hidden_columns and super().lookup_allowed(lookup, value, request)
