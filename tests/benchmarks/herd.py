"""How long one worker process takes for a herd: very many schedules that are due at the same minute, in a long ledger.

Run from the project's root, with DATABASE_URL naming a PostgreSQL database that is empty, or that `.pages` has filled:
`python -m tests.benchmarks.herd [--schedules N] [--runs N] [--herd N] [--rounds N] [--workers N] [--shards N]
[--cluster] [--history-days N]`. The first run gives every schedule a new
beginning, so that no more than some 400 a minute are due beside the herd: have a copy of what you need (`createdb -T`).
Redis is a server of its own, or a cluster of three primaries. Each round gives the herd another minute, waits for it,
and prints when all was recorded, and how late the points were claimed. Asserts nothing about time, but that the whole
herd has succeeded.
"""

import argparse
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.benchmarks.servers import (
    Usage,
    note_chores_done,
    redis_of_its_own,
    redis_pids,
    running_workers,
    scripts_and_pings,
    servers_of,
    wait_for,
)

#: How the schedules of the herd are told from the others.
HERD = "herd"
BEGIN_ANEW = """
    UPDATE django_delayq_run SET status = 'succeeded', finished_at = claimed_at
        WHERE status IN ('queued', 'running', 'retrying');
    UPDATE django_delayq_schedulestate SET last_due_at = now(), next_due_at = NULL, condition = 'active',
        mirrored_digest = '';
    UPDATE django_delayq_schedule SET created_at = now(), effective_from = now();
    UPDATE django_delayq_schedule SET description = %s, kind = 'cron', cron = '0 0 1 1 *', every = NULL, at = NULL,
        enabled = true, queue = 'default', task = 'tests.app.tasks.noop'
        WHERE id IN (SELECT id FROM django_delayq_schedule ORDER BY hashint8(id) LIMIT %s);
"""
#: The workers have started and caught up by then.
READY_SECONDS = 40


def prepare(options: argparse.Namespace) -> None:
    """Fill the database where it is empty, and choose the herd where there is none."""
    from django.db import connection

    from django_delayq.models import Schedule
    from tests.benchmarks.pages_data import fill

    if connection.vendor != "postgresql":
        raise SystemExit("DATABASE_URL must name a PostgreSQL database")
    if not Schedule.objects.exists():
        fill(options.schedules, options.runs)
    if Schedule.objects.filter(description=HERD).count() != options.herd:
        with connection.cursor() as cursor:
            cursor.execute(BEGIN_ANEW, [HERD, options.herd])
            cursor.execute("VACUUM ANALYZE")


def choose_minute(broker: Any) -> datetime:
    """Give the herd the next minute that is far enough away, and have it mirrored."""
    from django_delayq import sync
    from django_delayq.models import Schedule

    herd = Schedule.objects.filter(description=HERD)
    began = time.monotonic()
    due = (datetime.now(UTC) + timedelta(seconds=60 + READY_SECONDS)).replace(second=0, microsecond=0)
    herd.update(cron=f"{due.minute} {due.hour} * * *")
    while sync.sweep_delta(broker):
        pass
    print(f"  all of the herd edited and mirrored in {time.monotonic() - began:.1f} s", flush=True)
    return due


def play(options: argparse.Namespace, broker: Any, *, prune: bool) -> None:
    """Have one herd, and print what it took."""
    due, places = choose_minute(broker), broker.list_shards()
    note_chores_done(broker, pruning=not prune)
    with running_workers(broker, options.workers) as pids:
        time.sleep(max(0.0, due.timestamp() - time.time() - 3))
        before = deleted()
        usage, databases, caches = Usage(pids), Usage(backends()), Usage(redis_pids(servers_of(broker)))

        with scripts_and_pings(servers_of(broker)) as told:
            time.sleep(max(0.0, due.timestamp() - time.time() + 1))
            wait_for(
                lambda: not any(item.due + item.leased for item in broker.read_stats(places)), 300, "an empty queue"
            )
            seconds = time.time() - due.timestamp()
        beside = f"PostgreSQL for them {sum(databases.spent()):.1f} s, Redis {sum(caches.spent()):.1f} s"
        print(f"  workers: {usage}; {beside}")
        print(f"  {latencies(due, seconds, options.herd)}")
        print(*told, sep="\n", flush=True)
        if prune:
            print(f"  {deleted() - before:,} runs pruned meanwhile", flush=True)


def backends() -> list[int]:
    """Return the processes of the server that serve others on this database: the workers."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in cursor.fetchall()]


def deleted() -> int:
    """Return how many runs were ever deleted, as the server counts them with a delay of a second or so."""
    from django.db import connection

    time.sleep(1.5)
    with connection.cursor() as cursor:
        cursor.execute("SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'django_delayq_run'")
        return int(cursor.fetchone()[0])


def latencies(due: datetime, seconds: float, herd: int) -> str:
    """Say how late the points were claimed, and when the last one had ended."""
    from django_delayq.models import Run

    rows = [*Run.objects.filter(due_at=due, status="succeeded").values_list("claimed_at", "finished_at")]
    if len(rows) < herd:
        raise SystemExit(f"only {len(rows)} of {herd} have succeeded")
    late = sorted((claimed - due).total_seconds() for claimed, _ in rows)
    last = max(finished - due for _, finished in rows).total_seconds()
    p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    return (
        f"{len(rows):,} points done after {last:.1f} s, recorded and settled after {seconds:.1f} s, "
        f"{len(rows) / seconds:,.0f}/s; latency p50 {p50:.1f} s, p99 {p99:.1f} s, max {late[-1]:.1f} s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1_000_000, help="of a database that is empty")
    parser.add_argument("--runs", type=int, default=10_000_000, help="of a database that is empty")
    parser.add_argument("--herd", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--cluster", action="store_true", help="a Redis Cluster of three primaries")
    parser.add_argument("--history-days", type=int, help="in every second round, older runs are pruned meanwhile")
    options = parser.parse_args()
    with redis_of_its_own(shards=options.shards, cluster=options.cluster, HISTORY_DAYS=options.history_days):
        from django_delayq import sync
        from django_delayq.index import Broker

        prepare(options)
        broker = Broker(timeout_seconds=30)
        sync.check_layout(broker)
        began = time.monotonic()
        sync.rebuild(broker, broker.list_shards())
        members = sum(item.members for item in broker.read_stats(broker.list_shards()))
        print(f"{members:,} entries mirrored in {time.monotonic() - began:.1f} s", flush=True)
        for number in range(options.rounds):
            prune = bool(options.history_days) and number % 2 == 1
            beside = ", pruning" if prune else ""
            print(f"round {number + 1}, {options.shards} shard(s), {options.workers} worker(s){beside}", flush=True)
            play(options, broker, prune=prune)


if __name__ == "__main__":
    main()
