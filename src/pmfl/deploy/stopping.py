"""`pmfl deploy stop`: ask every supervisor of a folder that runs on this machine to end, and wait until it has."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pmfl.deploy.processes import Lock
from pmfl.errors import EngineError

WAIT = 40.0  # seconds; a supervisor gives each of its children some to end politely


def running(root: Path) -> dict[str, int]:
    """The supervisors of a folder that are running here, by name."""
    files = {"up": root / "up.lock", "server": root / "server" / "supervisor.lock"}
    files |= {f"node {folder.name}": folder / "supervisor.lock" for folder in sorted((root / "nodes").glob("*"))}
    held = {name: Lock(file, name).holder() for name, file in files.items()}
    return {name: pid for name, pid in held.items() if pid is not None}


def stop(root: Path) -> list[str]:
    """End them; their names. What they have done stays, and is continued by the next start."""
    asked = running(root)
    for pid in asked.values():
        _ask(pid)
    ends = time.monotonic() + WAIT
    while left := running(root):
        if time.monotonic() > ends:
            raise EngineError(
                f"still running: {', '.join(f'{name} (process {pid})' for name, pid in left.items())}",
                hint="look at their logs; kill -9 does no harm: the next start continues",
                code="E165",
            )
        for name in left.keys() - asked.keys():  # brought back meanwhile by what keeps it going
            _ask(left[name])
        asked |= left
        time.sleep(0.1)
    return sorted(asked)


def _ask(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise EngineError(
            f"process {pid} belongs to another user", hint="run this command as the user who started it", code="E166"
        ) from None
