"""What memory processes hold, sample by sample, and whether it grows."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pmfl.deploy.journal import read
from pmfl.deploy.settings import Deployment

MEGABYTE = 2**20
PARTS = ("app", "superlink", "supervisor")


def resident(pid: int | None) -> float | None:
    """Megabytes of a process that are in memory; None if it is not there."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        return None
    return None


class Gauge:
    """The memory of a server's processes."""

    def __init__(self, made: Deployment) -> None:
        self.made, self.began = made, time.monotonic()
        self.samples = list[dict[str, Any]]()

    def look(self, **beside: Any) -> None:
        """One sample of each, and of the size of Flower's database."""
        known = read(self.made.folder)
        pids = {**known.get("children", {}), "supervisor": known.get("pid")}
        found: dict[str, Any] = {name: resident(pids.get(name)) for name in PARTS}
        files = self.made.folder.glob("superlink.sqlite*")
        found["database"] = sum(file.stat().st_size for file in files) / MEGABYTE
        self.samples.append({"seconds": round(time.monotonic() - self.began, 2), **beside, **found})

    def of(self, part: str) -> list[float]:
        """The samples of one process."""
        return [sample[part] for sample in self.samples if sample[part] is not None]

    def summary(self, part: str) -> dict[str, float]:
        """In megabytes: median of the first and of the last fifth, the most, and how it grew over the second half."""
        values = self.of(part)
        fifth, half = max(1, len(values) // 5), values[len(values) // 2 :]
        slope = grown(half)
        return {
            "first": round(statistics.median(values[:fifth]), 1),
            "last": round(statistics.median(values[-fifth:]), 1),
            "most": round(max(values), 1),
            "per_100_samples": round(100 * slope.slope, 2),
            "noise_per_100_samples": round(100 * slope.error, 2),
        }


class Slope(NamedTuple):
    """Of a line through samples."""

    slope: float  # a sample
    error: float  # its standard error


def grown(values: Sequence[float]) -> Slope:
    """The line by least squares."""
    n = len(values)
    if n < 3:
        return Slope(0.0, 0.0)
    middle, mean = (n - 1) / 2, statistics.fmean(values)
    spread = sum((i - middle) ** 2 for i in range(n))
    slope = sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (i - middle)) ** 2 for i, value in enumerate(values))
    return Slope(slope, (rest / (n - 2) / spread) ** 0.5)
