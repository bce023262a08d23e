"""A restore, from the call to the report."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from outlive import _core, _notices
from outlive._errors import DamagedError, Error
from outlive._rebuild import Rebuild
from outlive._saves import LazyRestored, Restored


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


def first_restored(
    rebuild: Rebuild,
    core: _core.Job,
    epochs: Sequence[int | None],
    *,
    lazy: bool,
    tick: Callable[[], None],
    job: str,
) -> tuple[Any, Restored]:
    """Restores the first whole one of some checkpoints; names the damaged ones before it.

    Raises:
        Error: Errors of `Job.restore`.
    """
    for epoch in epochs[:-1]:
        try:
            return restored(rebuild, core, epoch, lazy=lazy, tick=tick)
        except DamagedError as error:
            _notices.tell(
                logging.WARNING,
                "job %s: passed over checkpoint %s, which is damaged: %s",
                job,
                epoch,
                error,
            )
    return restored(rebuild, core, epochs[-1], lazy=lazy, tick=tick)


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
    done.update(rebuild.match.report())
    if not lazy:
        return tree, Restored(**done)
    fill = done.pop("fill")
    how = rebuild.how(**fill.how())
    select = rebuild.select()
    return tree, LazyRestored(_fill=fill, _select=select, _tick=tick, **how, **done)
