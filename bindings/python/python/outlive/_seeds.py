"""The seed sequences of NumPy's random generators.

A bit generator's `state` determines the next numbers. Its seed sequence, and the number of
generators that this has spawned so far, determine the generators that `spawn` makes. Both are kept
as one text, so that a state can be restored into a generator that was seeded in another way.
"""

import json
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.random.bit_generator import SeedlessSeedSequence

# Key for the text, beside NumPy's own keys of the state.
KEY = "seed_sequence"
# Digits of the number of generators spawned. It grows from save to save, and the data after the
# text in an image should keep its offset.
_SPAWNED_DIGITS = 10
# Most spawns that move a sequence forward. Beyond, it is replaced, and other holders keep the old.
_SPAWNS_MAX = 10_000


def text_of(bits: np.random.BitGenerator) -> str:
    """Returns the seed sequence of a bit generator as text.

    Raises:
        TypeError: If it has a class of its own, which a restore could not make again.
    """
    seeds: Any = bits.seed_seq
    if seeds is None:  # seeded in the old way
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
    """Gives a bit generator the seed sequence of a text; the generator keeps its state.

    Raises:
        ValueError, TypeError: If `text_of` cannot have written the text.
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
                # Spawn as the program has done. Other holders of the sequence see that, too.
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
    """Returns the arguments that a sequence was made from."""
    return [_texts(seeds.entropy), _texts(seeds.spawn_key), seeds.pool_size]


def _texts(numbers: Any) -> Any:
    """Returns numbers of any size as text, in lists of lists; text and arrays mean the same."""
    if isinstance(numbers, str):
        return hex(int(numbers, 16 if numbers.startswith("0x") else 10))
    if isinstance(numbers, list | tuple | np.ndarray):
        return [_texts(number) for number in numbers]
    return hex(numbers)


def _numbers(texts: Any) -> Any:
    if isinstance(texts, list):
        return [_numbers(text) for text in texts]
    return int(texts, 16)
