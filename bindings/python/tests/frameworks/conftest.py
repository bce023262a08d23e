"""Starts the programs of several ranks."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Rank(NamedTuple):
    """The end of one rank."""

    code: int
    out: str
    err: str


Run = Callable[..., list[Rank]]


@pytest.fixture(scope="session")
def _nursery() -> "Iterator[subprocess.Popen[str]]":
    program = Path(__file__).with_name("torch_nursery.py")
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        yield nursery
        assert nursery.stdin is not None
        nursery.stdin.close()


@pytest.fixture
def lives(_nursery: "subprocess.Popen[str]", tmp_path: Path) -> Run:
    """Runs a program of torch_nursery.py on some ranks, and returns how each ended."""
    count = 0

    def run(program: str, size: int, *arguments: object) -> list[Rank]:
        nonlocal count
        count += 1
        folder = tmp_path / f"ranks-{count}"
        folder.mkdir()
        request = {
            "program": program,
            "size": size,
            "folder": str(folder),
            "arguments": [str(argument) for argument in arguments],
        }
        assert _nursery.stdin is not None
        assert _nursery.stdout is not None
        _nursery.stdin.write(json.dumps(request) + "\n")
        _nursery.stdin.flush()
        codes = json.loads(_nursery.stdout.readline())
        return [
            Rank(
                code, *((folder / f"{rank}.{name}").read_text().strip() for name in ("out", "err"))
            )
            for rank, code in enumerate(codes)
        ]

    return run


@pytest.fixture
def ranks(lives: Run) -> Callable[..., list[str]]:
    """Runs a command of torch_ranks.py; all ranks must end with one code. Returns their output."""

    def run(size: int, *arguments: object, code: int = 0) -> list[str]:
        found = lives("ranks", size, *arguments)
        for rank in found:
            assert rank.code == code, rank.out + rank.err
        return [rank.out for rank in found]

    return run
