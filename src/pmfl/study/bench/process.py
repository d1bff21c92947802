"""What a process and those below it take: seconds since it began, memory, the machine's load."""

from __future__ import annotations

import os
import platform
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

PROC = Path("/proc")


def age() -> float:
    """Seconds since this process began, imports and all; NaN where the system does not tell."""
    try:
        ticks = int((PROC / "self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return float("nan")


def resident(root: int) -> int:
    """Bytes in memory of a process and all below it."""
    below, sizes = dict[int, list[int]](), dict[int, int]()
    for folder in PROC.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            sizes[int(folder.name)] = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # it has ended
            continue
        below.setdefault(parent, []).append(int(folder.name))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += sizes.get(pid, 0)
        waiting += below.get(pid, [])
    return total


class Peak:
    """The largest memory of a process and all below it, looked at five times a second."""

    def __init__(self, root: int) -> None:
        self.root, self.bytes = root, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, resident(self.root))
            if self._over.wait(0.2):
                return


def machine() -> dict[str, Any]:
    """What a measurement has to say of where it was made."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in ("pmfl", "torch", "numpy")},
        "load": [round(load, 2) for load in os.getloadavg()],
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _cpu() -> str:
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Of the checkout this file lies in; empty for an installed package."""
    for folder in Path(__file__).resolve().parents:
        git = folder / ".git"
        if git.exists():
            try:
                git = Path(git.read_text().split()[1]) if git.is_file() else git
                head = (git / "HEAD").read_text().strip()
                if not head.startswith("ref: "):
                    return head[:12]
                ref = head.removeprefix("ref: ")
                homes = [git, (git / (git / "commondir").read_text().strip()) if (git / "commondir").exists() else git]
                return next((home / ref).read_text().strip()[:12] for home in homes if (home / ref).exists())
            except (OSError, StopIteration, IndexError):
                return ""
    return ""
