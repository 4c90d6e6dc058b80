"""Refuses, for every page at once, to look for what no database stores: NUL and halves of surrogate pairs.

Django looks for whatever an address says, and PostgreSQL answers NUL with an error. What is typed into a form is
checked by its fields.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _

from ..validators import is_storable

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = object

View = Callable[..., HttpResponse]


class StorableQuestions(Base):
    """Leads back to the bare address, with a message, whatever the page and the method."""

    @property
    def urls(self) -> list[URLPattern]:
        """Check before each of the pages, and say nothing to whom the page asks to log in."""
        found = super().urls
        for pattern in found:
            pattern.callback = self._asked_well(pattern.callback)
        return found

    def _asked_well(self, view: View) -> View:
        @wraps(view)
        def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if self.admin_site.has_permission(request) and not _is_storable(request):
                text = _("NUL and half of a surrogate pair can be in no text here. Nothing was looked for or done.")
                self.message_user(request, text, messages.WARNING)
                return HttpResponseRedirect(request.path)
            return view(request, *args, **kwargs)

        return checked


def _is_storable(request: HttpRequest) -> bool:
    asked = [text for name, values in request.GET.lists() for text in (name, *values)]
    return all(map(is_storable, (*asked, *request.POST.getlist(ACTION_CHECKBOX_NAME))))
