"""Finds files, and folders at the top, that use each other in a circle, in each Rust crate.

Paths inside the code count like those of `use`.
A file may use definitions of its own folder's `mod` (or of the file above it): that is no circle.
It skips tests. Exits with 1 and names the files if there is a circle.

    python3 scripts/circles.py crates/*/src bindings/python/src
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*mod tests \{")
IMPORT = re.compile(
    r"^\s*(pub(?:\([a-z ]+\))? )?use ((?:crate|self|super|\w+)(?:::[\w:{},\s*]+)?);", re.M
)


# A path in the code itself: `crate::host::is_in_memory(…)`.
INSIDE = re.compile(r"(?<![\w:$])((?:crate|self|super)(?:::\w+)+)")


def modules(root: Path) -> dict[Module, str]:
    """Returns the text of each module of a crate, without comments and tests."""
    found = {}
    for path in sorted(root.rglob("*.rs")):
        parts = path.relative_to(root).with_suffix("").parts
        if "tests" in parts:
            continue
        module = parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts
        text = re.sub(r"//.*", "", path.read_text())
        found[module] = TEST_MODULE.split(text)[0]
    return found


def paths(tree: str) -> Iterator[list[str]]:
    """Yields the paths that a `use` names: `a::{b, c::d}` are `a::b` and `a::c::d`."""
    depth, part, parts = 0, "", []
    for letter in tree:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += letter
    for each in (*parts, part):
        head, brace, rest = each.strip().partition("{")
        head = head.split(" as ")[0]
        before = [name for name in head.split("::") if name]
        if brace:
            yield from (before + path for path in paths(rest[: rest.rindex("}")]))
        elif before:
            yield before


def absolute(module: Module, path: list[str], known: dict[Module, str]) -> Module | None:
    """Returns a path from the crate's root; `None` if it leads to another crate."""
    base, rest = list(module), list(path)
    if rest[0] == "crate":
        return tuple(rest[1:])
    if rest[0] not in ("self", "super"):
        return (*base, *rest) if (*base, rest[0]) in known else None
    while rest and rest[0] in ("self", "super"):
        base = base[:-1] if rest[0] == "super" else base
        rest = rest[1:]
    return (*base, *rest)


def imports(root: Path) -> Graph:
    """Returns, for each module, the modules that it imports from, through re-exports."""
    texts = modules(root)
    exported: dict[Module, Module] = {}

    def owner(name: Module) -> Module:
        for length in range(len(name), 0, -1):
            part = name[:length]
            if part in texts:
                return part
            if part in exported:
                return owner(exported[part])
        return ()

    found = []
    for module, text in texts.items():
        for public, tree in IMPORT.findall(text):
            for path in paths(tree):
                name = absolute(module, path, texts)
                if name is None:
                    continue
                if public:
                    exported[(*module, path[-1])] = name
                # A root or folder re-exports from the files in it; that is no use of them.
                if not (public and name[: len(module)] == module):
                    found.append((module, name))
        for path in INSIDE.findall(IMPORT.sub("", text)):
            name = absolute(module, path.split("::"), texts)
            if name is not None:
                found.append((module, name))
    graph: Graph = {module: set() for module in texts}
    for module, name in found:
        target = owner(name)
        if target != module[: len(target)]:
            graph[module].add(target)
    return graph


def floors(graph: Graph) -> Graph:
    """Returns the folders and files at the top of a crate, and the ones that each imports from."""
    found: Graph = {module[:1]: set() for module in graph if module}
    for module, targets in graph.items():
        if module:
            found[module[:1]] |= {target[:1] for target in targets if target} - {module[:1]}
    return found


def circles(graph: Graph) -> list[list[Module]]:
    """Returns groups of modules that all reach each other, by a walk from every module."""
    reach: Graph = {}
    for start in graph:
        seen: set[Module] = set()
        waiting = list(graph[start])
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting.extend(graph.get(at, ()))
        reach[start] = seen
    groups = {
        tuple(sorted(other for other in reach[module] if module in reach[other]))
        for module in graph
        if module in reach[module]
    }
    return [list(group) for group in sorted(groups)]


def main(roots: list[str]) -> int:
    """Checks each crate and prints its circles."""
    if missing := [root for root in roots if not any(Path(root).rglob("*.rs"))]:
        print(f"{missing[0]} has no Rust sources")
        return 2
    found = 0
    for root in roots:
        graph = imports(Path(root))
        for group in [*circles(graph), *circles(floors(graph))]:
            names = ["::".join(module) for module in group]
            found += 1
            print(f"{root}: these import each other in a circle: {', '.join(names)}")
            print("  move what they share into a file of its own, below them")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
