"""Saves the state of a running program, and restores it after a crash.

```python
import outlive

pool = outlive.open("ckpt")
job = pool.job("simulation", every_s=1.0)
state = {"u": outlive.zeros((4096, 4096)), "step": 0}
job.restore(into=state)  # the newest whole checkpoint, if there is one
while state["step"] < 10_000:
    advance(state)
    state["step"] += 1
    job.save(state)  # saves at most once a second, and writes in the background
job.close()
```

Warnings and other notices go to the logger "outlive".
"""

from outlive._api import Job, Pool, open, register
from outlive._autosave import Autosave
from outlive._commits import CommitEvent, CommitEvents
from outlive._core import __version__
from outlive._errors import (
    BugError,
    DamagedError,
    Error,
    FailedSaveWarning,
    FencedError,
    FullError,
    InvalidError,
    RetryError,
)
from outlive._files import FileTrouble, Got, Put
from outlive._gate import Gate, GateStatus, SinkStatus
from outlive._group import Group, Ranks, Sharded, block_cyclic, ranks, sharded
from outlive._memory import array, empty, zeros
from outlive._metrics import MetricsServer, process_metrics, process_metrics_text, serve_metrics
from outlive._plot import Plot, plot
from outlive._preempt import StopRequest, on_preempt
from outlive._rng import Rng, rng
from outlive._saves import (
    Collected,
    Epoch,
    JobStatus,
    LazyRestored,
    Pruned,
    Restored,
    Save,
    SaveInterval,
    SaveStats,
)
from outlive._summary import SummaryWriter

__all__ = [
    "Autosave",
    "BugError",
    "Collected",
    "CommitEvent",
    "CommitEvents",
    "DamagedError",
    "Epoch",
    "Error",
    "FailedSaveWarning",
    "FencedError",
    "FileTrouble",
    "FullError",
    "Gate",
    "GateStatus",
    "Got",
    "Group",
    "InvalidError",
    "Job",
    "JobStatus",
    "LazyRestored",
    "MetricsServer",
    "Plot",
    "Pool",
    "Pruned",
    "Put",
    "Ranks",
    "Restored",
    "RetryError",
    "Rng",
    "Save",
    "SaveInterval",
    "SaveStats",
    "Sharded",
    "SinkStatus",
    "StopRequest",
    "SummaryWriter",
    "__version__",
    "array",
    "block_cyclic",
    "empty",
    "on_preempt",
    "open",
    "plot",
    "process_metrics",
    "process_metrics_text",
    "ranks",
    "register",
    "rng",
    "serve_metrics",
    "sharded",
    "zeros",
]
