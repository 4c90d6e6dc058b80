"""The list of faults names what is tested, and all of it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: What is tested elsewhere: queue forgery, in tests/security.
ELSEWHERE = {37}


def test_the_list_of_faults_is_that_of_the_tests():
    listed = [int(number) for number in re.findall(r"^\| F(\d+) \|", (ROOT / "docs/faults.md").read_text(), re.M)]
    tested = {int(path.name[6:8]) for path in (ROOT / "tests/faults").glob("test_f[0-9]*.py")}
    assert listed == sorted(tested | ELSEWHERE)
