"""NUL and halves of surrogate pairs, which no database stores, in every parameter of every page and command: refused
in words. PostgreSQL answers NUL with an error, so this is worth the most there.
"""

import argparse
import io
from collections import Counter
from itertools import product

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import DisallowedModelAdminLookup
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, load_command_class
from django.db import OperationalError, connection
from django.db.models import DateTimeField, Field, IntegerField
from django.template.response import SimpleTemplateResponse
from django.test import Client, RequestFactory
from django.urls import NoReverseMatch, reverse

from django_delayq.calls.validators import is_storable
from django_delayq.models import Schedule
from tests.integration.admin_pages import client_for, texts
from tests.integration.conftest import boss
from tests.security.test_admin_walk import NAMES, addresses, everything, jobs, model_of, post_values, row, run

__all__ = ["boss", "jobs", "row", "run"]
pytestmark = pytest.mark.django_db(transaction=True)

UNSTORABLE = ("\0", "a\0b", "\ud800", "\udfff", "x\udc80")
#: What Django's lists take beside the filters.
OF_LISTS = ("q", "o", "p", "all", "e", "_popup", "_to_field", "_changelist_filters", "_facets", "state", "id")
OF_PAGES = ("start_0", "start_1", "end_0", "end_1", "_popup", "_changelist_filters", "name", "task")
#: An action that deletes nothing.
OF_ACTIONS = {"action": "pause", "reason": "because", "apply": "1"}
SAID = "A text must not contain NUL or half of a surrogate pair. Nothing was changed."
COMMANDS = ("delayq_worker", "delayq_sync", "delayq_status")


#: The filters of each list, as they stand in its address.
FILTERS = {
    f"django_delayq_{model._meta.model_name}_changelist": [
        getattr(each, "parameter_name", each[0] if isinstance(each, tuple) else f"{each}__exact")
        for each in model_admin.list_filter
    ]
    for model, model_admin in admin.site._registry.items()
    if model._meta.app_label == "django_delayq"
}


def parameters(name):
    """Return what may stand in the address of a page; a list is filtered by any of its columns too."""
    if name not in FILTERS:
        return OF_PAGES
    model = apps.get_model("django_delayq", model_of(name))
    columns = [field.attname for field in model._meta.concrete_fields]
    return sorted({*OF_LISTS, *FILTERS[name], *columns, *(f"{column}__startswith" for column in columns)})


@pytest.mark.parametrize(
    ("text", "wanted"), [*((text, False) for text in UNSTORABLE), ("", True), ("\u20ac\U0001f600", True)]
)
def test_what_every_database_stores(text, wanted):
    assert is_storable(text) is wanted


@pytest.mark.everything
def test_in_the_address_of_any_page_it_is_refused_in_words(boss, broker, row, run, jobs):
    before = everything(broker)
    for name, address in addresses(row, run, *jobs):
        if name == "app_list":  # Django's own, which takes nothing
            continue
        for query in [{parameter: "a\0b"} for parameter in parameters(name)] + [{"\0": "1"}]:
            page = boss.get(address, query)
            assert (page.status_code, page["Location"]) == (302, address), (name, query)
        assert boss.post(f"{address}?q=%00", post_values(name, row, *jobs))["Location"] == address
    page = boss.get(reverse("admin:django_delayq_run_changelist"), {"queue": "\0"}, follow=True)
    assert texts(page)[-1] == SAID
    assert everything(broker) == before


def test_half_of_a_surrogate_pair_in_the_address_of_a_list_is_none(boss, row, run):
    """Django replaces what is no UTF-8 before anybody sees it."""
    for name, filters in FILTERS.items():
        for parameter in filters:
            page = boss.get(f"{reverse(f'admin:{name}')}?{parameter}=%ED%A0%80")
            assert page.status_code in (200, 302, 400), (name, parameter)


def unseen(response):
    """Leave the page empty instead of rendering it."""
    response.content = b""
    return response


