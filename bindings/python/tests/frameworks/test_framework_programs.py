"""Small programs with frameworks go on after a kill."""

from pathlib import Path

import pytest

from programs import check
from test_programs import WITH_FRAMEWORKS


# Each start of such a program takes many seconds on a busy machine.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WITH_FRAMEWORKS)
def test_a_killed_program_has_the_same_result(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
