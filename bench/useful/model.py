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
        constant_s: Part of the cost of a later save that does not depend on the interval.
        growth: Cost for each second of work since the last save.
        latency_s: Part of the time until a save is durable that does not depend on the interval.
        latency_growth: The same for each second of work since the last save.
        full_s: Work after which everything has changed, so that costs grow no more.
        overhead: Share by which steps take longer between saves, as changes are tracked.
    """

    pause_s: float
    restart_s: float
    first_s: float
    constant_s: float
    growth: float
    latency_s: float
    latency_growth: float
    full_s: float
    overhead: float

    def cost(self, work_s: float) -> float:
        """Returns the cost of a save after this much work."""
        return self.constant_s + self.growth * min(work_s, self.full_s)

    def latency(self, work_s: float) -> float:
        """Returns the time from the beginning of that save until it is durable."""
        return self.latency_s + self.latency_growth * min(work_s, self.full_s)


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


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits `constant + slope·t` by least squares, with neither below 0."""
    count = len(points)
    mean_t = sum(t for t, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (y - mean_y) for t, y in points) / spread if spread else 0.0
    slope = max(slope, 0.0)
    constant = mean_y - slope * mean_t
    if constant < 0:
        return 0.0, max(mean_y / mean_t, 0.0)
    return constant, slope


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
