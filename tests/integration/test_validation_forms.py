"""`full_clean()`, which forms and documented serializers call, refuses whatever `save()` refuses."""

import copy
from datetime import UTC, datetime, timedelta

import pytest
from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import models, transaction

from django_delayq.models import Control, Schedule
from django_delayq.models.columns import get_fields

pytestmark = pytest.mark.django_db
#: By the class of a field, what a form or serializer makes of input.
ODD = {
    models.CharField: ["", "x", "x" * 300, "a\0b", "\ud800"],
    models.TextField: ["a\0b", "\ud800"],
    models.JSONField: [1, "x", [], {}, ["a\0b"], {"a": "\ud800"}, [float("nan")]],
    models.IntegerField: [-(2**63), -1, 0, 2**15, 2**31, 2**63],
    models.DurationField: [timedelta(0), timedelta(seconds=-1), timedelta.max, timedelta.min, timedelta(days=10**6)],
    models.DateTimeField: [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    models.BooleanField: [True, False],
}
KINDS = {
    "cron": {"kind": "cron", "cron": "0 9 * * *"},
    "every": {"kind": "every", "every": timedelta(hours=1)},
    "once": {"kind": "once", "at": datetime(2100, 1, 1, tzinfo=UTC)},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(get_fields(Schedule)))
def test_what_save_refuses_is_a_validation_error_before(name, kind):
    found, field = [], get_fields(Schedule)[name]
    for value in [None, *next(values for wanted, values in ODD.items() if isinstance(field, wanted))]:
        row = Schedule(name="one", task="tests.app.tasks.noop", **KINDS[kind])
        setattr(row, name, value)
        formed = copy.copy(row)
        try:
            formed.full_clean()
        except ValidationError:
            continue
        except Exception as error:
            found.append(f"full_clean with {value!r}: {error!r}")
            continue
        try:
            with transaction.atomic():
                formed.save()
                raise KeyError
        except KeyError:
            pass
        except Exception as error:
            found.append(f"save with {value!r}: {error!r}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("typed", ["1.000", "1,000", "1.0"])
def test_no_number_in_a_form_of_the_admin_is_read_by_a_point_or_comma(rf, admin_user, typed):
    request = rf.get("/")
    request.user = admin_user
    found = set()
    for model, model_admin in admin.site._registry.items():
        for name, field in model_admin.get_form(request).base_fields.items() if model in (Schedule, Control) else ():
            if isinstance(field, forms.IntegerField) and not field.widget.is_hidden:
                found.add(name)
                assert field.clean("1000") == 1000
                with pytest.raises(ValidationError, match="digits only"):
                    field.clean(typed)
    assert found == {"max_runs", "max_catch_up", "max_attempts", "keep_last", "priority", "most"}
