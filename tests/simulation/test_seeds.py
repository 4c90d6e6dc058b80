from .plan import plan
from .play import play, shrink, name_of
import time, os
def test_x(stage):
    began=time.monotonic(); n=0
    if os.environ.get("SHRINK"):
        for seed in map(int, os.environ["SHRINK"].split(",")):
            p=plan(seed); e=play(stage,p)
            s=shrink(stage,p,name_of(e)); print("\nSEED",seed, repr(play(stage,s))[:700]); print(s)
        return
    lo,hi=map(int,os.environ.get("SEEDS","0-20").split("-"))
    for seed in range(lo,hi):
        e=play(stage, plan(seed))
        if e is not None:
            print("SEED",seed,repr(e)[:600])
            if os.environ.get("RAISE"): raise e
    print(stage.summary(time.monotonic()-began))
