"""One restore, seen from Python: where the engine puts the data, and the tree of it."""

import contextlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from outlive import _build, _core, _dtypes, _memory
from outlive._compare import (
    is_changeable,
    mutable_containers,
    refusal,
    refuse_differences,
    value_lists,
)
from outlive._errors import DamagedError, Error, InvalidError
from outlive._saves import LazyRestored, Restored
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

# Number of times that a checkpoint may seem damaged, and then whole.
_ATTEMPTS_MAX = 3
# Stands for "no `into`": any value, also None, can be an `into`.
FRESH: Any = object()


class UnsureError(Exception):
    """A part of a checkpoint must be read before a plan can be made."""


def _some(names: list[str]) -> str:
    return ", ".join(map(shown, names[:10])) + (", …" if len(names) > 10 else "")


def _whole(part: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the whole of the global array, as a part."""
    shape = part[0]
    return shape, (0,) * len(shape)


class Rebuild:
    """Plans a restore with `plan`, and makes the tree with `finish`.

    If a checkpoint proves damaged while it is read, `plan` is called again for the next older one.

    Attributes:
        fills_into: Whether a plan fills `into`: from then on its arrays may be overwritten.
    """

    def __init__(
        self,
        into: Any,
        *,
        only: str | Iterable[str] | None,
        allow_pickle: bool,
    ) -> None:
        """Looks at `into`, which may be `FRESH`.

        Raises:
            InvalidError: If `into` cannot be a state.
        """
        self.fresh = into is FRESH
        self.into = into
        # The caller's selection, and its form for the current checkpoint.
        self.asked = self.selection = Selection(only)
        self.allow_pickle = allow_pickle
        self.trees: frozenset[str] | None = None
        self._take_into(None)
        # Data of a checkpoint that was read before its plan: pickled objects and trees of plain
        # values, by name; None if it is damaged.
        self.looked: dict[int, dict[str, Any] | None] = {}
        self.wanted: set[str] = set()
        self.figures = {"restored_bytes": 0, "read_bytes": 0, "seconds": 0.0}
        self.fills_into = False
        # Whether a plan only reads again what proved damaged before.
        self.is_probe = False
        # Number of ranks that restore.
        self.ranks = 1

    def _take_into(self, trees: frozenset[str] | None) -> None:
        """Flattens `into`; the containers at these paths, or plain ones, are one leaf each."""
        if trees is not None and trees == self.trees:
            return
        self.here = here = Flat()
        if not self.fresh:
            try:
                self.here = here = flatten(
                    self.into, allow_pickle=self.allow_pickle, to_save=False, trees=trees
                )
            except InvalidError as error:
                if trees is None:
                    raise
                # It was one leaf before, a tree of values, which did not fit the checkpoint.
                what = f"`into` does not match checkpoint {self.epoch}; nothing was changed"
                raise InvalidError(f"{what}: {error}") from None
        self.trees = frozenset(path_of(here, at) for at in self._my_trees())
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
        """Chooses the destination of each region.

        That is None, True (as a value), an array to fill, or a tuple: an array to fill, its part of
        the global array, and its shape.
        """
        self.epoch, count = epoch, len(names)
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
        # By number of the leaf, the number of its region; None if the checkpoint has none for this
        # rank.
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
        # By number of the leaf, its content if it was read already.
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
        # Leaves whose array is filled in a different place: number of the leaf, and the function
        # that puts the content in place.
        self.later: list[tuple[int, Callable[[], Any]]] = []
        self.checks: list[tuple[int, Any, Any]] = []
        self.copied_bytes = 0
        self._refuse_pickles()
        if not self.fresh:
            refuse_differences(there, self.here, self.selection, chosen, epoch)
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
        """Returns the names in `into` of regions that another binding has saved.

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
        """Returns the containers of `into`, and names of its leaves and of those that it lacks.

        Raises:
            InvalidError: If a selected leaf of it is not in the checkpoint.
        """
        theirs, of_values = set(names), value_lists(self.here)
        lacking = [n for n in self.here.names if n not in theirs and self.selection.has(n)]
        # Names that are not selected need no container there.
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
        """Refuses leaves that each rank saved for itself, if there are none of this rank."""
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
        """Refuses, without `into`, parts of global arrays that another number of ranks has saved.

        Only the same number of ranks knows which part each has. One process takes the whole.
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
        """Restores by `plan`. Reads first, once a checkpoint, the data that the plan needs.

        Raises:
            Error: Errors of the native restore and of `plan`.
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
            # The part that was damaged is whole again.
            del self.looked[self.epoch]
            attempts += 1
            if attempts == _ATTEMPTS_MAX:
                raise DamagedError(f"checkpoint {self.epoch} cannot always be read: restore again")
        if done is not None:
            for figure, value in self.figures.items():
                done[figure] += value
        return done

    def _look(self, core: _core.Job, tick: Callable[[], None]) -> None:
        """Reads only the data that a plan needs."""
        wanted, all_names = self.wanted, list[str]()

        def plan(names: list[str], **_: object) -> list[Any]:
            all_names[:] = names
            return [True if name in wanted else None for name in names]

        self.looked[self.epoch] = None
        # If it is damaged, the restore itself finds that, and takes an older checkpoint.
        with contextlib.suppress(DamagedError):
            done = core.restore(plan, tick, epoch=self.epoch, user_only=None)
            if done is not None:
                found = dict(zip(all_names, done["values"], strict=True))
                self.looked[self.epoch] = {name: found[name] for name in wanted}
                self.figures = {figure: done[figure] for figure in self.figures}

    def _looked_at(self, ranks: int) -> dict[str, Any] | None:
        """Returns the data that was read for the plan already; None if it is damaged.

        Raises:
            UnsureError: If such data must be read first.
            InvalidError: If several ranks would have to read it.
        """
        there, selection = self.there, self.selection
        self.wanted = set[str]()
        for at, dtype in enumerate(there.dtypes):
            if dtype not in (TREE, PICKLE) or self.order[at] is None:
                continue
            name = there.names[at]
            whole = selection.has_whole(name)
            if dtype == PICKLE:
                # An object that cannot be unpickled must be known before an array is filled.
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
        """Returns the checkpoint, with the leaves of those trees that are not taken as a whole."""
        there = self.there
        trees = {
            at: looked[there.names[at]]
            for at, dtype in enumerate(there.dtypes)
            if dtype == TREE and there.names[at] in looked
        }
        # Patterns with `*` and the like skip entries that no path can name.
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
        """Whether a tree stays one leaf: no path can name its entries, and no pattern does."""
        selection = self.selection
        return (
            not selection.has_whole(path or ROOT)
            and not selection.names_part(inside(path))
            and not is_nameable(tree)
        )

    def _trees_that_fit(self, trees: dict[int, Any], closed: set[int]) -> set[int]:
        """Returns numbers of trees that fit a container of the same form that the program holds."""
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
        """Returns numbers of the leaves of `into` that are trees."""
        return [at for at, dtype in enumerate(self.here.dtypes) if dtype == TREE]

    def _fitting(self, trees: dict[int, Any], theirs: dict[str, int], closed: set[int]) -> set[int]:
        """Works as above, given the trees by path."""
        here, mutable = self.here, mutable_containers(self.here)
        containers = {
            node.path: thing for node, thing in zip(here.nodes, here.containers, strict=True)
        }
        leaves = {path_of(here, at): at for at in self._my_trees()}
        fitting = set[int]()
        for path, at in theirs.items():
            my = leaves.get(path)
            mine = containers.get(path) if my is None else here.leaves[my]
            is_whole = self.selection.has_whole(path or ROOT)
            is_chosen = is_whole or (at in closed and self.selection.has(path or ROOT))
            if mine is None or not is_chosen:
                continue
            is_fixed = type(mine) is tuple and not is_changeable(path, mutable)
            if not is_fixed and fits(mine, trees[at]):
                fitting.add(at)
        return fitting

    def _unpickle(self, looked: dict[str, Any]) -> None:
        """Makes the objects that go into `into`, before any of its arrays is filled."""
        for at, name in enumerate(self.there.names):
            if self.there.dtypes[at] == PICKLE and name in looked and self.chosen[at]:
                self.known[at] = self._unpickled(at, looked[name])

    def _refuse_pickles(self) -> None:
        if self.allow_pickle or PICKLE not in self.there.dtypes:
            return
        leaves = zip(self.there.names, self.there.dtypes, self.chosen, strict=True)
        found = [name for name, dtype, chosen in leaves if chosen and dtype == PICKLE]
        if found:
            some = _some(found)
            raise InvalidError(
                f"checkpoint {self.epoch} holds pickled objects ({some}). Unpickling runs code: if "
                "you trust every user that can write to the pool, open the job with "
                "`pool.job(..., allow_pickle=True)`; else leave them out with `only`"
            )

    def _check_lengths(self, lengths: list[int]) -> None:
        """Checks that the length of each region fits its dtype and shape."""
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
        """Refuses dtypes that NumPy lacks, for arrays that are made."""
        texts = [text for text in set(self.there.dtypes) if text[:3] != "py:"]
        for text in texts if self.fresh else filter(is_value, texts):
            try:
                _dtypes.parse(text.removeprefix(SCALAR))
            except ValueError as error:
                for at, dtype in enumerate(self.there.dtypes):
                    if dtype == text and self.chosen[at]:
                        raise self._no_dtype(at, error) from None

    def _share_memory(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns which arrays of `into` are `tied` to others, and which are `mixed`."""
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
        """Makes a new array for a region; returns it in the order of its memory."""
        fortran = at in self.fortran
        shape = self.there.shapes[at]
        if dtype.itemsize == 0:
            # NumPy allocates a byte for elements without bytes, unless a buffer has none.
            made: Any = np.ndarray(shape, dtype, buffer=b"")
            self.objects[at] = made
            return bytearray()
        made = _memory.empty_of(shape, dtype, "F" if fortran else "C")
        self.objects[at] = made
        return made.T if fortran else made

    def _make_whole(self, at: int, dtype: "np.dtype[Any]") -> Any:
        """Makes a new array for the whole of the global array that a region is a part of."""
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
        """Returns the program's array for a region, or another one to copy from later."""
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
        """Refuses arrays that share memory, unless all have the same content in the checkpoint."""
        if target.tobytes() != made.tobytes():
            with_it = self.mixed.get(at, self.tied.get(at, at))
            name, other = self.there.names[at], self.there.names[with_it]
            raise InvalidError(
                f"{shown(name)} and others such as {shown(other)} share memory in `into`, and "
                f"differ in checkpoint {self.epoch}. Give each its own array, as when it was "
                "saved, or leave one of them out with `only`"
            )

    def _fill_part(self, at: int, target: Any, original: Any, part: tuple[Any, ...]) -> Any:
        """Returns the program's part of a global array, or another array to copy from later."""
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
        """Returns how a lazy restore fills memory, for `LazyRestored`, from the engine's report."""
        if self.copied_bytes:
            why = "arrays that are not contiguous, or cannot be written, are copied from others"
            eager_because = "; ".join(filter(None, (eager_because, why)))
            lazy_bytes = max(0, lazy_bytes - self.copied_bytes)
            mode = mode if lazy_bytes else "eager"
        return {"mode": mode, "lazy_bytes": lazy_bytes, "eager_because": eager_because}

    def select(self) -> Callable[[str], list[str]]:
        """Returns a function that lists the regions that a name selects, as in `only`."""
        # The function must refer to these, and not to the program's arrays.
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
        # Check once all are filled.
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
    """Adds to an error that `into` may have changed in part."""
    text = "`into` may hold parts of a checkpoint now: restore again, or throw that state away"
    if isinstance(error, Error):
        error.into_changed = True
        # The plan for an older checkpoint may have said so. It is no longer true.
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
    """Restores a job; returns the tree, None without a checkpoint, and the report.

    Raises:
        Error: Errors of `Job.restore`.
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
