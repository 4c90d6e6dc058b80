"""Settings of processes whose PostgreSQL stands behind a pooler.

Without DISABLE_SERVER_SIDE_CURSORS, which a project needs for itself: a cursor of ours would be an error.
"""

import os

from tests.settings import *  # noqa: F403 - all but what follows
from tests.settings import DATABASES

DATABASES["default"].update(HOST=os.environ["DELAYQ_TEST_POOLER_HOST"], PORT=os.environ["DELAYQ_TEST_POOLER_PORT"])
