"""`python -m tests.simulation --seeds 0-50000`: plays a range of seeds on all processors, and notes what is done.

Started again it goes on where it was stopped. `--mutants` says instead which seed finds each mutant first, beside its
own history. Exits with 1 where a seed breaks a promise.
"""

import sys

from .ranges import main

if __name__ == "__main__":
    sys.exit(main())
