"""The plan of a restore: what is taken of a checkpoint, and where the engine puts the data."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

from outlive import _core, _objects
from outlive._compare import classes, refusal, refuse_differences, value_lists
from outlive._destinations import Destinations
from outlive._errors import DamagedError, InvalidError
from outlive._flat import (
    PICKLE,
    ROOT,
    TREE,
    Flat,
    Skeleton,
    escape,
    is_value,
    parent,
    read_skeleton,
    shown,
)
from outlive._held import Held
from outlive._kinds import Finder
from outlive._looks import Looks
from outlive._match import Match
from outlive._opening import Opening
from outlive._refusals import Refusals, some, texts_to_make
from outlive._select import Selection
from outlive._tied import tied
from outlive._trees import inside, path_of
from outlive._views import Views, take_notes
from outlive._wholes import Wholes, also_whole

# Stands for "no `into`": any value, also None, can be an `into`.
FRESH: Any = object()


class Planning:
    """Plans a restore with `plan`.

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
        match: Match,
        as_plain: bool = False,
    ) -> None:
        """Looks at `into`, which may be `FRESH`.

        With `as_plain`, a new tree has arrays of NumPy where the checkpoint has other packages'.

        Raises:
            InvalidError: If `into` cannot be a state.
        """
        self.fresh = into is FRESH
        self.into = into
        # The caller's selection, and its form for the current checkpoint.
        self.asked = self.selection = Selection(only)
        self.allow_pickle = allow_pickle
        self.match, self.as_plain = match, as_plain
        self.held = Held(into, is_fresh=self.fresh, allow_pickle=allow_pickle)
        self.looks = Looks()
        self.fills_into = False
        # Number of ranks that restore.
        self.ranks = 1

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
        self.epoch, count, self.regions = epoch, len(names), names
        self.looks.is_probe = False
        self.match.begin()
        skeleton = read_skeleton(attachment)
        if skeleton is not None and self.as_plain:
            skeleton = _objects.plain(skeleton)
        self.flat_dict = self.fresh and skeleton is None
        self.selection = self.asked
        if skeleton is None and not self.fresh:
            self.held.take(frozenset(), epoch)
            self.selection = self.asked.of_regions()
            if not self.match.conforms:
                self.asked.of(Flat(names), epoch)  # every pattern selects something
                names = self._in_into(names)
                skeleton = self._skeleton_of_into(names)
        # By number of the leaf, the number of its region; None if the checkpoint has none for this
        # rank.
        self.order: list[int | None] = list(range(len(names)))
        if skeleton is not None and skeleton.names is not None:
            numbers = {name: at for at, name in enumerate(names)}
            self.order = [numbers.get(name) for name in skeleton.names]
            names = skeleton.names
            dtypes = ["|u1" if at is None else dtypes[at] for at in self.order]
            shapes = [(0,) if at is None else shapes[at] for at in self.order]
            lengths = [0 if at is None else lengths[at] for at in self.order]
            distributions = [None if at is None else distributions[at] for at in self.order]
        has_containers = skeleton is not None
        skeleton = skeleton or Skeleton()
        self.there = there = Flat(names, dtypes, shapes, [], skeleton.nodes, skeleton.fortran)
        there.wraps, there.notes = skeleton.wraps, skeleton.notes
        self._find_wholes()
        there.parts = {at: part for at, part in enumerate(distributions) if isinstance(part, tuple)}
        looked = self._looked_at(ranks)
        if looked is None:
            self.looks.is_probe = True
            return [True if name in self.looks.wanted else None for name in self.regions]
        self.parsed = Refusals(there, epoch).lengths(lengths)
        self._take_notes()
        opening = Opening(
            self.held,
            there,
            self.order,
            selection=self.selection,
            match=self.match,
            epoch=epoch,
        )
        opening.open_trees(looked, has_containers=has_containers)
        self.there, self.order, self.known = opening.there, opening.order, opening.known
        there = self.there
        self._find_wholes()
        self._find_more_wholes()
        names, dtypes = there.names, there.dtypes
        self.chosen = chosen = self.selection.of(there, epoch, self.match.left_over)
        self._choose_wholes()
        if self.match.absent:
            chosen[:] = [
                c and n not in self.match.absent for c, n in zip(chosen, names, strict=True)
            ]
        # Arrays in whole objects of `into` that share their memory with others.
        self.shared = set[int]()
        self.places = places = Destinations(there, self.held.flat, self.parsed, self.match, epoch)
        taken = [at for at in range(len(names)) if chosen[at] and at not in self.known]
        self.views = views = Views(
            places, taken, self.held.numbers, self._is_filled, as_plain=self.as_plain
        )
        self._refuse_missing(ranks)
        if not self.fresh:
            self._refuse_differences()
        self._refuse_objects()
        self._refuse_dtypes()
        self._unpickle(looked)
        values = {dtype for dtype in set(dtypes) if is_value(dtype)}
        views.link()
        places.tied, places.mixed = self._share_memory()
        wishes: list[Any] = [None] * len(names)
        for at in taken:
            dtype = dtypes[at]
            if at in self.known or at in views.of:
                continue
            if dtype in values:
                wishes[at] = True
            elif self._is_filled(at):
                wishes[at] = places.fill(at, self.held.numbers[names[at]])
            elif at in there.parts and ranks != self.ranks:
                wishes[at] = places.make_whole(at, self.parsed[dtype])
            else:
                wishes[at] = places.make(at, self.parsed[dtype])
            if at in views.owned:
                views.owned[at].array = wishes[at]
        for at in views.of:
            views.plan(at)
        self.fills_into = not self.fresh
        ordered: list[Any] = [None] * count
        for region, wish in zip(self.order, wishes, strict=True):
            if region is not None:
                ordered[region] = wish
        for region, memory in views.memories():
            ordered[region] = memory
        return ordered

    def _take_notes(self) -> None:
        """Gives the tensors of the checkpoint their own dtypes and shapes."""
        there = self.there
        try:
            take_notes(there, self.order)
        except LookupError as error:
            raise self._damaged(f"a tensor has no memory: {error!r}") from error
        for at in there.notes:
            text = there.dtypes[at]
            if text not in self.parsed:
                self.parsed[text] = Refusals(there, self.epoch).dtype(at, text)

    def _in_into(self, regions: list[str]) -> list[str]:
        """Returns the names in `into` of regions that another binding has saved.

        A region "grid/u" is `into["grid"]["u"]` or `into["grid/u"]`, as the program has it.
        """
        taken = set(regions)
        names = []
        for region in regions:
            as_key = escape(region)
            is_key = (
                region not in self.held.numbers
                and as_key in self.held.numbers
                and as_key not in taken
            )
            names.append(as_key if is_key else region)
        return names

    def _skeleton_of_into(self, names: list[str]) -> Skeleton:
        """Returns the containers of `into`, and names of its leaves and of those that it lacks.

        Raises:
            InvalidError: If a selected leaf of it is not in the checkpoint.
        """
        theirs, of_values = set(names), value_lists(self.held.flat)
        lacking = [n for n in self.held.flat.names if n not in theirs and self.selection.has(n)]
        # Names that are not selected need no container there.
        more = [n for n in names if n not in self.held.numbers and self.selection.has(n)]
        if lacking:
            # A list of values counts as one.
            paths = (parent(name) if parent(name) in of_values else name for name in lacking)
            found = [f"{shown(path)} is not in the checkpoint" for path in dict.fromkeys(paths)]
            found += [f"{shown(name)} is missing from `into`" for name in more]
            what = f"`into` does not match checkpoint {self.epoch}"
            raise refusal(what, found, "Correct `into`")
        return Skeleton(self.held.flat.nodes, [], self.held.flat.names + more)

    def _find_wholes(self) -> None:
        """Finds the objects of the checkpoint that are replaced as a whole."""
        # Plain forms are no objects.
        self.wholes = Wholes(Flat() if self.as_plain else self.there)

    def _find_more_wholes(self) -> None:
        """Finds objects that are replaced as a whole because of the form of `into`."""
        if self.fresh:
            return
        there, here = also_whole(self.there, self.held.flat)
        if there:
            self.wholes = Wholes(self.there, there)
        # Another checkpoint may be planned before.
        self.held.wholes = Wholes(self.held.flat, here)

    def _choose_wholes(self) -> None:
        """Chooses all of an object that is replaced as a whole, if a part of it is chosen."""
        self.whole_paths = list[str]()
        for whole in self.wholes.all:
            span = slice(whole.begin, whole.end)
            if any(self.chosen[span]) or self.selection.has(whole.path or ROOT):
                self.chosen[span] = [True] * (whole.end - whole.begin)
                self.whole_paths.append(inside(whole.path))

    def _has(self, path: str) -> bool:
        """Whether a container is chosen, as far as that is not up to its entries."""
        return self.selection.has(path) or any(map(f"{path}/".startswith, self.whole_paths))

    def _refuse_missing(self, ranks: int) -> None:
        """Refuses what this rank, or this job, cannot take."""
        refuse = Refusals(self.there, self.epoch)
        leaves = enumerate(zip(self.there.names, self.order, self.chosen, strict=True))
        of = self.views.of
        missing = [
            name
            for at, (name, region, chosen) in leaves
            if chosen
            and at not in self.known
            and (region is None or (at in of and of[at].region is None))
        ]
        refuse.missing_regions(missing, ranks)
        if self.fresh:
            refuse.parts_of_others(self.chosen, ranks, self.ranks)
        if not (self.allow_pickle or self.as_plain):
            refuse.pickles(self.chosen)

    def _refuse_dtypes(self) -> None:
        """Refuses dtypes that NumPy or PyTorch here lack, for arrays and tensors that are made."""
        views, refuse = self.views, Refusals(self.there, self.epoch)
        inner = (at for at in self.wholes.leaves if not self._is_filled(at))
        refuse.missing_dtypes(
            texts_to_make(self.there, None if self.fresh else inner),
            lambda at: self.chosen[at] and not views.is_revived(at),
        )
        if not self.as_plain:
            refuse.missing_tensors(at for at in views.taken if views.is_revived(at))

    def _refuse_differences(self) -> None:
        """Compares the checkpoint with `into`; an object that is a whole is one value."""
        has, all_mine = self.selection.has, [True] * len(self.held.flat.names)
        there, chosen = self.wholes.condensed(self.there, self.chosen, has)
        here, _ = self.held.wholes.condensed(self.held.flat, all_mine, has)
        also = [
            f"{shown(whole.path)} {why}"
            for whole in self.wholes.all
            if self.selection.has(whole.path or ROOT)
            for why in whole.differences(self.held.wholes.at(whole.path))
        ]
        refuse_differences(there, here, self.selection, chosen, self.epoch, self.match, also)

    def _refuse_objects(self) -> None:
        """Refuses objects that cannot be made, before anything is filled."""
        there = self.there
        find = Finder(_objects.classes_of(self.held.flat), trusts=self.allow_pickle)
        make = _objects.PlainObjects if self.as_plain else _objects.Objects
        self.makes = make(find, self.epoch)
        mine = {node.path: node for node in self.held.flat.nodes} if there.has_objects() else {}
        for node in there.nodes:
            if not (node.wraps or isinstance(node.detail, dict)) or not self._has(node.path):
                continue
            own = mine.get(node.path)
            is_kept = own is not None and classes(own.wraps) == classes(node.wraps)
            if self.fresh or not is_kept or node.path in self.wholes.nodes:
                self.makes.check(node.path, node.wraps, node.detail)
        for at, wraps in there.wraps.items():
            if self.chosen[at]:
                self.makes.check(there.names[at], wraps)

    def _is_filled(self, at: int) -> bool:
        """Whether an array of the checkpoint fills one of `into`, instead of a new one."""
        if self.fresh:
            return False
        whole = self.wholes.leaves.get(at)
        my = self.held.numbers.get(self.there.names[at])
        if whole is None:
            return my is None or not is_value(self.held.flat.dtypes[my])
        if my is None or not whole.is_like(self.held.wholes.at(whole.path)) or at in self.shared:
            return False
        there, here = self.there, self.held.flat
        if (there.dtypes[at], there.shapes[at]) != (here.dtypes[my], here.shapes[my]):
            return False
        if is_value(there.dtypes[at]) or at in there.parts or my in here.parts:
            return False
        original = here.originals.get(my)
        return here.leaves[my].flags.writeable or hasattr(original, "__array_namespace__")

    def run(
        self,
        core: _core.Job,
        epoch: int | None,
        user_only: bool | None,
        tick: Callable[[], None],
    ) -> dict[str, Any] | None:
        """Restores by `plan`.

        Raises:
            Error: Errors of the native restore and of `plan`.
        """
        _, self.ranks = core.group() or (0, 1)
        return self.looks.run(core, self.plan, tick, epoch=epoch, user_only=user_only)

    def _looked_at(self, ranks: int) -> dict[str, Any] | None:
        """Returns the data that was read for the plan already; None if it is damaged.

        Raises:
            UnsureError: If such data must be read first.
            InvalidError: If several ranks would have to read it.
        """
        there, selection = self.there, self.selection
        needed = set[str]()
        for at, dtype in enumerate(there.dtypes):
            if dtype not in (TREE, PICKLE) or self.order[at] is None:
                continue
            if self.as_plain if dtype == PICKLE else at in self.wholes.leaves:
                continue
            name = there.names[at]
            whole = selection.has_whole(name)
            if dtype == PICKLE:
                # An object that cannot be unpickled must be known before an array is filled.
                has = selection.has(name) or bool(self.match.renames)
                wanted = not self.fresh and self.allow_pickle and has
            elif self.fresh:
                wanted = not whole and selection.may_have_part(inside(path_of(there, at)))
            else:
                wanted = whole or selection.may_have_part(inside(path_of(there, at)))
                wanted |= bool(self.match.renames)
            if wanted:
                needed.add(name)
        if needed and self.ranks > 1:
            raise InvalidError(
                f"checkpoint {self.epoch} was saved by a program without ranks ({ranks} process), "
                f"and has {some(sorted(needed))} as trees of values: restore it with one rank"
            )
        return self.looks.at(self.epoch, needed)

    def _unpickle(self, looked: dict[str, Any]) -> None:
        """Makes the objects that go into `into`, before any of its arrays is filled."""
        for at, name in enumerate(self.there.names):
            if self.there.dtypes[at] == PICKLE and name in looked and self.chosen[at]:
                self.known[at] = self._unpickled(at, looked[name])

    def _share_memory(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns which arrays of `into` are `tied` to others, and which are `mixed`."""
        if self.fresh:
            return {}, {}
        while True:
            arrays = {
                at: self.held.flat.leaves[self.held.numbers[name]]
                for at, name in enumerate(self.there.names)
                if self.chosen[at]
                and at not in self.known
                and at not in self.views.linked
                and not is_value(self.there.dtypes[at])
                and self._is_filled(at)
            }
            same, mixed = tied(arrays)
            # An object that is replaced as a whole need not share memory any more.
            sharing = {*same, *same.values(), *mixed} & self.wholes.leaves.keys()
            self.shared |= sharing
            if not (sharing or self.views.unlink()):
                return same, mixed

    def how(self, mode: str, lazy_bytes: int, eager_because: str) -> dict[str, Any]:
        """Returns how a lazy restore fills memory, for `LazyRestored`, from the engine's report."""
        copied_bytes = self.places.copied_bytes
        if copied_bytes:
            why = "arrays that are not contiguous, or cannot be written, are copied from others"
            eager_because = "; ".join(filter(None, (eager_because, why)))
            lazy_bytes = max(0, lazy_bytes - copied_bytes)
            mode = mode if lazy_bytes else "eager"
        return {"mode": mode, "lazy_bytes": lazy_bytes, "eager_because": eager_because}

    def select(self) -> Callable[[str], list[str]]:
        """Returns a function that lists the regions that a name selects, as in `only`."""
        # The function must refer to these, and not to the program's arrays.
        there, epoch = self.there, self.epoch
        # A view has no memory but that of another region.
        numbers = dict(enumerate(self.order)) | {
            at: memory.region for at, memory in self.views.of.items()
        }
        regions = {
            at: self.regions[number]
            for at, number in numbers.items()
            if number is not None and at not in self.known
        }
        of_regions = self.selection is not self.asked

        def select(wanted: str) -> list[str]:
            selection = Selection(wanted)
            chosen = (selection.of_regions() if of_regions else selection).of(there, epoch)
            found = {region for at, region in regions.items() if chosen[at]}
            return sorted(found)

        return select

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
