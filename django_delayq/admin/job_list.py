"""The list of jobs in one state: a few questions, whose size does not grow with the number of jobs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from .. import conf, ledger
from ..backend import listing
from ..backend.listing import LISTED, JobState, JobTotals, Listing, SeenJob
from ..broker import Broker
from ..broker.web import ask
from ..exceptions import BrokerError, BrokerUnavailable, ForeignLayout
from ..jobs import Call, State
from ..models import RedisJob, explain_wait
from ..plain import plain
from ..redaction import redact_text, secret_texts
from .display import argument_line, parameters_of

#: What the address of the list may have beside filters.
OWN_PARAMETERS = ("state", "after")
#: So long a text may be looked for.
MOST_TYPED = 200
#: So much is read of a traceback before its last line: a secret may begin there.
MOST_READ = 2_000


class Words(NamedTuple):
    """What people call a state, the tone of its badge, and what its instant is about."""

    label: Any
    tone: str
    instant: Any


WORDS = {
    JobState.WAITING: Words(pgettext_lazy("job", "waiting"), "quiet", gettext_lazy("waits until {}")),
    JobState.READY: Words(pgettext_lazy("job", "ready"), "busy", gettext_lazy("ready since {}")),
    JobState.RUNNING: Words(pgettext_lazy("job", "running"), "good", gettext_lazy("with a worker since {}")),
    JobState.DEAD: Words(pgettext_lazy("job", "dead"), "bad", gettext_lazy("died {}")),
    JobState.ENDED: Words(pgettext_lazy("job", "succeeded"), "good", gettext_lazy("ended {}")),
}


def state_of(request: HttpRequest) -> JobState:
    """Return the state whose jobs a request's address asks for."""
    wanted = request.GET.get("state")
    return next((state for state in LISTED if state == wanted), JobState.WAITING)


def as_row(seen: SeenJob) -> RedisJob:
    """Return a job as a row of the admin, with what was `seen` of it."""
    row = RedisJob(id=seen.result_id or plain(f"{seen.shard.queue}.{seen.member}")[:200])
    row.title = row.id if seen.call is None else f"{plain(seen.call.task)} {row.id}"
    row.seen = seen  # type: ignore[attr-defined]
    return row


def find(wanted: str) -> RedisJob | None:
    """Return the job with this id, from the database where its row tells all, else from Redis.

    Raises:
        BrokerError, ForeignLayout: Redis cannot be asked.
    """
    seen = listing.find_stored(wanted)
    if seen is None and conf.get_config().mirror:
        seen = ask(lambda broker: listing.find_job(broker, wanted))
    return None if seen is None else as_row(seen)


def failure(error: Exception) -> str:
    """Return what a page says first where Redis could not be asked; why stands in the error itself."""
    if isinstance(error, ForeignLayout):
        return _("These are another project's jobs.")
    if isinstance(error, BrokerUnavailable):
        return _("Redis does not answer.")
    return _("Redis answers with an error.")


def searched(seen: SeenJob, *, arguments: bool) -> list[str]:
    """Return what of a job is looked into: its task, the class and the last line of its last error, its `arguments`.

    As they may be shown: whoever may not see a secret must not find it letter by letter.
    """
    if seen.call is None or seen.record is None:
        return []
    line = argument_line(seen.call.task, seen.call.args, seen.call.kwargs)[:MOST_READ] if arguments else ""
    return [seen.call.task, *error_of(seen.call, seen.record), line]


def error_of(call: Call, record: State) -> tuple[str, str]:
    """Return the class of the last error, and its last line as it may be shown; both are empty where none is kept."""
    path, trace = record.errors[-1] if record.errors else ("", "")
    trace = trace.rstrip()
    end = trace[max(0, trace.rfind("\n") - MOST_READ) :]
    return path, redact_text(end, secrets_of(call)).rpartition("\n")[2]


