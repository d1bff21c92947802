"""What a client remembers, on its node's disk: one file for each round whose memory may still be needed.

A file is named by the round that made it and by the hash of its content, and put in place by one rename. The server
says of which round it has counted a reply: the file of that round is the memory, all others are dropped. So nothing
has to be undone when a reply is lost, and neither side has to know what the other was doing when it was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from pmfl.core.files import replacing, to_disk
from pmfl.core.tree import load_tree, save_tree
from pmfl.engines.wire import Refused
from pmfl.errors import StoreError

NEVER = -1  # the round of a client whose replies were never counted


class Recalled(NamedTuple):
    """What a client starts from."""

    memory: Any
    fresh: bool  # there should have been a memory, and it was lost or damaged


class Keeping:
    """The memories of one client in one folder, for one run at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / "asked.json"

    def recall(self, run: str, t: int, counted: int, first: Any) -> Recalled:
        """The memory after round ``counted``, for taking part in round ``t``; ``first`` is that of a new client.

        An ask that is older than one already seen is refused: what it names may be gone. One that comes again may have
        been answered, and that answer counted: what it made then is kept until it is made again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if (seen := self._asked(run)) is not None:
            if t < seen[0] or counted < seen[1]:
                raise Refused(
                    "stale", f"round {t} after {counted} was asked; round {seen[0]} after {seen[1]} was before"
                )
        elif self.index.exists():  # another run's, or damaged
            self._sweep(NEVER)
        self._remember(run, t, counted)
        self._sweep(counted, t)
        if counted == NEVER:
            return Recalled(first, fresh=False)
        with contextlib.suppress(StoreError, OSError):
            for file in self._files(counted):
                if hashlib.sha256(file.read_bytes()).hexdigest() == file.stem.partition("-")[2]:
                    return Recalled(load_tree(file, first), fresh=False)
        self._sweep(NEVER)
        return Recalled(first, fresh=True)

    def keep(self, t: int, memory: Any) -> None:
        """Put the memory that round ``t`` has made beside the one before."""
        beside = self.folder / f".{t}.part"
        digest = save_tree(beside, memory)
        beside.rename(self.folder / f"{t}-{digest}.safetensors")
        to_disk(self.folder)

    def settle(self, run: str, t: int, counted: int) -> None:
        """A run is over: what it has counted is known for good."""
        if self._asked(run) is not None:
            self._remember(run, t, counted)
            self._sweep(counted)

    def counted(self, run: str) -> int | None:
        """The last round of which the server has said that it counted a reply; None without a word of this run."""
        seen = self._asked(run)
        return None if seen is None else seen[1]

    def _asked(self, run: str) -> tuple[int, int] | None:
        """Round and counted round of the newest ask of a run."""
        try:
            found = json.loads(self.index.read_text("utf-8"))
            return (int(found["t"]), int(found["counted"])) if found["run"] == run else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remember(self, run: str, t: int, counted: int) -> None:
        with replacing(self.index) as beside:
            beside.write_text(json.dumps({"run": run, "t": t, "counted": counted}), "utf-8")

    def _files(self, t: int) -> list[Path]:
        return sorted(self.folder.glob(f"{t}-*.safetensors"))

    def _sweep(self, *rounds: int) -> None:
        """Drop every memory but those of some rounds, and what was not finished."""
        keep = {file for t in rounds for file in self._files(t)}
        for file in (*self.folder.glob("*.safetensors"), *self.folder.glob(".*.part")):
            if file not in keep:
                file.unlink(missing_ok=True)
