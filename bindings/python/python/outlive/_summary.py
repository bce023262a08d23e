"""A drop-in for TensorBoard's `SummaryWriter`, whose event files wait for commits."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from outlive import _tfevents
from outlive._errors import InvalidError

# The name is the same in each run. It follows those of TensorBoard's own writers in the alphabet:
# TensorBoard reads the files of a folder in this order, and does not come back to an earlier one.
_NAME = "events.out.tfevents.outlive"


class SummaryWriter:
    """Writes event files for TensorBoard once a checkpoint covers them.

    Made by `Gate.summary_writer`. Its methods take the arguments of
    `torch.utils.tensorboard.SummaryWriter`. It needs neither PyTorch nor TensorBoard.
    """

    def __init__(
        self,
        log_dir: str,
        suffix: str,
        open_file: Callable[[str], IO[bytes]],
        files: Callable[[], Collection[str]],
    ) -> None:
        """Made by `Gate.summary_writer`."""
        self.log_dir = log_dir
        self._name = _NAME + suffix
        self._open = open_file
        self._gate_files = files
        self._files: dict[Path, IO[bytes]] = {}
        self._bins: Any = None
        # The first event looks again: the program may restore after this.
        self._has_events = False
        self._file(Path(log_dir))
        self._open_below()

    def _open_below(self) -> None:
        """Opens the files of folders below that earlier runs of the job have written.

        Some may be cut, or outputs wait for them. Files of other jobs are left alone.
        """
        top = Path(self.log_dir)
        root = top.resolve()
        for path in map(Path, sorted(self._gate_files())):
            if path.name == self._name and path.is_relative_to(root):
                self._file(top / path.parent.relative_to(root))

    def get_logdir(self) -> str:
        """Returns the folder of the event files."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Adds a number.

        Args:
            tag: Name of its series.
            scalar_value: The number, or an array with one element.
            global_step: Step that it belongs to; 0 if None.
            walltime: Seconds since 1970; now if None.
            new_style: Whether to write the form of TensorFlow 2.
            double_precision: Whether to write 64 bits, in that form.
        """
        value = _number(scalar_value)
        if new_style or double_precision:
            summary = _tfevents.tensor_scalar(tag, value, is_double=double_precision)
        else:
            summary = _tfevents.scalar(tag, value)
        self._add(Path(self.log_dir), summary, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Adds several numbers to one chart. Each has an event file, in a folder of its own.

        Args:
            main_tag: Name of the chart.
            tag_scalar_dict: The numbers by name.
            global_step: Step that they belong to; 0 if None.
            walltime: Seconds since 1970; now if None.
        """
        walltime = time.time() if walltime is None else walltime
        for tag, value in tag_scalar_dict.items():
            folder = Path(f"{self.log_dir}/{main_tag.replace('/', '_')}_{tag}")
            self._add(folder, _tfevents.scalar(main_tag, _number(value)), global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: int | None = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Adds a histogram.

        Args:
            tag: Its name.
            values: An array of numbers.
            global_step: Step that it belongs to; 0 if None.
            bins: "tensorflow", or what `numpy.histogram` takes: its limits, or "auto".
            walltime: Seconds since 1970; now if None.
            max_bins: Largest number of bins.
        """
        array = _array(values)
        if array.size == 0:
            raise ValueError("a histogram needs at least one value")
        if isinstance(bins, str) and bins == "tensorflow":
            self._bins = _tfevents.default_bins() if self._bins is None else self._bins
            bins = self._bins
        summary = _tfevents.histogram(tag, array, bins, max_bins)
        self._add(Path(self.log_dir), summary, global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: int | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Adds an image, as PNG.

        Args:
            tag: Its name.
            img_tensor: Array of uint8, or of numbers from 0 to 1, of 1, 3 or 4 channels.
            global_step: Step that it belongs to; 0 if None.
            walltime: Seconds since 1970; now if None.
            dataformats: Order of its dimensions: "CHW", "HWC", "HW" or another order.
        """
        summary = _tfevents.image(tag, _pixels(_array(img_tensor), dataformats.upper()))
        self._add(Path(self.log_dir), summary, global_step, walltime)

    def add_text(
        self,
        tag: str,
        text_string: str,
        global_step: int | None = None,
        walltime: float | None = None,
    ) -> None:
        """Adds a text.

        Args:
            tag: Its name.
            text_string: The text, in Markdown.
            global_step: Step that it belongs to; 0 if None.
            walltime: Seconds since 1970; now if None.
        """
        summary = _tfevents.text(tag, text_string)
        self._add(Path(self.log_dir), summary, global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, list[Any]] | None = None,
        run_name: str | None = None,
        global_step: int | None = None,
    ) -> None:
        """Adds a run with its hyperparameters and metrics, in a folder of its own.

        Args:
            hparam_dict: Hyperparameters by name: numbers, texts, truth values or None, which is
                left out.
            metric_dict: Metrics by tag.
            hparam_domain_discrete: Values that hyperparameters may have.
            run_name: Name of the folder. Without it the name follows from all arguments, and a
                second call with equal ones adds nothing.
            global_step: Step of the metrics; 0 if None.
        """
        given = {
            name: _hparam(name, value) for name, value in hparam_dict.items() if value is not None
        }
        metrics = {tag: _number(value) for tag, value in metric_dict.items()}
        domains = {
            name: [_hparam(name, item) for item in items]
            for name, items in (hparam_domain_discrete or {}).items()
        }
        if unknown := domains.keys() - given.keys():
            raise InvalidError(
                f"hparam_domain_discrete names {sorted(unknown)}, which hparam_dict lacks"
            )
        summaries = _tfevents.hparams(given, metrics, domains)
        summaries += [_tfevents.scalar(tag, value) for tag, value in metrics.items()]
        folder = Path(self.log_dir, run_name or f"hparams-{_hash(summaries, global_step)}")
        if run_name is None and self._file(folder).tell() > 0:
            return
        walltime = time.time()
        for at, summary in enumerate(summaries):
            self._add(folder, summary, global_step if at > 2 else None, walltime)

    def flush(self) -> None:
        """Does nothing: events are written once a checkpoint covers them. See `Gate.flush`."""

    def close(self) -> None:
        """Closes the files; their events still wait for a checkpoint. A later call opens them."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> SummaryWriter:
        """Returns this writer."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes it."""
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError`, which names the methods there are."""
        raise AttributeError(
            f"the gate's SummaryWriter has no {name!r}: it has add_scalar, add_scalars, "
            "add_histogram, add_image, add_text, add_hparams, flush and close"
        )

    def _file(self, folder: Path) -> IO[bytes]:
        """Returns the event file of a folder, which it opens once."""
        file = self._files.get(folder)
        if file is None:
            folder.mkdir(parents=True, exist_ok=True)
            file = self._open(os.fspath(folder / self._name))
            self._files[folder] = file
        return file

    def _add(self, folder: Path, summary: bytes, step: int | None, walltime: float | None) -> None:
        """Gives an event to the gate. A record is one output, so it is written whole."""
        walltime = time.time() if walltime is None else walltime
        if not self._has_events:
            self._has_events = True
            self._open_below()
        file = self._file(folder)
        data = _tfevents.record(_tfevents.event(walltime, int(step or 0), summary))
        # A restore of a checkpoint from before the first event empties the file again.
        if file.tell() == 0:
            data = _tfevents.record(_tfevents.version(walltime)) + data
        file.write(data)


def _array(value: Any) -> Any:
    """Returns an array of NumPy; a tensor of PyTorch comes to the processor first."""
    # NumPy has no bfloat16, so PyTorch refuses to convert it.
    is_bfloat16 = str(getattr(value, "dtype", None)) == "torch.bfloat16"
    for step in ("detach", "cpu", *(["float"] if is_bfloat16 else [])):
        method = getattr(value, step, None)
        value = method() if callable(method) else value
    return np.asarray(value)


def _number(value: Any) -> float:
    """Returns a number, also of an array with one element."""
    if isinstance(value, str):
        raise InvalidError(f"a scalar is a number, not the text {value!r}")
    array = _array(value)
    if array.size != 1:
        raise InvalidError(f"a scalar has one element, not the shape {array.shape}")
    return float(array.reshape(()))


def _hparam(name: str, value: Any) -> bool | float | str:
    if isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    try:
        return _number(value)
    except (TypeError, ValueError) as error:
        raise InvalidError(
            f"hyperparameter {name!r} is of type {type(value).__name__}: give a number, a text or "
            "a truth value"
        ) from error


def _hash(summaries: list[bytes], step: int | None) -> str:
    return hashlib.sha256(b"".join([*summaries, str(step).encode()])).hexdigest()[:12]


def _pixels(array: Any, order: str) -> Any:
    """Returns an image as uint8 with the dimensions HWC."""
    if sorted(order) not in (["C", "H", "W"], ["H", "W"]) or array.ndim != len(order):
        raise InvalidError(
            f"the image has the shape {array.shape}, which dataformats={order!r} does not describe"
        )
    if "C" not in order:
        array, order = array[..., None], order + "C"
    array = array.transpose([order.index(axis) for axis in "HWC"])
    if array.dtype != np.uint8:
        array = (np.asarray(array, np.float64) * 255).clip(0, 255).astype(np.uint8)
    if array.shape[2] == 1:
        array = array.repeat(3, axis=2)
    if array.shape[2] not in (3, 4):
        raise InvalidError(f"the image has {array.shape[2]} channels: 1, 3 or 4 are possible")
    return array
