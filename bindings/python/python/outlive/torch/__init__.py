"""outlive for PyTorch: `capture` for training loops, a storage for distributed checkpoints.

```python
import outlive.torch

run = outlive.torch.capture(model=model, optimizer=optimizer, progress=progress)
run.restore(job)
while progress["step"] < 10_000:
    train(model, optimizer)
    progress["step"] += 1
    run.save(job)
```
"""

from typing import TYPE_CHECKING, Any

from outlive.torch._capture import Capture, capture

if TYPE_CHECKING:
    from outlive.torch._dcp_read import DCPReader
    from outlive.torch._dcp_write import DCPWriter

__all__ = ["Capture", "DCPReader", "DCPWriter", "capture"]


def __getattr__(name: str) -> Any:
    """Imports the storage only when it is used: PyTorch's part of it takes long."""
    if name == "DCPReader":
        from outlive.torch._dcp_read import DCPReader

        return DCPReader
    if name == "DCPWriter":
        from outlive.torch._dcp_write import DCPWriter

        return DCPWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
