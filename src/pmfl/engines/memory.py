"""Where client memories rest between participations: in this process up to a budget, and in files beyond it.

Files are segments: the memories of some clients, written once and never changed. A checkpoint is the names of those
that hold the newest memory of everybody, so what was moved out for want of room is already part of the next one. A
segment of which half is outdated is written again with others: together they stay below twice the memories.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pmfl.core.tree import leaves, load_tree, map_tree, save_tree, size_of, to_disk

Memory: TypeAlias = Any

AT_ONCE = 256 << 20  # bytes of memories in one file, at most, unless a single one is larger
SLACK = 8  # a full budget is relieved by this part of it, so that files are not many and small


class Segment(NamedTuple):
    """What is known of one file of memories."""

    sha256: str
    written: int  # how many clients it was written with
    clients: list[int]  # those whose newest memory it holds


class Memories:
    """Memories by client number, for any number of threads. A client that never took part costs nothing."""

    def __init__(
        self,
        *,
        budget: float = float("inf"),
        folder: Path | None = None,
        rank: int = 0,
        shortened: bool = False,
    ) -> None:
        self.budget, self.rank, self.shortened = budget, rank, shortened
        self._folder, self._lock, self._serial = folder, threading.RLock(), 0
        self._held: dict[int, Memory] = {}  # the least recently used first
        self._bytes = 0
        self._changed: set[int] = set()  # held, and newer than any file
        self._file: dict[int, str] = {}  # client -> the file with its newest written memory
        self._segments: dict[str, Segment] = {}  # of which `clients` is what was written
        self._live: dict[str, set[int]] = {}  # the same, without those that are newer elsewhere
        self._named: set[str] = set()  # the files that a checkpoint may name: never removed here
        self._afloat: set[str] = set()  # written, but perhaps not yet on the disk itself
        self._like: Memory = None

    def get(self, k: int, first: Callable[[], Memory]) -> Memory:
        """What client ``k`` remembers; ``first()`` before its first participation."""
        with self._lock:
            if self._like is None:
                self._expect(first())
            if k not in self:
                return first()
            if k not in self._held:
                self._keep(k, self._read(k))
            memory = self._held[k] = self._held.pop(k)
        return _lengthened(memory) if self.shortened else memory

    def put(self, k: int, memory: Memory) -> None:
        """Replace what client ``k`` remembers."""
        if next(leaves(memory), None) is None:
            return  # there is nothing to remember
        with self._lock:
            memory = _shortened(memory) if self.shortened else memory
            if self._like is None:
                self._expect(memory)
            self._forget(k)
            self._changed.add(k)
            self._keep(k, memory)

    def take(self, k: int, first: Callable[[], Memory]) -> Memory:
        """What client ``k`` remembers; from now on it is kept elsewhere."""
        with self._lock:
            memory = self.get(k, first)
            self._forget(k)
            return memory

    def __contains__(self, k: object) -> bool:
        return k in self._held or k in self._file

    def __len__(self) -> int:
        return len(self.clients())

    def clients(self) -> set[int]:
        """Those who remember something here."""
        return {*self._held, *self._file}

    def size(self) -> int:
        """Bytes held in this process."""
        return self._bytes

    def save(self) -> dict[str, Segment]:
        """Write what has changed since it was last written; returns the segments that hold everything."""
        with self._lock:
            self._write(sorted(self._changed))
            self._write_stale()
            for file in self._afloat & self._segments.keys():
                to_disk(self.folder / file)
            self._afloat, self._named = set(), set(self._segments)
            return {
                file: Segment(segment.sha256, segment.written, sorted(self._live[file]))
                for file, segment in self._segments.items()
            }

    def load(self, segments: Mapping[str, Segment], mine: Callable[[int], bool] = lambda k: True) -> None:
        """Go on from what any number of ranks has saved; a memory is read when it is asked for."""
        for name, segment in segments.items():
            self._serial = max(self._serial, int(name.split("-")[1]) + 1)
            live = {k for k in segment.clients if mine(k)}
            self._named.add(name)
            if live:
                share = -(-segment.written * len(live) // len(segment.clients))
                self._segments[name], self._live[name] = segment._replace(written=share), live
                self._file.update(dict.fromkeys(live, name))

    @property
    def folder(self) -> Path:
        """Where segments lie; one that goes with this object, if none was given."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="pmfl-memories-"))
            weakref.finalize(self, shutil.rmtree, self._folder, True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _keep(self, k: int, memory: Memory) -> None:
        self._held[k] = memory
        self._bytes += size_of(memory)
        if self._bytes > self.budget:
            self._make_room()

    def _forget(self, k: int) -> None:
        if k in self._held:
            self._bytes -= size_of(self._held.pop(k))
        self._changed.discard(k)
        self._outdate(k)

    def _outdate(self, k: int) -> None:
        """No file has client ``k``'s newest memory any more."""
        if k in self._file:
            self._live[self._file.pop(k)].discard(k)

    def _make_room(self) -> None:
        """Let go of the least recently used, but not of the newest; what no file has yet is written first."""
        leaving, left, room = list[int](), self._bytes, self.budget * (1 - 1 / SLACK)
        for k in list(self._held)[:-1]:
            if left <= room:
                break
            leaving.append(k)
            left -= size_of(self._held[k])
        self._write([k for k in leaving if k in self._changed], durable=False)
        for k in leaving:
            del self._held[k]
        self._bytes = left
        if sum(segment.written for segment in self._segments.values()) > 2 * len(self._file):
            self._write_stale(durable=False)

    def _write_stale(self, *, durable: bool = True) -> None:
        """Write again what is still newest in files of which half is outdated; those files are then done with."""
        stale = [file for file, segment in self._segments.items() if 2 * len(self._live[file]) <= segment.written]
        self._write(sorted(k for file in stale for k in self._live[file]), durable=durable)
        for file in stale:
            del self._segments[file], self._live[file]
            if file not in self._named:
                (self.folder / file).unlink()

    def _write(self, clients: Sequence[int], *, durable: bool = True) -> None:
        for group in self._groups(clients):
            name = f"memory-{self._serial}-{self.rank}.safetensors"
            tree = {str(k): self._held[k] if k in self._held else self._read(k) for k in group}
            digest = save_tree(self.folder / name, tree, durable=durable)
            self._serial += 1
            for k in group:
                self._outdate(k)
            self._segments[name], self._live[name] = Segment(digest, len(group), group), set(group)
            if not durable:
                self._afloat.add(name)
            self._file.update(dict.fromkeys(group, name))
            self._changed.difference_update(group)

    def _groups(self, clients: Sequence[int]) -> Iterator[list[int]]:
        """As many clients at a time as go into one file."""
        group, total = list[int](), 0
        for k in clients:
            size = size_of(self._held.get(k, self._like))
            if group and total + size > AT_ONCE:
                yield group
                group, total = [], 0
            group.append(k)
            total += size
        if group:
            yield group

    def _read(self, k: int) -> Memory:
        return load_tree(self.folder / self._file[k], self._like, within=str(k))

    def _expect(self, like: Memory) -> None:
        """Know the structure of memories, without the room that one takes."""
        like = _shortened(like) if self.shortened else like
        self._like = map_tree(
            lambda path, leaf: leaf.new_empty(()).expand(leaf.shape) if isinstance(leaf, Tensor) else leaf, like
        )


def _shortened(memory: Memory) -> Memory:
    """With remembered models in half the bytes; a single vector may be a running difference, and stays exact."""
    return map_tree(lambda path, x: x.bfloat16() if _is_rows(x, torch.float32) else x, memory)


def _lengthened(memory: Memory) -> Memory:
    return map_tree(lambda path, x: x.float() if _is_rows(x, torch.bfloat16) else x, memory)


def _is_rows(leaf: object, dtype: torch.dtype) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype == dtype and leaf.ndim > 1
