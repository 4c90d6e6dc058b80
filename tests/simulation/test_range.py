import os
from .plan import plan
from .play import play
def test_range(stage):
    lo,hi=map(int,os.environ["SEEDS"].split("-"))
    for s in range(lo,hi):
        e=play(stage, plan(s))
        if e is not None: print("SEED",s,repr(e)[:500],flush=True)
    print(stage.summary(1.0))
