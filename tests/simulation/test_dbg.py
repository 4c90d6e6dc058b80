from .faults import Fault
from .world import World
from django_delayq.models import Job
def test_dbg(stage):
    world=World(stage)
    world.enqueue(alias='durable', queue='default', ahead=40, priority=0, unique='k', attempts=3, many=1)
    world.flush_redis(place=None)
    def show(x): print(x, world.clock.elapsed_ms, {t:(s.jobs_at,s.epoch) for t,s in world.view.shards.items()}, list(Job.objects.values_list("status","mirrored","wakes_at")))
    show("a")
    for i in range(4):
        world.advance(30001); world.sweep(0,"full"); show("swept")
        world.work(0); show("worked")
