"""What was read of Redis and the database at one instant, and the form of a problem. Reads nothing itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from django.db import DatabaseError, InterfaceError
from django.utils.translation import gettext as _

from .. import conf
from ..exceptions import BrokerError
from ..index.connection import DamagedKeys
from ..ledger.bulk import MissingTables
from ..models import Control
from ..sync.pruning import LastPass
from ..text import redact_text
from .database_side import Comparison, Named, StateCounts
from .minutes import Load, Row
from .redis_side import RedisView

Answer = TypeVar("Answer")

#: Exit status if nothing is wrong, if something is, and if Redis or the database could not be read.
FINE: Final = 0
WRONG: Final = 1
BLIND: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """A stable code, one line of text that includes the fix, the exit status, and what it concerns.

    `subject` is the primary key of one schedule, pause or limit, `name` its name. `tone` is `bad`, `warn` or `quiet`.
    """

    code: str
    message: str
    status: int = WRONG
    queue: str = ""
    subject: str = ""
    name: str = ""
    tone: str = "bad"

    @property
    def is_wrong(self) -> bool:
        return self.status != FINE


@dataclass(slots=True)
class Snapshot:
    """What Redis and the database say; None if not read in time (see `blind`). Counts have limits: `database_side`."""

    redis: RedisView | None = None
    comparison: Comparison | None = None
    #: The kind of the database, '' if it does not answer.
    vendor: str = ""
    states: StateCounts | None = None
    #: Failed jobs by queue, among the newest failures.
    failed_jobs: Mapping[str, int] | None = None
    #: Pauses and limits in force.
    held_back: Sequence[Control] | None = None
    #: Enabled schedules whose task no installed app has; one name for each task.
    unknown_tasks: Named | None = None
    late: Named | None = None
    #: Counts of the last hour, and the load of its last minutes.
    rows: Sequence[Row] | None = None
    load: Load | None = None
    #: Only with a deadline: schedules whose TASKS backend rejects their task, open runs by status, the last pruning.
    refused: Named | None = None
    open_runs: dict[str, int] | None = None
    pruned: LastPass | None = None
    #: By code: why a side was not read.
    blind: dict[str, Problem] = field(default_factory=dict)
    #: What is wrong, then what is worth knowing.
    problems: Sequence[Problem] = ()

    def attempt(self, question: Callable[[], Answer]) -> Answer | None:
        """Return the answer; if Redis or the database fails, note the problem and return None."""
        try:
            return question()
        except (BrokerError, DatabaseError, InterfaceError, MissingTables) as error:
            self.note(explain_failure(error))
            return None

    def note(self, problem: Problem) -> None:
        """Keep the first problem of each code."""
        self.blind.setdefault(problem.code, problem)


def explain_failure(error: Exception) -> Problem:
    """Return the problem for an error, in one line without credentials."""
    reason = redact_text(" ".join(str(error).split()) or type(error).__name__).rstrip(". ?")
    if isinstance(error, DamagedKeys):
        text = _("%(error)s. A running worker deletes it and rebuilds within seconds; if none runs, start one.")
        return Problem("redis_unfit", text % {"error": reason})
    if isinstance(error, BrokerError):
        text = _("%(error)s. Start Redis, or correct its address: the alias %(alias)s in CACHES.")
        return Problem("redis_unreachable", text % {"error": reason, "alias": conf.get_config().redis}, BLIND)
    if isinstance(error, MissingTables):
        return Problem("database_unreachable", reason, BLIND)
    text = _(
        "The database cannot be used: %(error)s. Start it, or correct DATABASES; after an "
        "upgrade run: manage.py migrate"
    )
    return Problem("database_unreachable", text % {"error": reason}, BLIND)
