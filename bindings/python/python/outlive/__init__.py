"""Keeps the state of a running program safe, and gives it back after any failure.

    import outlive

    pool = outlive.open("ckpt")
    job = pool.job("simulation", every_s=1.0)
    state = {"u": outlive.zeros((4096, 4096)), "step": 0}
    job.restore(into=state)  # the newest good checkpoint, if there is one
    while state["step"] < 10_000:
        advance(state)
        state["step"] += 1
        job.save(state)  # at most once a second; goes on at once
    job.close()

Notices go to the logger "outlive".
"""

from outlive._api import Job, Pool, open, plot
from outlive._core import __version__
from outlive._errors import (
    BugError,
    DamagedError,
    Error,
    FencedError,
    FullError,
    InvalidError,
    RetryError,
)
from outlive._files import FileTrouble, Got, Put
from outlive._memory import array, empty, zeros
from outlive._saves import (
    Collected,
    Epoch,
    LazyRestored,
    Plot,
    Pruned,
    Restored,
    Save,
    SaveStats,
)

__all__ = [
    "BugError",
    "Collected",
    "DamagedError",
    "Epoch",
    "Error",
    "FencedError",
    "FileTrouble",
    "FullError",
    "Got",
    "InvalidError",
    "Job",
    "LazyRestored",
    "Plot",
    "Pool",
    "Pruned",
    "Put",
    "Restored",
    "RetryError",
    "Save",
    "SaveStats",
    "__version__",
    "array",
    "empty",
    "open",
    "plot",
    "zeros",
]