def secrets_of(call: Call) -> list[str]:
    """Return what no text about a job may show."""
    return secret_texts(call.args, call.kwargs, parameters_of(call.task))


class JobChangeList(ChangeList):
    """A page of jobs. `error` says that Redis was not read, `reason` why, to whoever may know that."""

    state = JobState.WAITING
    counts: JobTotals | None = None
    listing = Listing([])
    error = ""
    reason = ""
    #: Whether arguments are shown to this person, and looked into.
    arguments = False

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in OWN_PARAMETERS}

    def get_query_string(self, new_params: Mapping[str, Any] | None = None, remove: Any = None) -> str:
        """Begin at the first page whatever changes."""
        return super().get_query_string(new_params, [*(remove or []), "after"])  # type: ignore[arg-type]

    def get_results(self, request: HttpRequest) -> None:
        """Ask Redis for a page and the counts. A POST shows nothing and asks nothing."""
        page: Any = self.model_admin
        self.state, self.arguments = state_of(request), page.may_see_arguments(request)
        if request.method != "POST":
            self._ask(request)
        rows: list[Any] = [as_row(seen) for seen in self.listing.jobs]
        held = ledger.held_back() if rows and self.state in (JobState.WAITING, JobState.READY) else ()
        for row in rows:
            row.waits = explain_wait(held, (row.seen.shard.queue, row.seen.call.task if row.seen.call else ""))
        self.result_list: Any = rows
        self.result_count = len(rows)
        self.full_result_count, self.show_full_result_count = None, False
        self.show_admin_actions = bool(rows)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(rows, self.list_per_page)

    def _ask(self, request: HttpRequest) -> None:
        config = conf.get_config()
        wanted = request.GET.get("queue")
        queues = (wanted,) if wanted in config.queues else config.queues
        after = request.GET.get("after", "")

        def read(broker: Broker) -> tuple[JobTotals, Listing]:
            shards = listing.shards_of(broker, queues)
            counts = listing.count_jobs(broker, shards)
            return counts, self._listed(after, partial(listing.list_jobs, broker, shards, self.state))

        if config.mirror:
            try:
                self.counts, self.listing = ask(read)
                return
            except (BrokerError, ForeignLayout) as error:
                self.error = failure(error)
                self.reason = str(error) if self.model_admin.has_change_permission(request) else ""
        else:
            self.error = _("%(why)s: this process asks Redis nothing.") % {"why": _(conf.why_no_redis())}
        if self.state in (JobState.DEAD, JobState.ENDED):
            self.listing = self._listed(after, partial(listing.list_ended, self.state, queues))

    def _listed(self, after: str, read: Callable[..., Listing]) -> Listing:
        """Return a page, of what is looked for if a text was typed; see `listing.search`."""
        if not self.query:
            return read(size=self.list_per_page, after=after)
        wanted = self.query[:MOST_TYPED].casefold()
        return listing.search(
            lambda place: read(size=listing.SEARCH_PAGE, after=place),
            lambda seen: any(wanted in each.casefold() for each in searched(seen, arguments=self.arguments)),
            size=self.list_per_page,
            after=after,
        )

    @property
    def tabs(self) -> list[dict[str, Any]]:
        """The states with their numbers, each with its address."""
        *counts, more = self.counts or (None, None, None, None, False)
        kept = {name: self.params[name] for name in ("queue", SEARCH_VAR) if name in self.params}
        return [
            {
                "label": WORDS[state].label,
                "count": count,
                "more": more and state == JobState.DEAD,
                "address": f"?{urlencode({**kept, 'state': state.value})}",
                "current": state == self.state,
            }
            for state, count in zip(LISTED, [*counts, None], strict=True)  # nobody counts what has ended
        ]

    @property
    def next_page(self) -> str:
        return self.get_query_string({"after": self.listing.after}) if self.listing.after else ""

    @property
    def first_page(self) -> str:
        return self.get_query_string() if self.params.get("after") else ""
