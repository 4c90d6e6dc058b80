"""Jobs read in pages: in the order of all shards together, each once, by reads that do not grow with their number."""

from math import inf

import pytest

from django_delayq.backend.listing import LISTED, Flaw, JobState, count_jobs, find_job, list_jobs, shards_of
from django_delayq.broker import Broker, Shard
from django_delayq.broker.job_pages import After, JobPages
from django_delayq.jobs import parse_id
from tests.app import tasks
from tests.integration.job_pages import LATER, build, claim, dead, forge, ready, waiting, where
from tests.support import run_burst

pytestmark = pytest.mark.django_db(transaction=True)
PLACES = [Shard("default", shard) for shard in range(5)]


def key(broker, place, part):
    return f"{{{broker.config.prefix}:{place}}}:{part}"


def seed(broker, scores, part="dead"):
    """Put (place, member, score) there, past the scripts; return them as members by their score."""
    for place, member, score in scores:
        broker.client.zadd(key(broker, place, part), {member: score})
    return scores


def walk(broker, size, newest_first=False, shards=PLACES):
    """Return the members of all pages; each page but the last is full."""
    pages, found, after = JobPages(broker), [], None
    while True:
        page = pages.ordered("dead", shards, size, after=after, newest_first=newest_first)
        found += [(row.shard, row.member) for row in page.rows]
        if page.after is None:
            return found
        assert len(page.rows) == size
        assert len(found) < 1000, "it comes to an end"
        after = After.parse(str(page.after))
        assert after == page.after


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("size", [1, 3, 10, 50])
@pytest.mark.parametrize("spread", ["even", "one shard has all of the first", "ties", "infinite"])
def test_pages_hold_each_job_once_in_the_order_of_all_shards(broker, size, newest_first, spread):
    count = 40
    shard_of = {
        "even": lambda n: PLACES[n % 5],
        "one shard has all of the first": lambda n: PLACES[3] if 5 < n < 35 else PLACES[n % 5],
        "ties": lambda n: PLACES[n % 3],
        "infinite": lambda n: PLACES[n % 4],
    }[spread]
    score_of = {"ties": lambda n: n // 15, "infinite": lambda n: inf if n > 30 else -inf if n < 7 else n}.get(
        spread, lambda n: n
    )
    made = seed(broker, [(shard_of(n), f"m{n:02}", score_of(n)) for n in range(count)])
    scores = {(place, member): score for place, member, score in made}
    found = walk(broker, size, newest_first)
    assert len(found) == count
    assert set(found) == set(scores)
    in_order = [scores[item] for item in found]
    assert in_order == sorted(in_order, reverse=newest_first)


