"""Day fields of other dialects in ours: the same days, or a refusal. And what a command of a crontab does."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.importing.crons import from_croniter, from_crontab_package, joined, spelled
from django_delayq.importing.crontab import _read_command
from django_delayq.importing.entry import Refused
from django_delayq.timing.dialect import compile_cron
from django_delayq.timing.fields import ORDINAL_OF_DAY_ZERO


def days_of(expression, start=date(2027, 1, 1), count=400):
    """Return the days on which an expression runs."""
    fields = compile_cron(expression, "x")
    numbers = range(start.toordinal() - ORDINAL_OF_DAY_ZERO, start.toordinal() - ORDINAL_OF_DAY_ZERO + count)
    return {date.fromordinal(day + ORDINAL_OF_DAY_ZERO) for day in numbers if fields._first_day(day) == day}


@given(st.sets(st.integers(1, 31), min_size=1), st.sets(st.integers(0, 6), min_size=1), st.booleans())
def test_days_mean_what_they_meant(days, weekdays, both):
    fields = ["0", "0", spelled(3, days), "*", spelled(5, weekdays)]
    start = date(2027, 1, 1)
    stars = "*" in (fields[2], fields[4])
    wanted = set()
    for number in range(400):
        day = start + timedelta(number)
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        if (by_day and by_weekday) if both or stars else (by_day or by_weekday):
            wanted.add(day)
    try:
        assert days_of(joined(fields, both=both)) == wanted
    except Refused as error:
        assert both and 1 not in days and 0 not in weekdays and "either matches" in str(error)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0 9 * * 1-5", "0 9 * * 1-5"),
        ("@daily", "@daily"),
        ("0 0 */2 * 1", "0 0 1-31/2 * 1"),
        ("0 0 * * L5", "0 0 * * 5L"),
        ("0 0 * * sat-sun", "0 0 * * SAT-7"),
        ("*/5 * * * * 30", "30 */5 * * * *"),
        ("0 0 ? * 1", "0 0 * * 1"),
    ],
)
def test_croniter_s_dialect_becomes_ours(text, wanted):
    assert from_croniter(text) == wanted


@pytest.mark.parametrize("text", ["", "1 2 3", "61 * * * *", "* * * * * * 2030", "0 0 31 2 *", "0 0 99-99 * *"])
def test_what_is_no_expression_is_refused(text):
    for read in (from_croniter, from_crontab_package):
        with pytest.raises((Refused, InvalidRecurrence)):
            read(text)


def test_a_range_from_a_value_to_itself_is_another_thing_to_croniter():
    with pytest.raises(Refused, match="every value to croniter, and fri alone"):
        from_croniter("0 0 * * fri-fri")


def test_the_package_crontab_takes_both_days():
    assert from_crontab_package("0 0 1-7 * 1") == "0 0 */31,1-7 * 1"
    assert from_crontab_package("0 0 8-14 * 2 *") == "0 0 * * 2#2"
    with pytest.raises(Refused, match="year"):
        from_crontab_package("0 0 1 * * 2030")


def test_numbers_keep_the_text_that_says_the_same():
    assert spelled(1, {0, 15, 30, 45}, "*/15") == "*/15"
    assert spelled(2, {22, 23, 0, 1}, "22-1") == "0-1,22-23"
    assert spelled(5, {1, 3, 5}, "*/2") == "1,3,5"
    assert spelled(5, {0, 7}) == "0"
    assert spelled(4, range(1, 13)) == "*"


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("python manage.py clearsessions", ["clearsessions"]),
        ("/srv/v/bin/python3.12 /srv/shop/manage.py send --days=3 'two words'", ["send", "--days=3", "two words"]),
        ("cd /srv/shop && ./manage.py send >> /var/log/send.log 2>&1", ["send"]),
        (". /srv/env; cd /srv && DJANGO_SETTINGS_MODULE=shop.live django-admin send &> /dev/null", ["send"]),
        ("flock -n /tmp/lock nice -n 10 python -m django send", ["send"]),
        ("uv run manage.py send -v 0 >/dev/null", ["send", "-v", "0"]),
    ],
)
def test_a_management_command_is_found(command, args):
    call = _read_command(command)
    assert (list(call.args), call.reason) == (args, "")
    assert call.overlap == ("skip" if "flock" in command else "allow")


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/backup.sh", "python manage.py dump | gzip > x", "python manage.py a && python manage.py b",
        "python manage.py a; rm x", "python manage.py mail $HOME", "python manage.py mail `date`",
        "ssh other python manage.py a", "python manage.py", "python manage.py --help", "echo 'unfinished",
        "(cd /srv && python manage.py a)", "python manage.py a < x",
    ],
)  # fmt: skip
def test_what_needs_a_shell_is_no_management_command(command):
    call = _read_command(command)
    assert not call.args and call.reason
