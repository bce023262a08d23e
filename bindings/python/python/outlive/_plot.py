"""Pictures of a job's checkpoints."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Literal

from outlive import _core
from outlive._errors import InvalidError
from outlive._job import Job


class Plot:
    """A picture. Notebooks show it without a further call.

    Attributes:
        svg: The picture as SVG.
    """

    def __init__(self, svg: str) -> None:
        """Made by `outlive.plot`."""
        self.svg = svg

    @property
    def png(self) -> bytes:
        """The picture as PNG, two pixels for each unit of the SVG."""
        return _core.picture_png(self.svg)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the picture to a file, as SVG or PNG.

        Raises:
            InvalidError: If the name has an extension other than ``.svg`` or ``.png``.
        """
        kind = Path(path).suffix.lower()
        if kind not in ("", ".svg", ".png"):
            raise InvalidError(
                f"cannot draw into {path}: a picture is SVG or PNG; use a name that ends in .svg "
                "or .png"
            )
        Path(path).write_bytes(self.png if kind == ".png" else self.svg.encode())

    def _repr_svg_(self) -> str:
        return self.svg


def plot(job: Job, *, axis: Literal["epoch", "time"] = "epoch") -> Plot:
    """Draws a job's checkpoints: labels, metrics, stalls, bytes, shared data.

    A notebook shows the picture; `save` writes it to a file, as SVG or PNG. Outliers do not flatten
    a panel: a mark at its edge stands for each.

    Args:
        job: The job.
        axis: "epoch" sets checkpoints apart by their numbers, "time" by the times of their freezes.
            Some of them have both below the axis.

    Raises:
        InvalidError: If `job` is not a job, or `axis` is neither of these.
    """
    if not isinstance(job, Job):
        raise InvalidError(f"a plot shows one job: give `pool.job(name)`, not {job!r}")
    return Plot(job._core.plot(str(axis)))  # the job's own module
