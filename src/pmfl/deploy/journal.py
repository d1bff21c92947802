"""What a supervisor tells of itself: `supervisor.json` says how things are, `events.log` what happened."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pmfl.core.files import replacing
from pmfl.deploy.processes import LOG_BYTES

STATES = ("starting", "running", "finished", "stopped", "failed")


class Journal:
    """In one folder. A full disk costs a line, never the supervisor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        old = read(folder)
        self.known: dict[str, Any] = {
            "pid": os.getpid(),
            "state": "starting",
            "since": time.time(),
            "error": "",
            "children": {},
            "restarts": dict(old.get("restarts", {})),
        }

    def tell(self, what: str, **details: Any) -> None:
        """Note an event, and how things are now."""
        events = self.folder / "events.log"
        line = json.dumps({"at": round(time.time(), 3), "what": what, **details})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if events.exists() and events.stat().st_size > LOG_BYTES:
                events.replace(events.with_name("events.log.1"))
            with events.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            with replacing(self.folder / "supervisor.json", durable=False) as beside:
                beside.write_text(json.dumps(self.known, indent=1), "utf-8")
        except OSError:
            return

    def child(self, name: str, pid: int | None) -> None:
        """A child has begun, or is gone."""
        if pid is None:
            self.known["children"].pop(name, None)
        else:
            self.known["children"][name] = pid

    def restarted(self, name: str) -> None:
        """Count a child that had to be brought back."""
        self.known["restarts"][name] = self.known["restarts"].get(name, 0) + 1

    def state(self, state: str, **details: Any) -> None:
        """Say how things are from now on."""
        assert state in STATES
        self.known |= {"state": state, "error": details.get("error", "")}
        self.tell(state, **details)


def read(folder: Path) -> dict[str, Any]:
    """What the last supervisor of a folder told."""
    return told(folder / "supervisor.json")


def told(file: Path) -> dict[str, Any]:
    """A small JSON file of a process that may have been killed at any moment; empty if it cannot be read."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
