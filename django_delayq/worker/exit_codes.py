"""The exit statuses of a worker process."""

from typing import Final

#: Drained: nothing of this process is left in Redis.
OK: Final = 0
#: Ended with entries unfinished, whose leases must run out. Django ends with the same number after a `CommandError`.
UNFINISHED: Final = 1
#: Drained, as far as it went, because this process should not go on (a task hangs in it): a fresh one is to take its
#: place. The number is EX_TEMPFAIL of sysexits.h, which neither Python nor a shell uses by itself.
RECYCLE: Final = 75
#: Drained, because the database was migrated to the layout of a later release: unless that is installed by now, a start
#: is in vain. The number is EX_CONFIG of sysexits.h.
OUTDATED: Final = 78
