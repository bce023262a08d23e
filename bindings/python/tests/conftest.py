"""Shared by all tests: a pool in a temporary folder, exact comparison, programs to run."""

import os
import random
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outlive

# `make test-python` says which package it means; another one would be tested silently.
if site := os.environ.get("OUTLIVE_TEST_SITE"):
    assert Path(outlive.__file__).is_relative_to(site), f"{outlive.__file__} is not in {site}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pool"


@pytest.fixture
def job(folder: Path) -> outlive.Job:
    return outlive.open(folder).job("job")


@pytest.fixture
def same() -> Callable[[Any, Any], None]:
    """Asserts that two trees are the same: types, order, and every bit."""
    return assert_same


def assert_same(got: Any, want: Any, path: str = "state") -> None:
    assert type(got) is type(want), f"{path}: {type(got)} is not {type(want)}"
    if isinstance(want, dict):
        assert list(got) == list(want), path
        for key in want:
            assert_same(got[key], want[key], f"{path}/{key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), path
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{path}/{at}")
    elif isinstance(want, np.ndarray):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        assert got.tobytes() == want.tobytes(), path
    elif isinstance(want, np.generic):
        assert got.dtype == want.dtype, path
        assert got.tobytes() == want.tobytes(), path
    elif isinstance(want, float):
        assert struct.pack("<d", got) == struct.pack("<d", want), path
    elif isinstance(want, complex):
        assert_same((got.real, got.imag), (want.real, want.imag), path)
    elif isinstance(want, np.random.Generator):
        assert_same(got.bit_generator.state, want.bit_generator.state, path)
    elif isinstance(want, np.random.RandomState):
        assert_same(got.get_state(legacy=False), want.get_state(legacy=False), path)
    elif isinstance(want, np.random.BitGenerator):
        assert_same(got.state, want.state, path)
    elif isinstance(want, random.Random):
        assert got.getstate() == want.getstate(), path
    else:
        assert got == want, path


# A program started in the background inherits that Ctrl-C is ignored; this resets it.
HEAD = """\
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
import outlive
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts a Python program, given as text; its arguments follow. Ends it with the test."""
    children = []

    def start(text: str, *arguments: object) -> "subprocess.Popen[str]":
        script = tmp_path / "program.py"
        script.write_text(HEAD + textwrap.dedent(text))
        child = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
            child.communicate()


@pytest.fixture
def run(program: Callable[..., "subprocess.Popen[str]"]) -> Callable[..., str]:
    """Runs a program to its end, which must succeed, and returns its output."""

    def finish(text: str, *arguments: object) -> str:
        child = program(text, *arguments)
        out, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors
        assert "Traceback" not in errors, errors
        return out.strip()

    return finish
