"""One restore, seen from Python: what the engine shall put where, and the tree of it."""

import contextlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from outlive import _build, _core, _dtypes, _memory
from outlive._compare import refusal, refuse_differences, value_lists
from outlive._errors import DamagedError, Error, InvalidError
from outlive._same import same
from outlive._saves import LazyRestored, Restored
from outlive._seen import Owners
from outlive._select import Selection
from outlive._tied import tied
from outlive._tree import (
    PICKLE,
    ROOT,
    SCALAR,
    TREE,
    Flat,
    Node,
    escape,
    flatten,
    is_value,
    parent,
    read_skeleton,
    shown,
)
from outlive._trees import fits, inside, is_nameable, opened, path_of

# How often a checkpoint may seem damaged, and then whole.
_ATTEMPTS_MAX = 3
# Stands for "no `into`": any value, None included, can be one.
FRESH: Any = object()


class UnsureError(Exception):
    """Something of a checkpoint must be read before a plan can be made."""


def _some(names: list[str]) -> str:
    return ", ".join(map(shown, names[:10])) + (", …" if len(names) > 10 else "")


def _whole(part: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """All of the global array of which there is a part."""
    shape = part[0]
    return shape, (0,) * len(shape)


class Rebuild:
    """`plan` says where the engine shall put the data; `finish` makes the tree.

    If a checkpoint proves damaged while it is read, `plan` is called again for the next older one.

    Attributes:
        fills_into: Whether a plan fills `into`: from then on arrays of it may be written.
    """

    def __init__(
        self,
        into: Any,
        is_referenced: bool,
        *,
        only: str | Iterable[str] | None,
        allow_pickle: bool,
    ) -> None:
        """Looks at `into`, which may be `FRESH`, and which the caller holds or has only passed on.

        Raises:
            InvalidError: If `into` cannot be a state.
        """
        self.fresh = into is FRESH
        self.into = into
        # What the caller selects, and that for the checkpoint that is looked at.
        self.asked = self.selection = Selection(only)
        self.allow_pickle = allow_pickle
        self.is_referenced = is_referenced
        self.trees: frozenset[str] | None = None
        self._take_into(None)
        # What was read of a checkpoint before its plan could be made: by name what is pickled, and
        # trees of plain values; None if it is damaged.
        self.looked: dict[int, dict[str, Any] | None] = {}
        self.wanted: set[str] = set()
        self.figures = {"restored_bytes": 0, "read_bytes": 0, "seconds": 0.0}
        self.kept: set[str] = set()
        self.fills_into = False
        # Whether a plan only reads again what was damaged before.
        self.is_probe = False
        # How many ranks restore.
        self.ranks = 1

    def _take_into(self, trees: frozenset[str] | None) -> None:
        """Flattens `into`; the containers at these paths, or plain ones, are one leaf each."""
        if trees is not None and trees == self.trees:
            return
        self.here = here = Flat()
        # What the last one refers to would seem to be held by the program.
        self.owners = Owners(here, self.is_referenced, self._same)
        if not self.fresh:
            try:
                self.here = here = flatten(
                    self.into, allow_pickle=self.allow_pickle, to_save=False, trees=trees
                )
            except InvalidError as error:
                if trees is None:
                    raise
                # It was a tree before, as which it does not fit.
                what = f"`into` does not match checkpoint {self.epoch}; nothing was changed"
                raise InvalidError(f"{what}: {error}") from None
        self.trees = frozenset(path_of(here, at) for at in self._my_trees())
        self.owners = Owners(here, self.is_referenced, self._same)
        self.mine = {name: at for at, name in enumerate(here.names)}

    # --- Before anything is read ------------------------------------------------------------------

    def plan(
        self,
        epoch: int,
        names: list[str],
        dtypes: list[str],
        shapes: list[tuple[int, ...]],
        lengths: list[int],
        distributions: list[Any],
        ranks: int,
        attachment: bytes,
    ) -> list[Any]:
        """Says for each region where it goes.

        That is None, True (as a value), an array to fill, or one with what part of a global array
        it is, and its shape.
        """
        self.epoch, count = epoch, len(names)
        self.kept.clear()
        self.is_probe = False
        region_names = names
        skeleton = read_skeleton(attachment)
        self.flat_dict = self.fresh and skeleton is None
        self.selection = self.asked
        if skeleton is None and not self.fresh:
            self._take_into(frozenset())
            self.asked.of(Flat(names), epoch)  # every pattern selects something
            self.selection = self.asked.of_regions()
            names = self._in_into(names)
            skeleton = self._skeleton_of_into(names)
        # By number of the leaf that of its region; None if the checkpoint has none for this rank.
        self.order: list[int | None] = list(range(len(names)))
        if skeleton is not None and skeleton[2] is not None:
            numbers = {name: at for at, name in enumerate(names)}
            self.order = [numbers.get(name) for name in skeleton[2]]
            names = skeleton[2]
            dtypes = ["|u1" if at is None else dtypes[at] for at in self.order]
            shapes = [(0,) if at is None else shapes[at] for at in self.order]
            lengths = [0 if at is None else lengths[at] for at in self.order]
            distributions = [None if at is None else distributions[at] for at in self.order]
        nodes, fortran, _ = skeleton or ([], [], None)
        self.there = there = Flat(names, dtypes, shapes, [], nodes, fortran)
        there.parts = {at: part for at, part in enumerate(distributions) if isinstance(part, tuple)}
        # By number of the leaf, what was read already.
        self.known: dict[int, Any] = {}
        looked = self._looked_at(ranks)
        if looked is None:
            self.is_probe = True
            return [True if name in self.wanted else None for name in region_names]
        self._check_lengths(lengths)
        there = self._open_trees(looked)
        names, dtypes = there.names, there.dtypes
        self.fortran = frozenset(there.fortran)
        self.chosen = chosen = self.selection.of(there, epoch)
        self._refuse_missing_regions(ranks)
        self._refuse_parts_of_others(ranks)
        self.objects: list[Any] = [_build.ABSENT] * len(names)
        # Arrays that were filled in the place of others: number of the leaf, and what to do then.
        self.later: list[tuple[int, Callable[[], Any]]] = []
        self.checks: list[tuple[int, Any, Any]] = []
        self.copied_bytes = 0
        self._refuse_pickles()
        if not self.fresh:
            refuse_differences(there, self.here, self.owners, self.selection, chosen, epoch)
        self._refuse_missing_dtypes()
        self._unpickle(looked)
        values = {dtype for dtype in set(dtypes) if is_value(dtype)}
        self.tied, self.mixed = self._share_memory()
        wishes: list[Any] = [None] * len(names)
        for at, dtype in enumerate(dtypes):
            if not chosen[at] or at in self.known:
                continue
            if dtype in values:
                wishes[at] = True
            elif not self.fresh:
                wishes[at] = self._fill(at, self.mine[names[at]])
            elif at in there.parts and ranks != self.ranks:
                wishes[at] = self._make_whole(at, self.parsed[dtype])
            else:
                wishes[at] = self._make(at, self.parsed[dtype])
        self.fills_into = not self.fresh
        ordered: list[Any] = [None] * count
        for region, wish in zip(self.order, wishes, strict=True):
            if region is not None:
                ordered[region] = wish
        return ordered

    def _in_into(self, regions: list[str]) -> list[str]:
        """The names that regions of another front door have in `into`.

        A region "grid/u" is `into["grid"]["u"]` or `into["grid/u"]`, as the program has it.
        """
        taken = set(regions)
        names = []
        for region in regions:
            as_key = escape(region)
            is_key = region not in self.mine and as_key in self.mine and as_key not in taken
            names.append(as_key if is_key else region)
        return names

    def _skeleton_of_into(self, names: list[str]) -> tuple[list[Node], list[int], list[str]]:
        """The containers of `into`, its leaves, and those that it lacks.

        Raises:
            InvalidError: If it has leaves, selected ones, that the checkpoint has not.
        """
        theirs, of_values = set(names), value_lists(self.here)
        lacking = [n for n in self.here.names if n not in theirs and self.selection.has(n)]
        # What is not wanted need not have a container there.
        more = [n for n in names if n not in self.mine and self.selection.has(n)]
        if lacking:
            # A list of values counts as one.
            paths = (parent(name) if parent(name) in of_values else name for name in lacking)
            found = [f"{shown(path)} is not in the checkpoint" for path in dict.fromkeys(paths)]
            found += [f"{shown(name)} is missing from `into`" for name in more]
            what = f"`into` does not match checkpoint {self.epoch}"
            raise refusal(what, found, "Correct `into`")
        return self.here.nodes, [], self.here.names + more

    def _refuse_missing_regions(self, ranks: int) -> None:
        """What each rank has for itself a new rank must not ask for."""
        leaves = enumerate(zip(self.there.names, self.order, self.chosen, strict=True))
        missing = [
            name
            for at, (name, region, chosen) in leaves
            if chosen and region is None and at not in self.known
        ]
        if missing:
            some = _some(missing)
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by {ranks} ranks, and this is none of them. It "
                f"has nothing for this rank in {some}, which each rank has saved for itself: name "
                "these in `replicated` when the job is opened, if they are the same on all ranks, "
                "save them as `outlive.sharded`, leave them out with `only`, or restart with as "
                "many ranks"
            )

    def _refuse_parts_of_others(self, ranks: int) -> None:
        """Which part a rank has without `into` only ranks of the same number know.

        One process has the whole.
        """
        if not self.fresh or self.ranks in (ranks, 1):
            return
        parts = [self.there.names[at] for at in self.there.parts if self.chosen[at]]
        if parts:
            some = _some(parts)
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by {ranks} ranks, and this is one of "
                f"{self.ranks}: say which part of {some} it has, by `into` with "
                "`outlive.sharded(array, global_shape, offset)`"
            )

    def run(
        self,
        core: _core.Job,
        epoch: int | None,
        user_only: bool | None,
        tick: Callable[[], None],
    ) -> dict[str, Any] | None:
        """Restores by `plan`. What that is unsure about is looked at before, once a checkpoint.

        Raises:
            Error: Those of the native restore and of `plan`.
        """
        _, self.ranks = core.group() or (0, 1)
        attempts = 0
        while True:
            try:
                done = core.restore(self.plan, tick, epoch=epoch, user_only=user_only)
            except UnsureError:
                self._look(core, tick)
                continue
            if not self.is_probe:
                break
            # What was damaged is whole again.
            del self.looked[self.epoch]
            attempts += 1
            if attempts == _ATTEMPTS_MAX:
                raise DamagedError(f"checkpoint {self.epoch} cannot always be read: restore again")
        if done is not None:
            for figure, value in self.figures.items():
                done[figure] += value
        return done

    def _look(self, core: _core.Job, tick: Callable[[], None]) -> None:
        """Reads what a plan is made by, and nothing else."""
        wanted, all_names = self.wanted, list[str]()

        def plan(names: list[str], **_: object) -> list[Any]:
            all_names[:] = names
            return [True if name in wanted else None for name in names]

        self.looked[self.epoch] = None
        # What is damaged the restore itself will find, and take an older checkpoint.
        with contextlib.suppress(DamagedError):
            done = core.restore(plan, tick, epoch=self.epoch, user_only=None)
            if done is not None:
                found = dict(zip(all_names, done["values"], strict=True))
                self.looked[self.epoch] = {name: found[name] for name in wanted}
                self.figures = {figure: done[figure] for figure in self.figures}

    def _looked_at(self, ranks: int) -> dict[str, Any] | None:
        """What was read of the checkpoint already; None if that is damaged.

        Raises:
            UnsureError: If something must be read first.
            InvalidError: If many ranks would have to.
        """
        there, selection = self.there, self.selection
        self.wanted = set[str]()
        for at, dtype in enumerate(there.dtypes):
            if dtype not in (TREE, PICKLE) or self.order[at] is None:
                continue
            name = there.names[at]
            whole = selection.has_whole(name)
            if dtype == PICKLE:
                # What cannot be unpickled must be known before an array is filled.
                wanted = not self.fresh and self.allow_pickle and selection.has(name)
            elif self.fresh:
                wanted = not whole and selection.may_have_part(inside(path_of(there, at)))
            else:
                wanted = whole or selection.may_have_part(inside(path_of(there, at)))
            if wanted:
                self.wanted.add(name)
        if not self.wanted:
            return {}
        if self.ranks > 1:
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by a program without ranks ({ranks} process), "
                f"and has {_some(sorted(self.wanted))} as trees of values: restore it with one rank"
            )
        if self.epoch not in self.looked:
            raise UnsureError
        return self.looked[self.epoch]

    def _open_trees(self, looked: dict[str, Any]) -> Flat:
        """The checkpoint, with the leaves of those trees that are not taken as a whole."""
        there = self.there
        trees = {
            at: looked[there.names[at]]
            for at, dtype in enumerate(there.dtypes)
            if dtype == TREE and there.names[at] in looked
        }
        # Patterns with `*` and the like pass over entries that no path can name.
        closed = {at for at, tree in trees.items() if self._is_closed(path_of(there, at), tree)}
        whole = {at for at in closed if self.fresh or not self.selection.has(there.names[at])}
        if not self.fresh:
            whole |= self._trees_that_fit(trees, closed)
        self.known.update({at: trees[at] for at in whole})
        open_ones = {at: tree for at, tree in trees.items() if at not in whole}
        if open_ones:
            self.there, was, values = opened(there, open_ones, self.epoch)
            known = {at: self.known[old] for at, old in enumerate(was) if old in self.known}
            self.known = known | values
            self.order = [None if at in values else self.order[old] for at, old in enumerate(was)]
        return self.there

    def _is_closed(self, path: str, tree: Any) -> bool:
        """Whether a tree stays one leaf, since no path can name its entries and no pattern does."""
        selection = self.selection
        return (
            not selection.has_whole(path or ROOT)
            and not selection.names_part(inside(path))
            and not is_nameable(tree)
        )

    def _trees_that_fit(self, trees: dict[int, Any], closed: set[int]) -> set[int]:
        """Numbers of the trees that go into a container of the same form that the program holds."""
        theirs = {path_of(self.there, at): at for at in trees}
        selection, mine = self.selection, {path_of(self.here, at): at for at in self._my_trees()}
        aside = {
            path
            for path, at in mine.items()
            if not (selection.has_whole(path or ROOT) or selection.may_have_part(inside(path)))
            or self._is_closed(path, self.here.leaves[at])
        }
        self._take_into(frozenset(aside | ((self.trees or frozenset()) & theirs.keys())))
        fitting = self._fitting(trees, theirs, closed)
        self._take_into(frozenset(aside | {path_of(self.there, at) for at in fitting}))
        return fitting

    def _my_trees(self) -> list[int]:
        """Numbers of the leaves of `into` that are trees."""
        return [at for at, dtype in enumerate(self.here.dtypes) if dtype == TREE]

    def _fitting(self, trees: dict[int, Any], theirs: dict[str, int], closed: set[int]) -> set[int]:
        """The same, given the trees by path; apart, since it refers to containers of `into`."""
        here, owners = self.here, self.owners
        places = {node.path: thing for node, thing in zip(here.nodes, here.containers, strict=True)}
        leaves = {path_of(here, at): at for at in self._my_trees()}
        fitting = set[int]()
        for path, at in theirs.items():
            my = leaves.get(path)
            mine = places.get(path) if my is None else here.leaves[my]
            is_whole = self.selection.has_whole(path or ROOT)
            if mine is None or not (
                is_whole or (at in closed and self.selection.has(path or ROOT))
            ):
                continue
            reached = owners.reached[path] if my is None else owners.reaches_leaf(my)
            seen = reached if type(mine) is not tuple else owners.seen.get(parent(path), False)
            if reached and seen and fits(mine, trees[at]):
                fitting.add(at)
        return fitting

    def _unpickle(self, looked: dict[str, Any]) -> None:
        """Makes the objects that come into `into`, before any of its arrays is filled."""
        for at, name in enumerate(self.there.names):
            if self.there.dtypes[at] == PICKLE and name in looked and self.chosen[at]:
                if name in self.kept:
                    self.known[at] = self.here.leaves[self.mine[name]]
                else:
                    self.known[at] = self._unpickled(at, looked[name])

    def _same(self, name: str) -> bool:
        """Whether the checkpoint has the same pickled object as `into`."""
        looked = self.looked.get(self.epoch) or {}
        is_same = name in looked and self._equals(name, looked[name])
        if is_same:
            self.kept.add(name)
        return is_same

    def _equals(self, name: str, pickled: bytes) -> bool:
        """Whether the program's object is the one that was pickled, and not only equal to it."""
        mine = self.here.leaves[self.mine[name]]
        # What classes of the program raise here is of their choosing. It is not the same, then.
        with contextlib.suppress(Exception):
            if pickle.dumps(mine, protocol=5) == pickled:
                return True
            return same(mine, pickle.loads(pickled))
        return False

    def _refuse_pickles(self) -> None:
        if self.allow_pickle or PICKLE not in self.there.dtypes:
            return
        leaves = zip(self.there.names, self.there.dtypes, self.chosen, strict=True)
        found = [name for name, dtype, chosen in leaves if chosen and dtype == PICKLE]
        if found:
            some = _some(found)
            raise InvalidError(
                f"checkpoint {self.epoch} holds pickled objects ({some}). Unpickling runs code: if "
                "you trust everybody who can write to the pool, open the job with "
                "`pool.job(..., allow_pickle=True)`; else leave them out with `only`"
            )

    def _check_lengths(self, lengths: list[int]) -> None:
        """A region's length must be what its dtype and shape say."""
        there = self.there
        self.parsed: dict[str, np.dtype[Any]] = {}
        sizes: dict[str, int] = dict.fromkeys((d for d in set(there.dtypes) if d[:3] == "py:"), -1)
        for at, dtype in enumerate(there.dtypes):
            if dtype not in sizes:
                try:
                    self.parsed[dtype] = _dtypes.memory(dtype.removeprefix(SCALAR))
                except ValueError as error:
                    raise self._no_dtype(at, error) from None
                sizes[dtype] = self.parsed[dtype].itemsize
            size = sizes[dtype]
            for extent in there.shapes[at]:
                size *= extent
            if size >= 0 and size != lengths[at]:
                raise DamagedError(
                    f"{shown(there.names[at])} of checkpoint {self.epoch} has {lengths[at]} bytes; "
                    f"dtype {dtype} and shape {there.shapes[at]} make {size}"
                )

    def _no_dtype(self, at: int, error: ValueError) -> InvalidError:
        return InvalidError(f"{shown(self.there.names[at])} of checkpoint {self.epoch}: {error}")

    def _refuse_missing_dtypes(self) -> None:
        """What is made anew must be an array of NumPy's."""
        texts = [text for text in set(self.there.dtypes) if text[:3] != "py:"]
        for text in texts if self.fresh else filter(is_value, texts):
            try:
                _dtypes.parse(text.removeprefix(SCALAR))
            except ValueError as error:
                for at, dtype in enumerate(self.there.dtypes):
                    if dtype == text and self.chosen[at]:
                        raise self._no_dtype(at, error) from None

    def _share_memory(self) -> tuple[dict[int, int], dict[int, int]]:
        """Which arrays of `into` are `tied` to others, and which are `mixed` with others."""
        if self.fresh:
            return {}, {}
        return tied(
            {
                at: self.here.leaves[self.mine[name]]
                for at, name in enumerate(self.there.names)
                if self.chosen[at] and at not in self.known and not is_value(self.there.dtypes[at])
            }
        )

    def _make(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """A new array for a region; what is given back is the same in the order of its memory."""
        fortran = at in self.fortran
        shape = self.there.shapes[at]
        if dtype.itemsize == 0:
            # NumPy gives elements without bytes one, unless there is a buffer that has none.
            made: Any = np.ndarray(shape, dtype, buffer=b"")
            self.objects[at] = made
            return bytearray()
        made = _memory.empty_of(shape, dtype, "F" if fortran else "C")
        self.objects[at] = made
        return made.T if fortran else made

    def _make_whole(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """A new array for the whole of the global array that a region is a part of."""
        part = _whole(self.there.parts[at])
        try:
            made = _memory.empty(part[0], dtype)
        except (MemoryError, OverflowError, ValueError):
            name = self.there.names[at]
            raise InvalidError(
                f"there is no memory for all of {shown(name)} of checkpoint {self.epoch}, an array "
                f"of shape {part[0]} and dtype {dtype}: restore a part, by `into` with "
                "`outlive.sharded(array, global_shape, offset)`, or leave it out with `only`"
            ) from None
        self.objects[at] = made
        return (made, part, made.shape)

    def _fill(self, at: int, my: int) -> Any:
        """The program's array for a region, or another one that is put there later."""
        target = self.here.leaves[my]
        original = self.here.originals.get(my, target)
        part = self.here.parts.get(my)
        if part is None and at in self.there.parts:
            part = _whole(self.there.parts[at])
        if part is not None:
            return self._fill_part(at, target, original, part)
        fortran = at in self.fortran
        fits = target.flags.f_contiguous if fortran else target.flags.c_contiguous
        is_mixed = at in self.mixed and target.flags.writeable
        is_tied = at in self.tied and target.flags.writeable and not is_mixed
        is_apart = is_tied or is_mixed
        if target.flags.writeable and fits and target.dtype.itemsize and not is_apart:
            self.objects[at] = original
            return target.T if fortran else target
        wish = self._make(at, target.dtype)
        made = self.objects[at]
        if is_apart:
            self.checks.append((at, target, made))
        if is_tied:

            def put() -> Any:
                return original

        elif target.flags.writeable:

            def put() -> Any:
                target[...] = made
                return original

        else:

            def put() -> Any:
                return original.__array_namespace__().asarray(made)

        self.later.append((at, put))
        self.copied_bytes += made.nbytes
        return wish

    def _refuse_untied(self, at: int, target: Any, made: Any) -> None:
        """Of arrays that share memory only one can come back, unless all have the same in it."""
        if target.tobytes() != made.tobytes():
            with_it = self.mixed.get(at, self.tied.get(at, at))
            name, other = self.there.names[at], self.there.names[with_it]
            raise InvalidError(
                f"{shown(name)} and others such as {shown(other)} share memory in `into`, and "
                f"differ in checkpoint {self.epoch}. Give each its own array, as when it was "
                "saved, or leave one of them out with `only`"
            )

    def _fill_part(self, at: int, target: Any, original: Any, part: tuple[Any, ...]) -> Any:
        """The program's part of a global array, or another array that is put there later."""
        self.objects[at] = original
        made = target
        if not (target.flags.writeable and target.flags.c_contiguous):
            made = _memory.empty(target.shape, target.dtype)

            def put() -> Any:
                target[...] = made
                return original

            self.later.append((at, put))
        return (made, part, target.shape)

    def how(self, mode: str, lazy_bytes: int, eager_because: str) -> dict[str, Any]:
        """How a lazy restore fills memory, for `LazyRestored`, given how the engine does."""
        if self.copied_bytes:
            why = "arrays that are not contiguous, or cannot be written, are copied from others"
            eager_because = "; ".join(filter(None, (eager_because, why)))
            lazy_bytes = max(0, lazy_bytes - self.copied_bytes)
            mode = mode if lazy_bytes else "eager"
        return {"mode": mode, "lazy_bytes": lazy_bytes, "eager_because": eager_because}

    def select(self) -> Callable[[str], list[str]]:
        """A function that gives the names of the regions that a name means, as in `only`."""
        # These, and not the program's arrays.
        there, epoch, known = self.there, self.epoch, frozenset(self.known)
        of_regions = self.selection is not self.asked

        def select(wanted: str) -> list[str]:
            selection = Selection(wanted)
            chosen = (selection.of_regions() if of_regions else selection).of(there, epoch)
            return [name for at, name in enumerate(there.names) if chosen[at] and at not in known]

        return select

    # --- After everything was read ----------------------------------------------------------------

    def finish(self, values: list[Any]) -> Any:
        """Puts the tree together: a new one, or the program's own with the values replaced."""
        there, objects = self.there, self.objects
        values = [None if at is None else values[at] for at in self.order]
        for at, put in self.later:
            objects[at] = put()
        # When all are filled.
        for at, target, made in self.checks:
            self._refuse_untied(at, target, made)
        special = {d for d in set(there.dtypes) if d.startswith(SCALAR)} | {
            PICKLE,
            "py:bytearray",
        }
        for at, dtype in enumerate(there.dtypes):
            if not self.chosen[at]:
                continue
            if at in self.known:
                objects[at] = self.known[at]
            elif dtype in special:
                objects[at] = self._special(at, dtype, values[at])
            elif dtype not in self.parsed:
                objects[at] = values[at]
        if not (self.fresh and self.selection.everything):
            for at, dtype in enumerate(there.dtypes):
                if dtype in (PICKLE, TREE) and objects[at] is not _build.ABSENT:
                    objects[at] = _build.Opaque(objects[at], dtype == TREE)
        if self.flat_dict:
            named = zip(there.names, objects, strict=True)
            return {name: found for name, found in named if found is not _build.ABSENT}
        if not there.nodes and there.names != [ROOT]:
            raise self._damaged("it has no containers")
        try:
            tree = _build.build(
                there.nodes, there.names, objects, has=self.selection.has, new=self.fresh
            )
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, InvalidError):
                raise
            raise self._damaged(repr(error)) from error
        if not self.fresh:
            return _build.merge(self.into, tree)
        if self.selection.everything:
            return tree
        return _build.without_absent(tree)

    def _special(self, at: int, dtype: str, value: bytes) -> Any:
        if dtype == "py:bytearray":
            return bytearray(value)
        if dtype != PICKLE:
            if not value:  # of a dtype without bytes
                return np.ndarray((), self.parsed[dtype], buffer=b"")[()]
            return np.frombuffer(value, self.parsed[dtype])[0]
        return self._unpickled(at, value)

    def _unpickled(self, at: int, value: bytes) -> Any:
        try:
            return pickle.loads(value)
        except Exception as error:
            raise InvalidError(
                f"{shown(self.there.names[at])} of checkpoint {self.epoch} cannot be unpickled: "
                f"{error!r}"
            ) from error

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(
            f"checkpoint {self.epoch}: its tree cannot be put together ({why}); take another epoch"
        )


def _tell_of_change(error: BaseException) -> None:
    """Says that `into` may be changed in part."""
    text = "`into` may hold parts of a checkpoint now: restore again, or throw that state away"
    if isinstance(error, Error):
        error.into_changed = True
        # What an older checkpoint has said, in whose place this was tried, holds no more.
        said = str(error).replace("; nothing was changed", "")
        error.args = (f"{said}. {text}",)
    else:
        error.add_note(f"outlive: {text}")


def restored(
    rebuild: Rebuild,
    core: _core.Job,
    epoch: int | None,
    *,
    lazy: bool,
    tick: Callable[[], None],
) -> tuple[Any, Restored]:
    """Restores a job: the tree, None if there is no checkpoint, and what was done.

    Raises:
        Error: Those of `Job.restore`.
    """
    try:
        done = rebuild.run(core, epoch, False if lazy else None, tick)
        if done is None:
            return None, LazyRestored(None) if lazy else Restored(None)
        tree = rebuild.finish(done.pop("values"))
    except BaseException as error:
        if rebuild.fills_into:
            _tell_of_change(error)
        raise
    if not lazy:
        return tree, Restored(**done)
    fill = done.pop("fill")
    how = rebuild.how(**fill.how())
    select = rebuild.select()
    return tree, LazyRestored(_fill=fill, _select=select, _tick=tick, **how, **done)
