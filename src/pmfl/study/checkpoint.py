"""All that a run needs to go on after it was killed: server state, pattern state, client memories.

Files are written under new names; ``checkpoint.json`` is replaced last, and names those that count. Whatever it
does not name is a leftover and is swept at the next save. Randomness is not stored: keys are derived.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pmfl.core.tree import load_tree, replacing, save_tree
from pmfl.engines.memory import RamMemory
from pmfl.errors import SpecError, StoreError
from pmfl.study.store import read_json, sha256, storing

PAUSE = 5.0  # seconds between checkpoints, at least; PMFL_CHECKPOINT_SECONDS sets another
COST = 20.0  # and this many times what one costs: checkpoints take less than 5 % of a run


class Checkpoint:
    """The checkpoint of one run, in one folder."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder, self.run_id = folder, run_id
        self.index = folder / "checkpoint.json"
        self._hashes: dict[str, str] = {}
        self._pause = _pause()
        self._next = time.monotonic() + self._pause

    @property
    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self.index.is_file()

    @property
    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() >= self._next

    def save(self, t: int, state: Any, memories: RamMemory, seconds: float) -> None:
        """Write the state before round ``t``."""
        began = time.monotonic()
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"state-{t}.safetensors"
            save_tree(self.folder / name, state)
            segments = memories.save(self.folder, f"memory-{t}.safetensors")
            files = [name, *segments]
            fresh = [file for file in files if file not in self._hashes or file in (name, f"memory-{t}.safetensors")]
            self._hashes = {file: self._hashes[file] for file in files if file not in fresh} | {
                file: sha256(self.folder / file) for file in fresh
            }
            index = {
                "run_id": self.run_id,
                "t": t,
                "seconds": seconds,
                "state": name,
                "segments": segments,
                "sha256": self._hashes,
            }
            with replacing(self.index) as beside:
                beside.write_text(json.dumps(index), "utf-8")
            for file in self.folder.glob("*.safetensors"):
                if file.name not in files:
                    file.unlink()
        self._next = time.monotonic() + max(self._pause, COST * (time.monotonic() - began))

    def load(self, like: Any, memories: RamMemory, memory_like: Any) -> tuple[Any, float]:
        """The state of the last save, and the seconds spent until then; fills ``memories``."""
        index = read_json(self.index)
        if index.get("run_id") != self.run_id:
            raise StoreError(
                f"{self.index} is the checkpoint of run {index.get('run_id')}, not of {self.run_id}",
                hint=f"delete {self.folder}; the run starts over",
                code="R120",
            )
        for file, expected in index["sha256"].items():
            if not (self.folder / file).is_file() or sha256(self.folder / file) != expected:
                raise StoreError(
                    f"{self.folder / file} was changed or cut short",
                    hint=f"delete {self.folder}; the run starts over, to the same bits",
                    code="R121",
                )
        self._hashes = dict(index["sha256"])
        memories.load(self.folder, index["segments"], memory_like)
        return load_tree(self.folder / index["state"], like), float(index["seconds"])


def _pause() -> float:
    text = os.environ.get("PMFL_CHECKPOINT_SECONDS", str(PAUSE))
    try:
        pause = float(text)
    except ValueError:
        pause = -1.0
    if not 0 <= pause < float("inf"):
        raise SpecError(f"PMFL_CHECKPOINT_SECONDS = {text!r} is not a time", hint="give seconds, e.g. 60", code="S130")
    return pause
