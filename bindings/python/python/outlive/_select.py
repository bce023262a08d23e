"""The caller's selection among the leaves of a checkpoint."""

import fnmatch
import re
from collections.abc import Callable, Iterable

from outlive._errors import InvalidError
from outlive._flat import RANDOMS, Flat, unescape

Test = Callable[[str], bool]


class Selection:
    """Names, given as paths (all below them included) or shell patterns; or everything."""

    def __init__(self, only: str | Iterable[str] | None) -> None:
        """Takes the caller's `only`; None is everything."""
        patterns = [only] if isinstance(only, str) else [] if only is None else list(only)
        for pattern in patterns:
            if type(pattern) is not str:
                raise InvalidError(f"`only` must consist of names, and {pattern!r} is not one")
        self.everything = only is None
        self._tests = [(pattern, _test(pattern)) for pattern in patterns]

    def of_regions(self) -> "Selection":
        """Returns the selection for regions: a key "a/b", escaped in a path, is a region "a/b"."""
        of_regions = Selection(None)
        of_regions.everything = self.everything
        of_regions._tests = [(pattern, _of_region(test)) for pattern, test in self._tests]
        return of_regions

    def has(self, name: str) -> bool:
        """Whether a name is selected."""
        return self.everything or any(test(name) for _, test in self._tests)

    def of(self, there: Flat, epoch: int, also: Iterable[str] = ()) -> list[bool]:
        """Returns, for each leaf of a checkpoint, whether it is selected.

        Args:
            there: The checkpoint.
            epoch: Its epoch, for messages.
            also: Further names of the checkpoint, which patterns may select.

        Raises:
            InvalidError: If one of the names or patterns selects nothing.
        """
        if self.everything:
            return [True] * len(there.names)
        empty = [*_empty_containers(there), *also]
        for pattern, test in self._tests:
            if not any(map(test, there.names)) and not any(map(test, empty)):
                some = ", ".join(map(repr, there.names[:10]))
                more = ", …" if len(there.names) > 10 else ""
                raise InvalidError(
                    f"`only`: {pattern!r} selects nothing of checkpoint {epoch}, which has {some}"
                    f"{more}"
                )
        chosen = [self.has(name) for name in there.names]
        # A random generator is restored only as a whole.
        for node in there.nodes:
            if node.kind in RANDOMS:
                end = there.end_of(node)
                if any(chosen[node.at : end]):
                    chosen[node.at : end] = [True] * (end - node.at)
        return chosen

    def has_whole(self, path: str) -> bool:
        """Whether a container is selected as a whole, whatever its entries are."""
        return self.everything or any(
            path == pattern or path.startswith(f"{pattern}/") for pattern, _ in self._tests
        )

    def may_have_part(self, inside: str) -> bool:
        """Whether an entry of the container with this prefix of entries may be selected."""
        return self.names_part(inside) or any(_is_glob(pattern) for pattern, _ in self._tests)

    def names_part(self, inside: str) -> bool:
        """Whether a pattern begins with the prefix of a container's entries."""
        return any(pattern.startswith(inside) for pattern, _ in self._tests)


def _empty_containers(there: Flat) -> list[str]:
    """Returns paths of empty containers, which no leaf represents."""
    paths = [node.path for node in there.nodes if node.path]
    above = {path.rpartition("/")[0] for path in [*there.names, *paths]}
    return [path for path in paths if path not in above]


def _of_region(test: Test) -> Test:
    return lambda path: test("/".join(map(unescape, path.split("/"))))


def _test(pattern: str) -> Test:
    inside = f"{pattern}/"
    if not _is_glob(pattern):
        return lambda name: name == pattern or name.startswith(inside)
    glob = re.compile(fnmatch.translate(pattern)).match
    return lambda name: name == pattern or name.startswith(inside) or glob(name) is not None


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")
