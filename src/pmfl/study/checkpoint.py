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

from pmfl.core.tree import load_tree, replacing, save_tree, to_disk
from pmfl.engines.crew import Alone
from pmfl.engines.memory import Memories, Segment
from pmfl.errors import SpecError, StoreError
from pmfl.study.store import read_json, sha256, storing

PAUSE = 5.0  # seconds between checkpoints, at least; PMFL_CHECKPOINT_SECONDS sets another
COST = 20.0  # and this many times what one costs: checkpoints take less than 5 % of a run


class Checkpoint:
    """The checkpoint of one run, in one folder. All ranks of a crew save and load together."""

    def __init__(self, folder: Path, run_id: str, crew: Alone) -> None:
        self.folder, self.run_id, self.crew = folder, run_id, crew
        self.index = folder / "checkpoint.json"
        self._pause = _pause()
        self._next = time.monotonic() + self._pause

    @property
    def exists(self) -> bool:
        """Whether there is something to go on from, in the eyes of the rank that leads."""
        return self.crew.share(self.index.is_file)[0]

    @property
    def due(self) -> bool:
        """Whether it is time for another."""
        return time.monotonic() >= self._next

    def save(self, t: int, state: Any, memories: Memories, seconds: float) -> None:
        """Write the state before round ``t``; memories are written by the rank that keeps them."""
        began = time.monotonic()
        segments = dict[str, Segment]()
        for part in self.crew.share(lambda: self._write_memories(memories)):
            segments |= {file: _joined(Segment(*found), segments.get(file)) for file, found in part.items()}
        self.crew.share(lambda: self._write(t, state, segments, seconds) if self.crew.leads else None)
        self._next = time.monotonic() + max(self._pause, COST * (time.monotonic() - began))

    def load(self, like: Any, memories: Memories) -> tuple[Any, float]:
        """The state of the last save, and the seconds spent until then; ``memories`` go on from theirs."""
        index = read_json(self.index)
        if index.get("run_id") != self.run_id:
            raise StoreError(
                f"{self.index} is the checkpoint of run {index.get('run_id')}, not of {self.run_id}",
                hint=f"delete {self.folder}; the run starts over",
                code="R120",
            )
        try:
            segments = {file: Segment(*found) for file, found in index["segments"].items()}
            state, seconds = dict[str, str](index["state"]), float(index["seconds"])
            (name,) = state
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            hint = f"delete {self.folder}; the run starts over, to the same bits"
            raise StoreError(f"{self.index} does not hold what it should: {error!r}", hint=hint, code="R122") from None
        self.crew.share(lambda: self._check({**state, **{file: s.sha256 for file, s in segments.items()}}))
        known = sorted(k for segment in segments.values() for k in segment.clients)
        here = set(known[self.crew.rank :: self.crew.world])
        memories.load(segments, here.__contains__)
        return load_tree(self.folder / name, like), seconds

    def _write_memories(self, memories: Memories) -> dict[str, Segment]:
        with storing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            return memories.save()

    def _write(self, t: int, state: Any, segments: dict[str, Segment], seconds: float) -> None:
        with storing(self.folder):
            name = f"state-{t}.safetensors"
            digest = save_tree(self.folder / name, state)
            index = {
                "run_id": self.run_id,
                "t": t,
                "seconds": seconds,
                "state": {name: digest},
                "segments": segments,
            }
            with replacing(self.index) as beside:
                beside.write_text(json.dumps(index), "utf-8")
            to_disk(self.folder)
            for file in self.folder.glob("*.safetensors"):
                if file.name != name and file.name not in segments:
                    file.unlink()

    def _check(self, files: dict[str, str]) -> None:
        """Every rank looks at its part of the files."""
        for file in sorted(files)[self.crew.rank :: self.crew.world]:
            if not (self.folder / file).is_file() or sha256(self.folder / file) != files[file]:
                raise StoreError(
                    f"{self.folder / file} was changed or cut short",
                    hint=f"delete {self.folder}; the run starts over, to the same bits",
                    code="R121",
                )


def _joined(segment: Segment, other: Segment | None) -> Segment:
    """What two ranks still need of one file, which an earlier crew has written."""
    if other is None:
        return segment
    clients = sorted({*segment.clients, *other.clients})
    return segment._replace(written=segment.written + other.written, clients=clients)


def _pause() -> float:
    text = os.environ.get("PMFL_CHECKPOINT_SECONDS", str(PAUSE))
    try:
        pause = float(text)
    except ValueError:
        pause = -1.0
    if not 0 <= pause < float("inf"):
        raise SpecError(f"PMFL_CHECKPOINT_SECONDS = {text!r} is not a time", hint="give seconds, e.g. 60", code="S130")
    return pause
