"""An item in Wagtail's menu that leads to the admin's page "At a glance". Wagtail imports this; nothing else does."""

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse, reverse_lazy
from django.utils.translation import gettext_lazy as _
from wagtail import hooks
from wagtail.admin.menu import MenuItem

PAGE = "admin:django_delayq_overview_changelist"


class SchedulesItem(MenuItem):  # type: ignore[misc]
    """Shown to users with `view_schedule`, if the project's URLs include Django's admin."""

    def is_shown(self, request: HttpRequest) -> bool:
        try:
            return bool(reverse(PAGE)) and request.user.has_perm("django_delayq.view_schedule")
        except NoReverseMatch:
            return False


@hooks.register("register_admin_menu_item")  # type: ignore[untyped-decorator]
def build_menu_item() -> SchedulesItem:
    return SchedulesItem(_("Schedules"), reverse_lazy(PAGE), name="django-delayq", icon_name="time", order=9000)
