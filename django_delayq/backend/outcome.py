"""What becomes of an order that people give about a job."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of an order. Only after `DONE` something is another way than before."""

    DONE = "done"
    #: A worker holds it: it runs, or is about to.
    HELD = "held"
    #: It has ended, was deleted, or never was.
    GONE = "gone"
    #: It is dead, but would have to wait.
    DEAD = "dead"
    #: It waits or runs, but would have to be dead.
    NOT_DEAD = "not_dead"
    #: Its turn comes without that.
    READY = "ready"
    #: It cannot be revived while another job that waits has its unique key.
    KEY_TAKEN = "key_taken"
    #: It cannot be revived without being read.
    UNREADABLE = "unreadable"
