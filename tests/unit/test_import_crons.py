"""Day fields of other dialects in ours: the same days, or a refusal. And what a command of a crontab does."""

import shutil
import subprocess
import tempfile
from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_delayq.exceptions import InvalidRecurrence
from django_delayq.recurrence.dialect import compile_cron
from django_delayq.recurrence.fields import ORDINAL_OF_DAY_ZERO
from django_delayq.sources.importing import ImportedEntry
from django_delayq.sources.importing.crons import convert_croniter, convert_crontab_package, join_fields, spell_field
from django_delayq.sources.importing.crontab import read_command as read_into
from django_delayq.sources.importing.entry import Refused


def days_of(expression, start=date(2027, 1, 1), count=400):
    """Return the days on which an expression runs."""
    fields = compile_cron(expression, "x")
    numbers = range(start.toordinal() - ORDINAL_OF_DAY_ZERO, start.toordinal() - ORDINAL_OF_DAY_ZERO + count)
    return {date.fromordinal(day + ORDINAL_OF_DAY_ZERO) for day in numbers if fields._find_first_day(day) == day}


@given(st.sets(st.integers(1, 31), min_size=1), st.sets(st.integers(0, 6), min_size=1), st.booleans())
def test_days_mean_what_they_meant(days, weekdays, both):
    fields = ["0", "0", spell_field(3, days), "*", spell_field(5, weekdays)]
    start = date(2027, 1, 1)
    stars = "*" in (fields[2], fields[4])
    wanted = set()
    for number in range(400):
        day = start + timedelta(number)
        by_day, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
        if (by_day and by_weekday) if both or stars else (by_day or by_weekday):
            wanted.add(day)
    try:
        assert days_of(join_fields(fields, both=both)) == wanted
    except Refused as error:
        assert both and 1 not in days and 0 not in weekdays and "it would match either" in str(error)


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
    assert convert_croniter(text) == wanted


@pytest.mark.parametrize("text", ["", "1 2 3", "61 * * * *", "* * * * * * 2030", "0 0 31 2 *", "0 0 99-99 * *"])
def test_what_is_no_expression_is_refused(text):
    for read in (convert_croniter, convert_crontab_package):
        with pytest.raises((Refused, InvalidRecurrence)):
            read(text)


def test_a_range_from_a_value_to_itself_is_another_thing_to_croniter():
    with pytest.raises(Refused, match="every value in croniter, but only fri here"):
        convert_croniter("0 0 * * fri-fri")


def test_the_package_crontab_takes_both_days():
    assert convert_crontab_package("0 0 1-7 * 1") == "0 0 */31,1-7 * 1"
    assert convert_crontab_package("0 0 8-14 * 2 *") == "0 0 * * 2#2"
    with pytest.raises(Refused, match="year"):
        convert_crontab_package("0 0 1 * * 2030")


def test_numbers_keep_the_text_that_says_the_same():
    assert spell_field(1, {0, 15, 30, 45}, "*/15") == "*/15"
    assert spell_field(2, {22, 23, 0, 1}, "22-1") == "0-1,22-23"
    assert spell_field(5, {1, 3, 5}, "*/2") == "1,3,5"
    assert spell_field(5, {0, 7}) == "0"
    assert spell_field(4, range(1, 13)) == "*"


def read_command(command: str) -> ImportedEntry:
    entry = ImportedEntry("x", values={"overlap": "allow"})
    read_into(entry, command, "sh", defaultdict(list))
    return entry


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("python manage.py clearsessions", ["clearsessions"]),
        ("/srv/v/bin/python3.12 /srv/shop/manage.py send --days=3 'two words'", ["send", "--days=3", "two words"]),
        ("cd /srv/shop && ./manage.py send >> /var/log/send.log 2>&1", ["send"]),
        (". /srv/env; cd /srv && DJANGO_SETTINGS_MODULE=shop.live django-admin send &> /dev/null", ["send"]),
        ("cd $HOME/shop && ~/v/bin/python -u -W ignore ~/shop/manage.py send >> $LOG", ["send"]),
        ("flock -n /tmp/lock nice -n 10 python -m django send", ["send"]),
        ("nice -10 ionice -c2 -n 7 timeout -k 5 1h env -i A=b python3 manage.py send", ["send"]),
        ("uv run manage.py send -v 0 >/dev/null", ["send", "-v", "0"]),
        ("uv --quiet run --env-file .env python manage.py send", ["send"]),
    ],
)
def test_a_management_command_is_found(command, args):
    call = read_command(command)
    assert (list(call.args), call.no_task) == (args, "")
    assert call.values["overlap"] == ("skip" if "flock" in command else "allow")


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/usr/bin/backup.sh", "A command is not a task"),
        ("python manage.py dump | gzip > x", "for '|'"),
        ("python manage.py a && python manage.py b", "for '&' in '&&'"),
        ("python manage.py a &", "for '&'"),
        ("(cd /srv && python manage.py a)", "for '('"),
        ("python manage.py a < x", "for '<'"),
        ("python manage.py mail $HOME", "for '$' in '$HOME'"),
        ('python manage.py mail "$HOME"', "for '$' in '$HOME'"),
        ("python manage.py mail `date`", "for '`'"),
        ("python manage.py mail ~/x", "for '~' in '~/x'"),
        ("python manage.py mail --to=~/x", "for '~'"),
        ("python manage.py mail *.txt", "for '*'"),
        ("python manage.py mail {a,b}", "for '{'"),
        ("python manage.py mail # but not now", "for '#'"),
        ("python manage.py mail >log x", "for '>'"),
        ("python manage.py mail 10>x", "for '>' in '10>x'"),
        ("python manage.py mail &>x y", "for '&' in '&>x'"),
        ("python manage.py mail >&x", "for '>' in '>&x'"),
        ("python manage.py mail >", "for '>'"),
        ("python manage.py mail a\\\\b", "for '\\\\'"),
        ("python manage.py mail a\\", "for '\\\\'"),
        ("echo 'unfinished", 'for "\'"'),
        ("ssh other python manage.py a", "ssh runs it"),
        ("timeout python manage.py a", "timeout runs it"),
        ("python3 -W ignore -m flake8 manage.py check", "python -m flake8 runs it"),
        ("nice --fast python manage.py a", "nice: option --fast not recognized"),
        ("python manage.py", "names no management command"),
        ("python manage.py --help", "names no management command"),
    ],
)
def test_what_needs_a_shell_is_no_management_command(command, why):
    call = read_command(command)
    assert not call.args and why in call.no_task
    assert command in call.no_task.replace("\\\\", "\\")


