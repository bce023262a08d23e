"""Rules by which a restore renames the leaves of a checkpoint: `rename` of `Job.restore`."""

import re
from collections.abc import Iterable, Mapping

from outlive._errors import InvalidError
from outlive._flat import shown

_WILDCARD = re.compile(r"[*?\[]")


class Renames:
    """Pairs of an old and a new name; wildcards in the old one are captured for the new one."""

    def __init__(self, rename: Mapping[str, str] | None) -> None:
        """Takes the caller's `rename`.

        Raises:
            InvalidError: If it is no mapping of names, or the wildcards of a pair do not match.
        """
        if not isinstance(rename, Mapping | None):
            raise InvalidError(
                f'`rename` = {rename!r} is not possible: give {{"old name": "new name"}}'
            )
        self.rules = [_Rule(old, new) for old, new in (rename or {}).items()]

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return bool(self.rules)

    def of(self, name: str) -> str:
        """Returns the new name of a leaf. The first rule that fits it applies."""
        for rule in self.rules:
            new = rule.of(name)
            if new is not None:
                return new
        return name

    def all(self, names: list[str]) -> list[str]:
        """Returns the new names of all leaves of a checkpoint."""
        return [self.of(name) for name in names]

    def check(self, names: list[str], renamed: list[str], epoch: int) -> None:
        """Refuses new names that are not possible.

        Raises:
            InvalidError: If two leaves get the same name, or one gets none.
        """
        seen: dict[str, str] = {}
        for old, new in zip(names, renamed, strict=True):
            if not all(new.split("/")):
                raise InvalidError(
                    f"`rename` makes {new!r} of {shown(old)} of checkpoint {epoch}, which is no "
                    "name: correct the rule"
                )
            if new in seen:
                raise InvalidError(
                    f"`rename` gives {shown(old)} and {shown(seen[new])} of checkpoint {epoch} the "
                    f"same name, {shown(new)}: correct the rules"
                )
            seen[new] = old

    def touches(self, path: str) -> bool:
        """Whether a rule may change a name in the container at this path, or bring one there."""
        inside = f"{path}/" if path else ""
        return any(rule.touches(inside) for rule in self.rules)


class _Rule:
    def __init__(self, old: str, new: str) -> None:
        for name in (old, new):
            if type(name) is not str or not name:
                raise InvalidError(f"`rename` must consist of names, and {name!r} is not one")
        pieces, self.is_glob = _expression(old)
        captures = sum(piece.startswith("(") for piece in pieces)
        self.literals = new.split("*") if self.is_glob else [new]
        if captures + 1 != len(self.literals) and self.is_glob:
            raise InvalidError(
                f"`rename`: {old!r} has {captures} wildcards, and {new!r} has "
                f"{len(self.literals) - 1} `*`: each wildcard needs a `*` that takes its text"
            )
        if not self.is_glob and "*" in new:
            raise InvalidError(
                f"`rename`: {new!r} has a `*`, and {old!r} has no wildcard whose text it could take"
            )
        self.old, self.new = old, new
        self.match = re.compile("".join(pieces), re.DOTALL).fullmatch
        starts = [_WILDCARD.split(old, maxsplit=1)[0], self.literals[0]]
        self.starts = starts if self.is_glob else [old, new]

    def of(self, name: str) -> str | None:
        """Returns the new name, or None if the rule does not fit."""
        if not self.is_glob:
            if name == self.old:
                return self.new
            inside = f"{self.old}/"
            return f"{self.new}/{name.removeprefix(inside)}" if name.startswith(inside) else None
        found = self.match(name)
        if found is None:
            return None
        filled = zip(self.literals[1:], found.groups(), strict=True)
        return self.literals[0] + "".join(text + literal for literal, text in filled)

    def touches(self, inside: str) -> bool:
        """Whether a name that begins with `inside` may fit, or may come out."""
        ends = "" if self.is_glob else "/"
        return any(
            start.startswith(inside) or inside.startswith(start + ends) for start in self.starts
        )


def _expression(pattern: str) -> tuple[Iterable[str], bool]:
    """Returns a glob as pieces of a regular expression, with a group for each wildcard."""
    pieces, at = [], 0
    while at < len(pattern):
        sign = pattern[at]
        # A bracket that follows "[" or "[!" at once stands for itself.
        begin = at + 1 + pattern.startswith("!", at + 1)
        end = pattern.find("]", begin + 1) if sign == "[" else -1
        if sign == "*":
            pieces.append("(.*?)")
        elif sign == "?":
            pieces.append("(.)")
        elif end > 0:
            inner = re.sub(r"([\\\[\]&~|^])", r"\\\1", pattern[begin:end])
            pieces.append(f"([{'^' if begin > at + 1 else ''}{inner}])")
            at = end
        else:
            pieces.append(re.escape(sign))
        at += 1
    return pieces, any(piece.startswith("(") for piece in pieces)
