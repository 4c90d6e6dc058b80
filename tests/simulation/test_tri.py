import os
from .plan import plan
from .play import examine
def test_tri(stage):
    for s in map(int, os.environ["TRI"].split(",")):
        print("\n"+(examine(stage, plan(s)) or f"{s} fine")[:2500], flush=True)
