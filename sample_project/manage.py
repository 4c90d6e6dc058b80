#!/usr/bin/env python
"""Entry point. Brings up an embedded Redis for the commands that need one, before the settings are read."""

import os
import sys

from sample import server


def main() -> None:
    """Run a management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sample.settings")
    server.end_with_parent()
    server.start_if_needed(sys.argv[1:])

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
