"""Rules taken away, one at a time, each with a short history that shows what the rule is there for."""

from .breaking import Mutant
from .jobs import JOBS
from .rules import RULES
from .scripts import SCRIPTS

MUTANTS = (*SCRIPTS, *RULES, *JOBS)

__all__ = ["MUTANTS", "Mutant"]
