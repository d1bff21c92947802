"""Where client memories rest between participations: in this process, saved in segments that hold what changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmfl.core.tree import load_tree, save_tree, size_of

Memory = Any


class RamMemory:
    """Memories by client number. A client that never took part costs nothing."""

    def __init__(self) -> None:
        self._held: dict[int, Memory] = {}
        self._changed: set[int] = set()
        self._segments: dict[str, list[int]] = {}  # file -> the clients in it
        self._newest: dict[int, str] = {}  # client -> the file with its newest memory

    def get(self, k: int) -> Memory | None:
        """What client ``k`` remembers; None before its first participation."""
        return self._held.get(k)

    def put(self, k: int, memory: Memory) -> None:
        """Replace what client ``k`` remembers."""
        self._held[k] = memory
        self._changed.add(k)

    def __len__(self) -> int:
        return len(self._held)

    def size(self) -> int:
        """Bytes held."""
        return sum(map(size_of, self._held.values()))

    def save(self, folder: Path, name: str) -> dict[str, list[int]]:
        """Write what changed since the last save; returns the segments that hold everything.

        A segment in which half of the memories are outdated is written again with the rest: the files together
        stay below twice the size of the memories.
        """
        live = {
            file: [k for k in clients if self._newest[k] == file and k not in self._changed]
            for file, clients in self._segments.items()
        }
        stale = [file for file, clients in live.items() if 2 * len(clients) <= len(self._segments[file])]
        moved = sorted(self._changed.union(*(live[file] for file in stale)))
        segments = {file: clients for file, clients in self._segments.items() if file not in stale}
        if moved:
            save_tree(folder / name, {str(k): self._held[k] for k in moved})
            segments[name] = moved
        self._segments, self._changed = segments, set()
        self._newest.update(dict.fromkeys(moved, name))
        return dict(segments)

    def load(self, folder: Path, segments: dict[str, list[int]], like: Callable[[], Memory]) -> None:
        """Read the segments written by ``save``, oldest first; ``like`` makes a memory of the right shape."""
        self._held, self._changed, self._newest = {}, set(), {}
        for name, clients in segments.items():
            stored = load_tree(folder / name, {str(k): like() for k in clients})
            self._held.update({k: stored[str(k)] for k in clients})
            self._newest.update(dict.fromkeys(clients, name))
        self._segments = dict(segments)
