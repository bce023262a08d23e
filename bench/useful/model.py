"""The expected share of useful work, from the measured costs of saves and restarts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SWEEP_POINTS = 200


@dataclass(frozen=True)
class Costs:
    """Measured costs of one way to save, in seconds.

    Attributes:
        pause_s: From a kill to the start of the next process.
        restart_s: From that start to the first step, with the restore, and by how much longer the
            steps take while memory comes.
        first_s: Cost of the first save after a restart, stall and slowdown together; 0 if the
            program makes none.
        costs: Measured costs of later saves, by the seconds of work since the last save.
        latencies: Measured times from the beginning of a save until it is durable, likewise.
        full_s: Work after which everything has changed, so that costs grow no more.
        overhead: Share by which steps take longer between saves, as changes are tracked.
    """

    pause_s: float
    restart_s: float
    first_s: float
    costs: Sequence[tuple[float, float]]
    latencies: Sequence[tuple[float, float]]
    full_s: float
    overhead: float

    def cost(self, work_s: float) -> float:
        """Returns the cost of a save after this much work."""
        return between(self.costs, min(work_s, self.full_s))

    def latency(self, work_s: float) -> float:
        """Returns the time from the beginning of that save until it is durable."""
        return between(self.latencies, min(work_s, self.full_s))


def between(points: Sequence[tuple[float, float]], t: float) -> float:
    """Returns the value at `t` on straight lines through points, which are sorted.

    Below the first and beyond the last point, the line through the nearest two goes on, and rises.
    """
    if len(points) == 1:
        return points[0][1]
    at = next((at for at in range(1, len(points) - 1) if t < points[at][0]), len(points) - 1)
    (left, low), (right, high) = points[at - 1], points[at]
    slope = (high - low) / (right - left)
    if not left <= t <= right:
        slope = max(slope, 0.0)
    anchor, value = (left, low) if t <= right else (right, high)
    return max(value + slope * (t - anchor), 0.0)


def share(costs: Costs, work_s: float, mean_s: float) -> float:
    """Returns the expected share of useful work with `work_s` seconds of work between saves.

    Failures come at exponential times with mean `mean_s`, counted from the start of a process. A
    process that fails after x seconds keeps the work of all saves that were durable by then. Save k
    begins at `restart + first + k·work + (k - 1)·cost`, so the expected number of durable saves is
    a geometric series.
    """
    cost, latency = costs.cost(work_s), costs.latency(work_s)
    # A save waits until the one before it is durable. Meanwhile the program goes on.
    work_s = max(work_s, latency - cost)
    period_s = work_s + cost
    head_s = costs.restart_s + costs.first_s - cost + latency
    saves = math.exp(-head_s / mean_s) / math.expm1(period_s / mean_s)
    return work_s * saves / (mean_s + costs.pause_s) / (1 + costs.overhead)


def fixed_work(costs: Costs, every_s: float) -> float:
    """Returns the work between saves that begin `every_s` seconds after one another."""
    work_s = every_s
    for _ in range(50):  # the cost depends on the work; this converges, as it grows slowly
        work_s = max(every_s - costs.cost(work_s), every_s / 100)
    return work_s


def none_share(pause_s: float, restart_s: float, mean_s: float, window_s: float) -> float:
    """Returns the share without checkpoints: only the work since the last failure is left.

    The program ends after `window_s` seconds, with what it has then. To first order, the time since
    the last failure is exponential, cut at the window.
    """
    since_s = mean_s * -math.expm1(-window_s / mean_s)
    running = mean_s / (mean_s + pause_s)
    return max(since_s * running - restart_s, 0.0) / window_s


def best(costs: Costs, mean_s: float) -> tuple[float, float]:
    """Returns the best work between saves of a sweep, and its share."""
    low, high = math.log(mean_s / 2000), math.log(mean_s * 2)
    step = (high - low) / (SWEEP_POINTS - 1)
    sweep = [math.exp(low + step * at) for at in range(SWEEP_POINTS)]
    return max(((work, share(costs, work, mean_s)) for work in sweep), key=lambda it: it[1])


def simulated(costs: Costs, work_s: float, failure: Callable[[], float], failures: int) -> float:
    """Returns the share of a simulated program that fails `failures` times: checks `share`."""
    kept = passed = 0.0
    cost, latency = costs.cost(work_s), costs.latency(work_s)
    work_s = max(work_s, latency - cost)
    for _ in range(failures):
        fails_s = failure()
        passed += fails_s + costs.pause_s
        now = costs.restart_s + costs.first_s
        while True:
            now += work_s
            if now + latency > fails_s:
                break
            kept += work_s
            now += cost
    return kept / passed / (1 + costs.overhead)