def test_a_page_far_behind_reads_as_little_as_the_first_one(broker):
    for shard in range(5):
        broker.client.zadd(key(broker, PLACES[shard], "dead"), {f"m{n}": n // 100 for n in range(2000)})
    pages, asked = JobPages(broker), []
    original = pages._ranks

    def counted(part, spans, newest_first):
        asked.extend(count for _, _, count in spans)
        return original(part, spans, newest_first)

    pages._ranks = counted
    for after in (None, After(5.0, PLACES[2], 40), After(18.0, PLACES[4], 99)):
        asked.clear()
        page = pages.ordered("dead", PLACES, 50, after=after)
        assert len(page.rows) == 50
        assert sum(asked) < 5 * 51 * 2


def test_places_that_are_gone_and_nonsense_begin_at_the_first_page(broker):
    seed(broker, [(PLACES[0], "m", 1)])
    assert len(JobPages(broker).ordered("dead", PLACES, 5, after=After(9.0, Shard("other", 0), 3)).rows) == 1
    for text in ("", "x", "1~default:0", "nan~default:0~1", "1~default:0~-1", "1~a b:0~1", "1" * 500, "1.1.1~q:0~1"):
        assert After.parse(text) is None, text
    assert JobPages(broker).ordered("dead", [], 5).rows == []


def test_what_is_held_is_read_up_to_a_number(broker):
    broker.client.hset(key(broker, PLACES[1], "held"), mapping={f"m{n}": f"{n}.e w" for n in range(3000)})
    broker.client.hset(key(broker, PLACES[2], "held"), mapping={"n": "1.e w"})
    pages = JobPages(broker)
    found = pages.held(PLACES, 100)
    assert 100 <= len(found) < 1500
    assert len(set(pages.held(PLACES, 10**6))) == 3001


# -- what the service makes of it


@pytest.fixture(params=[1, 4])
def spread(request, settings):
    """A built prefix with one shard, and with several."""
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": request.param}
    made = Broker(timeout_seconds=5, worker="test")
    build(made)
    yield made
    made.close()


def ids(broker, state, size=100):
    places, found, after = shards_of(broker, ("default", "mail")), [], ""
    while True:
        listing = list_jobs(broker, places, state, size=size, after=after)
        found += [job.result_id for job in listing.jobs]
        if not listing.after:
            return found
        assert listing.after != after
        assert len(found) < 1000, "it comes to an end"
        after = listing.after


def test_each_state_lists_its_jobs_in_their_order(spread):
    broker = spread
    gone = [dead(broker) for _ in range(3)]
    held = [ready(n) for n in range(4)]
    for wanted in held:
        if find_job(broker, wanted).state == JobState.READY:
            claim(broker, wanted)
    later = [waiting(n, after=LATER * (n + 1), queue=("default", "mail")[n % 2]) for n in range(7)]
    turn = [ready(n) for n in range(4)]
    urgent = ready(priority=50)
    for size in (100, 2):
        assert ids(broker, JobState.WAITING, size) == later
        assert ids(broker, JobState.READY, size)[0] == urgent
        assert set(ids(broker, JobState.READY, size)) == {urgent, *turn}
        assert set(ids(broker, JobState.RUNNING, size)) == set(held)
        assert set(ids(broker, JobState.DEAD, size)) == set(gone)
    assert ids(broker, JobState.DEAD)[0] == gone[-1], "what died last comes first"
    assert count_jobs(broker, shards_of(broker, ("default", "mail"))) == (7, 5, 4, 3, False)
    assert count_jobs(broker, shards_of(broker, ("mail",))) == (3, 0, 0, 0, False)


def test_jobs_that_are_held_do_not_fill_the_pages_of_those_that_wait(broker):
    build(broker)
    held = [ready(n) for n in range(30)]
    claim(broker, held[0])
    later = {waiting(n) for n in range(3)}
    assert set(ids(broker, JobState.WAITING, 10)) == later
    first = list_jobs(broker, shards_of(broker, ("default",)), JobState.WAITING, size=10)
    assert len(first.jobs) == 3, "the page goes on behind those that are held"


def test_a_job_is_told_with_what_its_state_is_about(broker):
    build(broker)
    now = broker.now_ms()
    seen = find_job(broker, waiting())
    assert (seen.state, seen.worker) == (JobState.WAITING, "")
    assert abs(seen.at_ms - now - 3_600_000) < 5_000
    held = ready()
    claim(broker, held)
    seen = find_job(broker, held)
    assert (seen.state, seen.worker) == (JobState.RUNNING, "test")
    assert abs(seen.at_ms - now) < 5_000
    assert abs(seen.lease_until_ms - now - 30_000) < 5_000
    seen = find_job(broker, ready(priority=7))
    assert seen.state == JobState.READY
    assert abs(seen.at_ms - now) < 5_000, "its priority is no time"
    seen = find_job(broker, dead(broker))
    assert (seen.state, len(seen.record.errors)) == (JobState.DEAD, 1)
    assert abs(seen.at_ms - now) < 5_000


def test_a_job_that_has_ended_is_told_while_its_result_stands(broker):
    build(broker)
    wanted = ready(41)
    run_burst()
    seen = find_job(broker, wanted)
    assert (seen.state, seen.record.status, seen.record.value) == (JobState.ENDED, "SUCCESSFUL", 42)
    assert seen.at_ms == seen.record.finished
    _, place, member = where(broker, wanted)
    broker.client.set(key(broker, place, f"result:{member}"), "forged", px=60_000)
    assert find_job(broker, wanted) is None, "as the backend says"


@pytest.mark.parametrize("text", ["forged\n{}", "", "\n", "x" * 43 + '\n{"task":"tests.app.tasks.add"}', b"\xff\xfe"])
def test_what_is_not_signed_is_told_as_such_and_not_read(broker, text):
    build(broker)
    for wanted in (waiting(), dead(broker)):
        forge(broker, wanted, text)
        seen = find_job(broker, wanted)
        if text == "":
            assert seen is None or seen.flaw == Flaw.FORGED
            continue
        assert (seen.flaw, seen.call, seen.record) == (Flaw.FORGED, None, None)
    for state in (JobState.WAITING, JobState.DEAD):
        (seen,) = list_jobs(broker, shards_of(broker, ("default",)), state, size=10).jobs
        assert (seen.flaw, seen.call) == (Flaw.FORGED, None)


def test_a_signed_text_of_another_job_is_not_signed_for_this_one(broker):
    build(broker)
    one, other = waiting(1), waiting(2)
    jobs, place, member = where(broker, other)
    forge(broker, one, jobs.view(place, member).payload)
    assert find_job(broker, one).flaw == Flaw.FORGED


@pytest.mark.parametrize(
    "wanted", ["", "x", "default.x", "other.AAAAAAAAAAAAAAAAAAAAAA", "default.AAAAAAAAAAAAAAAAAAAAAA"]
)
def test_what_is_no_job_is_not_found(broker, wanted):
    build(broker)
    assert find_job(broker, wanted) is None


def test_garbage_under_our_keys_is_listed_without_an_id(broker):
    build(broker)
    place = Shard("default", 0)
    broker.client.zadd(key(broker, place, "jobs"), {b"\xff garbage": 9e300, "j": -5})
    broker.client.zadd(key(broker, place, "ready"), {"x y": inf})
    broker.client.zadd(key(broker, place, "dead"), {"": 1})
    broker.client.hset(key(broker, place, "held"), mapping={"h": "nonsense", "i": "99.e \x1b[31m", "k": "x w"})
    found = {state: list_jobs(broker, [place], state, size=10).jobs for state in LISTED}
    assert all(job.result_id is None and job.flaw == Flaw.FORGED for jobs in found.values() for job in jobs)
    assert [len(found[state]) for state in (JobState.READY, JobState.DEAD)] == [1, 1]


def test_it_finds_jobs_where_they_stand_also_while_its_own_settings_say_otherwise(settings, spread):
    made = [waiting(n, after=LATER * (n + 1)) for n in range(8)]
    settings.DELAYQ = {**settings.DELAYQ, "SHARDS": 2}
    broker = Broker(timeout_seconds=5)
    assert ids(broker, JobState.WAITING) == made
    assert [find_job(broker, wanted).result_id for wanted in made] == made


def test_tasks_of_the_tests_are_those_that_were_enqueued(broker):
    build(broker)
    wanted = waiting(5)
    seen = find_job(broker, wanted)
    assert (seen.call.task, seen.call.args) == (tasks.add.module_path, [5])
    assert parse_id(wanted) == (seen.shard.queue, seen.member)
