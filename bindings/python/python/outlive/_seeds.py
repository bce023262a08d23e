"""The seed sequences of NumPy's random generators.

A bit generator's `state` says which numbers come next. Which generators `spawn` makes is decided by
the seed sequence that it was made from, and by how many that has spawned so far. Both are kept as
one text, so that a state can be restored into a generator that was seeded in another way.
"""

import json
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.random.bit_generator import SeedlessSeedSequence

# Under which it is kept, beside what NumPy calls the state.
KEY = "seed_sequence"
# Digits of the number of generators spawned. It grows from save to save, and what follows the text
# in an image should keep its place.
_SPAWNED_DIGITS = 10
# A program may hold the sequence, too. To go forward by so many spawns at most it is not replaced.
_SPAWNS_MAX = 10_000


def text_of(bits: np.random.BitGenerator) -> str:
    """The seed sequence of a bit generator as text.

    Raises:
        TypeError: If it is of a class of its own, which nobody here could make again.
    """
    seeds: Any = bits.seed_seq
    if seeds is None:  # seeded in the way of old
        return "null"
    if type(seeds) is SeedlessSeedSequence:
        return "[]"
    if type(seeds) is not SeedSequence:
        raise TypeError(
            f"its seed sequence is of type {type(seeds).__module__}.{type(seeds).__qualname__}: "
            "make it with a `numpy.random.SeedSequence`"
        )
    return json.dumps([*_root(seeds), f"{seeds.n_children_spawned:0{_SPAWNED_DIGITS}}"])


def give(bits: np.random.BitGenerator, text: str) -> None:
    """Gives a bit generator the seed sequence that `text_of` had; it keeps its state.

    Raises:
        ValueError, TypeError: If the text is none of `text_of`.
    """
    said = json.loads(text)
    now: Any = bits.seed_seq
    wanted: Any = None
    if said == []:
        wanted = SeedlessSeedSequence()
    elif said is not None:
        entropy, spawn_key, pool_size, spawned = said
        if type(now) is SeedSequence and _root(now) == said[:3]:
            ahead = int(spawned) - now.n_children_spawned
            if 0 <= ahead <= _SPAWNS_MAX:
                # As the program has done it. Whoever else holds the sequence sees it, too.
                now.spawn(ahead)
                return
        wanted = SeedSequence(
            _numbers(entropy),
            spawn_key=_numbers(spawn_key),
            pool_size=pool_size,
            n_children_spawned=int(spawned),
        )
    bits.__setstate__((bits.state, wanted))  # type: ignore[attr-defined]


def _root(seeds: SeedSequence) -> list[Any]:
    """What a sequence was made from."""
    return [_texts(seeds.entropy), _texts(seeds.spawn_key), seeds.pool_size]


def _texts(numbers: Any) -> Any:
    """Numbers as text: of any size, in lists of lists; arrays and text mean the same to NumPy."""
    if isinstance(numbers, str):
        return hex(int(numbers, 16 if numbers.startswith("0x") else 10))
    if isinstance(numbers, list | tuple | np.ndarray):
        return [_texts(number) for number in numbers]
    return hex(numbers)


def _numbers(texts: Any) -> Any:
    if isinstance(texts, list):
        return [_numbers(text) for text in texts]
    return int(texts, 16)
