"""Shared by all tests: a pool in a temporary folder, exact comparison, programs to run."""

import collections
import dataclasses
import decimal
import os
import random
import struct
import subprocess
import sys
import textwrap
import types
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
        for mine, key in zip(got, want, strict=True):
            assert_same(mine, key, f"{path}: key {key}")
        for key in want:
            assert_same(dict.__getitem__(got, key), dict.__getitem__(want, key), f"{path}/{key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), path
        for at, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{path}/{at}")
    elif isinstance(want, decimal.Decimal):
        assert str(got) == str(want), path
    elif isinstance(want, set | frozenset):
        plain = [set.__or__(set(), frozenset.__or__(frozenset(), each)) for each in (got, want)]
        assert plain[0] == plain[1], path
        types_of = [sorted(map(str, map(type, each))) for each in plain]
        assert types_of[0] == types_of[1], path
        assert_same(getattr(got, "__dict__", None), getattr(want, "__dict__", None), f"{path}.")
    elif isinstance(want, collections.deque):
        assert got.maxlen == want.maxlen, path
        assert_same(list(got), list(want), path)
    elif isinstance(want, np.ma.MaskedArray):
        assert_same(got.data, want.data, path)
        assert_same(np.ma.getmask(got), np.ma.getmask(want), path)
        assert_same(got.fill_value, want.fill_value, path)
        assert got.hardmask == want.hardmask, path
    elif isinstance(want, np.ndarray) and (want.dtype.hasobject or want.dtype.kind == "T"):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), path
        assert_same(got.tolist(), want.tolist(), path)
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
    elif not (attributes := attributes_of(want)):
        assert got == want, path
    else:
        assert_same(attributes_of(got), attributes, f"{path}.")
        return
    is_subclass = isinstance(want, dict | list) and type(want) not in (dict, list)
    if is_subclass and getattr(want, "__dict__", None) is not want:
        assert_same(attributes_of(got), attributes_of(want), f"{path}.")
    if isinstance(want, collections.defaultdict):
        assert got.default_factory is want.default_factory, path


def attributes_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass, a class of attrs, or a subclass of a container."""
    cls = type(value)
    if not (
        dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
        or isinstance(value, dict | list | types.SimpleNamespace)
    ):
        return {}
    slots = [name for base in cls.__mro__ for name in getattr(base, "__slots__", ())]
    found = {name: getattr(value, name) for name in sorted(slots) if hasattr(value, name)}
    found |= dict(sorted(getattr(value, "__dict__", {}).items()))
    # Notes of the interpreter and of `typing`.
    return {name: it for name, it in found.items() if name not in ("__weakref__", "__orig_class__")}


@pytest.fixture
def own_helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the test a helper of its own."""
    monkeypatch.setenv("OUTLIVE_HELPER", str(tmp_path))


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
