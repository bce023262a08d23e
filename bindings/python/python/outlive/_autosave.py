"""Saves at the ends of a loop's steps: `Job.autosave`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outlive import _notices
from outlive._deferred import Deferred, Late
from outlive._errors import Error, InvalidError

if TYPE_CHECKING:
    from outlive._job import Job
    from outlive._saves import Save

# How far a state can be trusted between two calls.
_UNKNOWN, _INSIDE, _BETWEEN = "unknown", "inside a step", "between two steps"


class Autosave:
    """Saves a state at the ends of a loop's steps, and at the end of the `with`.

    ```python
    with job.autosave(state) as autosave:
        while state["step"] < 1000:
            advance(state)
            autosave()
    ```

    Only the program knows when its state is consistent, so it says where a step ends. The call does
    the same as `Job.save`: it saves if a save is due by the job's interval.

    At the end of the `with` the state is saved, and the checkpoint is committed when the `with` is
    over. If an exception ends it, the state may be half changed, and is not saved. Then the
    checkpoints of earlier steps stay. To have the state saved after an exception as well, where
    that is safe, put each step into a `with` of its own:

    ```python
    with job.autosave(state) as autosave:
        for batch in batches:
            with autosave.step():
                train(state, batch)
    ```

    The state changes only inside of these steps. So an exception between two of them, such as a
    Ctrl-C or an error of `batches`, finds it consistent, and the last step is saved. An exception
    inside of a step saves nothing. Neither does any exception in a group of ranks, since the other
    ranks may be anywhere.
    """

    def __init__(self, job: Job, state: Any, *, is_group: bool) -> None:
        """Made by `Job.autosave`."""
        self._job, self._is_group = job, is_group
        is_function = callable(state) and not isinstance(state, Deferred)
        self._state = Late(state) if is_function else state
        self._place = _UNKNOWN
        # The last save that was made, and whether the last step is in it.
        self._last: Save | None = None
        self._is_saved = False

    def __call__(
        self,
        *,
        force: bool = False,
        label: str | None = None,
        pin: bool = False,
        tags: str | Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Save:
        """Marks the end of a step, and saves if a save is due. The next step may begin at once.

        Arguments, result and errors are those of `Job.save`.
        """
        self._place = _UNKNOWN
        return self._save(force=force, label=label, pin=pin, tags=tags, metrics=metrics)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Contains one step of the loop: the state changes only in here.

        At its end this saves if a save is due. If an exception ends it, the step is not complete,
        and nothing is saved until another one is.

        Raises:
            InvalidError: If a step is under way.
            Error: As `Job.save`.
        """
        if self._place == _INSIDE:
            raise InvalidError(
                "a step is under way, and contains no other: end it before the next one begins"
            )
        self._place = _INSIDE
        self._is_saved = False
        try:
            yield
        except BaseException:
            # If the program goes on, its next step begins where this one has left the state.
            self._place = _UNKNOWN
            raise
        self._place = _BETWEEN
        self._save()

    def _save(self, **options: Any) -> Save:
        self._is_saved = False
        save = self._job.save(self._state, **options)
        if save:
            self._last = save
            self._is_saved = True
        return save

    def __enter__(self) -> Self:
        """Returns the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Saves the state, unless an exception may have left it half changed."""
        if error is None:
            self._save(force=True, wait=True)
            return
        if self._place != _BETWEEN or self._is_group:
            where = "in a group of ranks" if self._is_group else "perhaps in the middle of a step"
            newest = "made none" if self._last is None else f"made checkpoint {self._last.epoch}"
            error.add_note(
                f"outlive: the exception came {where}, so the state was not saved; before, this "
                f"`autosave` {newest}"
            )
            return
        try:
            if self._is_saved and self._last is not None:
                self._last.wait()
            else:
                self._save(force=True, wait=True)
        except Error as failure:
            # Python raises the program's own exception.
            error.add_note(f"outlive: besides, the last step could not be saved: {failure}")
            _notices.tell(logging.ERROR, "the last step could not be saved: %s", failure)