@pytest.mark.everything
def test_in_any_field_that_is_posted_it_is_refused_and_writes_nothing(boss, broker, row, run, jobs, monkeypatch):
    """Each alone, so that no other field's refusal hides it. A large form is rendered once, with all of them."""
    for name, address in addresses(row, run, *jobs):
        values = {**post_values(name, row, *jobs), **(OF_ACTIONS if name.endswith("_changelist") else {})}
        if "delete" in name:  # takes nothing, and deletes
            continue
        in_json = ['["\\ud800"]', '{"\\u0000": "\\udc80"}']
        bad = {field: in_json if field in ("args", "kwargs") else ["a\0b"] for field in values}
        page = boss.post(address, {field: texts[-1] for field, texts in bad.items()})
        assert page.status_code in (200, 302, 403, 405), name
        with monkeypatch.context() as patched:
            if name.endswith(("_add", "_change")):
                patched.setattr(SimpleTemplateResponse, "render", unseen)
            for field, text in ((field, text) for field, texts in bad.items() for text in texts):
                page = boss.post(address, {**values, field: text})
                assert page.status_code in (200, 302, 403, 405), (name, field, text)
    assert Schedule.objects.count() > 1, "what is left of them was written"
    written = [text for rows in everything(broker)[0].values() for each in rows for text in map(str, each.values())]
    assert [text for text in written if not is_storable(text)] == []


@pytest.mark.everything
@pytest.mark.parametrize("text", ["\0", "1\0", "default.\0", f"default.{'A' * 21}\0"])
def test_in_the_path_of_any_page_it_is_none_that_is_there(boss, broker, row, text):
    before = everything(broker)
    for name in NAMES:
        try:
            address = reverse(f"admin:{name}", args=[quote(text)])
        except NoReverseMatch:  # it takes a number, or nothing
            continue
        for method in (boss.get, boss.post):
            page = method(address, follow=True)
            assert page.status_code in (200, 403, 404, 405), name
    assert everything(broker) == before


def test_who_may_not_see_a_page_is_told_no_more_than_before(broker, row, run, jobs):
    for name, address in addresses(row, run, *jobs):
        page = Client().get(f"{address}?queue=%00")
        assert page["Location"].startswith("/admin/login/"), name
    stranger = client_for()
    page = stranger.get("/admin/django_delayq/run/?queue=%00", follow=True)
    assert page.status_code == 403
    assert model_of("django_delayq_run_changelist") == "run"


def options_of(name):
    """Return everything that a command takes a value for, '' for what is no option."""
    parser = argparse.ArgumentParser(add_help=False)
    load_command_class("django_delayq", name).add_arguments(parser)
    return ["".join(action.option_strings) for action in parser._actions if action.nargs != 0]


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in COMMANDS for option in options_of(name)])
def test_in_any_argument_of_any_command_it_is_refused_in_words(row, name, option):
    others = {"delayq_status": [row.name] if option else [], "delayq_worker": ["--burst"]}.get(name, [])
    for text in UNSTORABLE:
        with pytest.raises(CommandError) as refused:
            call_command(name, *others, f"{option}={text}" if option else text, stdout=io.StringIO())
        assert len(str(refused.value)) > 20


#: By the kind of a column: lookups, and values that no column can be compared with.
BEYOND = {
    DateTimeField: (
        ("", "__gte", "__date", "__range"),
        ("0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00-23:59", "9999-12-31T23:59:59-00:01", "x"),
    ),
    IntegerField: (("", "__gt", "__in"), ("9" * 20, "nan", "1e999")),
    Field: (("", "__gte", "__regex", "__range"), ("9" * 20, "-1", "(")),
}
YEARS = [*product(("__year", "__year__gte", "__date__year", "__iso_year"), ("0", "-1", "10000", "9" * 20))]


def beyond():
    for model, model_admin in admin.site._registry.items():
        for field in model._meta.concrete_fields if model._meta.app_label == "django_delayq" else ():
            lookups, values = next(found for kind, found in BEYOND.items() if isinstance(field, kind))
            years = YEARS if isinstance(field, DateTimeField) else ()
            for lookup, value in (*product(lookups, values), *years):
                yield model_admin, field.name + lookup, value


@pytest.mark.everything
def test_a_list_refuses_what_no_column_can_be_compared_with(boss, row, run):
    user, outcomes = User.objects.get(), Counter()
    for model_admin, lookup, value in beyond():
        request = RequestFactory().get("/", {lookup: value})
        request.user = user
        try:
            model_admin.get_changelist_instance(request)
        except (IncorrectLookupParameters, DisallowedModelAdminLookup) as refused:
            outcomes[type(refused)] += 1
        else:
            outcomes["a list"] += 1
    assert len(outcomes) == 3
    page = boss.get(reverse("admin:django_delayq_run_changelist"), {"due_at__year": "0"})
    assert page["Location"].endswith("?e=1")


def test_a_list_whose_database_does_not_answer_blames_no_address(boss, row):
    def away(*call):
        raise OperationalError("gone")

    request = RequestFactory().get("/", {"name": "x"})
    request.user = User.objects.get()
    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        admin.site._registry[Schedule].get_changelist_instance(request)
