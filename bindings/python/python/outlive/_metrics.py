"""Metrics for Prometheus: of this process, and of a pool."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self

from outlive import _core
from outlive._arguments import number
from outlive._errors import InvalidError
from outlive._pool import Pool


def process_metrics() -> dict[str, int | dict[str, Any]]:
    """Returns the process metrics: those of all saves, restores, gcs and repairs of its pools.

    The names and units are those of Prometheus, as `outlive_save_written_bytes_total`. A gauge is
    missing until it is set. A forked child goes on from the values of its parent.

    Returns:
        The value of each metric by name. A histogram is a dict: "count" and "sum" (seconds) of all
        durations, and "buckets", a list of (upper bound in seconds, number of durations up to it).
    """
    return _core.process_metrics()


def process_metrics_text() -> str:
    """Returns `process_metrics` in the text format of Prometheus, for an endpoint."""
    return _core.process_metrics_text()


class MetricsServer:
    """A server of metrics, from `serve_metrics`. It ends with `close`, or with the process.

    As a context manager, it closes itself at the end.
    """

    def __init__(self, core: _core.MetricsServer) -> None:
        """Made by `serve_metrics`."""
        self._core = core

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        return self._core.port

    @property
    def url(self) -> str:
        """The address of the metrics, such as "http://127.0.0.1:40123/metrics"."""
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        """Ends the server, and frees the port. Later calls do nothing."""
        self._core.close()

    def __enter__(self) -> Self:
        """Returns the server itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """Returns the address, for people."""
        return f"<outlive.MetricsServer {self.url}>"


def serve_metrics(
    port: int = 0, *, pool: Pool | str | os.PathLike[str] | None = None
) -> MetricsServer:
    """Serves metrics to Prometheus, on 127.0.0.1 and in a thread of this process.

    ```python
    server = outlive.serve_metrics(9099, pool="ckpt")  # scrape http://127.0.0.1:9099/metrics
    ```

    The metrics are those of `process_metrics_text` and, with `pool`, those that
    `outlive metrics POOL` prints. Each request reads the pool again. Every user of this machine can
    read them, as a collector runs as a user of its own: names of jobs and targets are among them.

    Args:
        port: Port to listen on; 0 takes a free one.
        pool: Pool whose figures to serve, too: a `Pool`, or the location of one.

    Returns:
        The server. Keep it: when it is deleted, it ends.

    Raises:
        InvalidError: If the port cannot be used, or there is no such pool.
        Error: If the pool cannot be read.
    """
    if isinstance(port, bool) or number("port", port) > 65_535:
        raise InvalidError(f"port = {port!r} is not possible: give 0 to 65535")
    place = pool.location if isinstance(pool, Pool) else pool
    return MetricsServer(_core.MetricsServer(port, None if place is None else os.fspath(place)))
