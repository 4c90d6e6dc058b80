"""Rules taken away, one at a time: with a short history that shows what the rule is there for, or found by seeds."""

from .breaking import Mutant
from .rules import RULES
from .scripts import SCRIPTS
from .seeded import SEEDED

MUTANTS = (*SCRIPTS, *RULES)

__all__ = ["MUTANTS", "SEEDED", "Mutant"]
