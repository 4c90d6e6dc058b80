"""`python -m tests.model`: the table of mutants, each with what `pytest tests/model` finds it by."""

import os

import django


def main() -> None:
    """Print a line a mutant."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from .mutants import MUTANTS

    rows = [("mutant", "rule taken away", "found by", "broken")]
    rows += [
        (
            mutant.name,
            mutant.rule,
            f"{mutant.history.__module__}.{mutant.history.__name__}".split(".", 2)[-1],
            mutant.broken.strip(),
        )
        for mutant in MUTANTS
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print(f"{len(MUTANTS)} mutants")


if __name__ == "__main__":
    main()