@pytest.mark.parametrize(
    ("options", "overlap", "note"),
    [
        ("", "queue_all", "waits while"),
        ("-n", "skip", "gives up"),
        ("--nonblock -E 0", "skip", "gives up"),
        ("-w 0", "skip", "gives up"),
        ("-nw 60", "skip", "gives up"),
        ("-w 60", "queue_one", "for 60 s"),
        ("--timeout=2.5", "queue_one", "for 2.5 s"),
        ("-s", "", "option -s not recognized"),
        ("-u", "", "option -u not recognized"),
        ("--fast", "", "option --fast not recognized"),
    ],
)
@pytest.mark.parametrize("command", ["python manage.py send", "-c 'python manage.py send > x'"])
def test_flock_waits_or_gives_up(options, overlap, note, command):
    call = read_command(f"flock {options} /tmp/lock {command}")
    assert (list(call.args), call.values["overlap"] if call.args else "") == (["send"] if overlap else [], overlap)
    assert note in (call.no_task or " ".join(call.notes))


#: What follows `python manage.py`, and the arguments that it means.
WORDS = {
    "purge --days=30 >>log": ["purge", "--days=30"],
    "purge --level '5' >log": ["purge", "--level", "5"],
    "purge --level 5 >log": ["purge", "--level", "5"],
    "purge --level 5 2>log": ["purge", "--level", "5"],
    "purge a >>log 2> err": ["purge", "a"],
    "purge a >'# log' 2>&1": ["purge", "a"],
    "purge &>log": ["purge"],
    "purge a 2>x &>> log": ["purge", "a"],
    "purge '' \"\" a''b \"c d\"'e f'g": ["purge", "", "", "ab", "c de fg"],
    r"""purge 'a\b' '*' "?" '{a,b}' '|' '> x'""": ["purge", "a\\b", "*", "?", "{a,b}", "|", "> x"],
    "purge\t--a  b\x0bc\rd\xa0e": ["purge", "--a", "b\x0bc\rd\xa0e"],
    "purge ! = % @ : ^ , + x=y": ["purge", "!", "=", "%", "@", ":", "^", ",", "+", "x=y"],
}


def shell_words(shell: str, line: str, folder: Path) -> list[str] | None:
    """Return what a shell passes to `python manage.py`; None where it starts nothing."""
    said = folder / "said"
    said.unlink(missing_ok=True)
    script = f"python() {{ shift; printf '%s\\0' \"$@\" > {said}; }}\n{line}\nwait\n"  # dash: &> is background
    subprocess.run([shell, "-c", script], cwd=folder, env={"PATH": ""}, capture_output=True, check=False)
    return said.read_bytes().decode().split("\0")[:-1] if said.exists() else None


SHELLS = [shell for shell in map(shutil.which, ("sh", "bash")) if shell]


@pytest.mark.parametrize("rest", WORDS)
def test_words_are_those_that_a_shell_passes(rest, tmp_path):
    line = f"python manage.py {rest}"
    assert list(read_command(line).args) == WORDS[rest]
    for shell in SHELLS:
        assert shell_words(shell, line, tmp_path) == WORDS[rest], shell


@given(st.text("ab13 \t'\"\\\\#>>&|;<$`*?[]{}~=:!-,.()\r\x0b%é", max_size=12))
def test_what_is_accepted_is_what_a_shell_passes(rest):
    line = f"python manage.py send {rest}"
    if args := read_command(line).args:
        with tempfile.TemporaryDirectory() as folder:
            for shell in SHELLS:
                assert shell_words(shell, line, Path(folder)) in (None, list(args)), shell
