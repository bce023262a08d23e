"""Ten small programs go on after a kill, with few lines for outlive. See frameworks, too."""

from pathlib import Path

import pytest

from programs import check, lines

HERE = ["clusters.ipynb", "evolve.py", "heat.py", "ising.py", "sales.py", "solver.py", "words.py"]
WITH_FRAMEWORKS = ["jax_loop.py", "lightning_fit.py", "torch_loop.py"]


def test_there_are_ten_programs_with_few_lines_for_outlive() -> None:
    names = sorted(path.name for path in (lines.PROGRAMS / "before").iterdir())
    assert names == sorted(HERE + WITH_FRAMEWORKS)
    for name in names:
        _, changed, imports = lines.counted(name)
        assert imports == 1, name
        assert changed <= (6 if name == "torch_loop.py" else 4), name


@pytest.mark.parametrize("name", HERE)
def test_a_killed_program_has_the_same_result(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
