"""Data sets decoded once into memory-mapped arrays, kept by the hash of their content and shared by all processes.

Under ``root()``: ``arrays/<key>/`` (manifest.json and .npy files, written elsewhere and renamed into place, never
changed afterwards), ``names/`` (what `pmfl data get` made known), ``seen/`` (hashes of files that have not changed),
``building/`` and ``locks/`` (work under way), ``downloads/``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tokenize import TokenError  # what numpy lets through of a damaged header
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from pmfl.errors import DataMissing
from pmfl.world.datasets import Array, Split
from pmfl.world.sources import fingerprint
from pmfl.world.sources.raw import Source, refuse

MANIFEST = "manifest.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PATIENCE = 2.0  # seconds to wait for another process before saying so


def root() -> Path:
    """Where the cache lies: $PMFL_CACHE, else the platform's folder for caches."""
    if named := os.environ.get("PMFL_CACHE"):
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("pmfl", appauthor=False)


@dataclass(frozen=True)
class Entry:
    """One data set in the cache. Its files never change; they may only disappear."""

    key: str
    folder: Path
    manifest: dict[str, Any]

    @property
    def bytes(self) -> int:
        """How much room its arrays take."""
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    @cached_property
    def train(self) -> Split:
        """The train split, memory-mapped."""
        return self._split("train")

    @cached_property
    def test(self) -> Split:
        """The test split, memory-mapped."""
        return self._split("test")

    def _split(self, name: str) -> Split:
        has_users = f"{name}_users" in self.manifest["files"]
        return Split(
            self._array(f"{name}_x"), self._array(f"{name}_y"), self._array(f"{name}_users") if has_users else None
        )

    def _array(self, name: str) -> Array:
        path, said = self.folder / f"{name}.npy", self.manifest["files"][name]
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError, SyntaxError, TokenError) as error:
            raise damaged(path, str(error)) from None
        if list(array.shape) != said["shape"] or array.dtype.str != said["dtype"]:
            raise damaged(path, f"is {array.dtype} {array.shape}, the manifest says {said['dtype']} {said['shape']}")
        return np.asarray(array)  # a plain view of the map: indexing it is quicker


def damaged(path: Path, what: str) -> DataMissing:
    """The error for a cache file that is not what was written."""
    return DataMissing(
        f"{path}: the cache is damaged: {what}",
        hint=f"pmfl data clear {path.parent.name}   (then load the data again; `pmfl data verify` checks all)",
        code="D103",
    )


def ensure(source: Source) -> Entry:
    """The arrays of a source: opened if they are there, else built. Safe in any number of processes at once."""
    key, signature = _key(source)
    if not _folder(key).is_dir():
        _build(source, key, signature)
    return open_entry(key)


def open_entry(key: str) -> Entry:
    """An entry by its key, after a look at the size of every file."""
    folder = _folder(key)
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        expected = {name: int(file["bytes"]) for name, file in manifest["files"].items()}
        classes, counts = manifest["classes"], manifest["counts"]
        if manifest["format"] != fingerprint.FORMAT or any(len(c) != classes for c in counts.values()):
            raise ValueError("unknown format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"cannot be read: {error}") from None
    for name, size in expected.items():
        file = folder / f"{name}.npy"
        if not file.is_file():
            raise damaged(file, "is missing")
        if file.stat().st_size != size:
            raise damaged(file, f"has {file.stat().st_size:,} bytes, not {size:,}")
    return Entry(key, folder, manifest)


def verify(key: str) -> None:
    """Read every byte of an entry and compare with the hashes that were taken when it was written."""
    entry = open_entry(key)
    for name, said in entry.manifest["files"].items():
        path = entry.folder / f"{name}.npy"
        if fingerprint.of_file(path) != said["blake2b"]:
            raise damaged(path, "its content does not have the hash that was written")


def stored() -> list[str]:
    """The keys of all entries, whole or damaged."""
    folder = root() / "arrays"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def remove(key: str) -> None:
    """Take an entry out of the cache. Processes that have it open keep it until they end."""
    with _locked(key):
        aside = root() / "building" / f"{key}.removed"
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            _folder(key).rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    for name, record in names().items():
        if record["key"] == key:
            _name_file(name).unlink(missing_ok=True)


def downloads(name: str) -> Path:
    """Where `pmfl data get` puts the published files of a set."""
    return root() / "downloads" / name


def remember(name: str, entry: Entry, source: Source) -> None:
    """Make an entry known under a name, so that it opens without its source."""
    record = {"key": entry.key, "source": source.origin, "options": source.options.said()}
    with _said_when_full():
        _write_json(_name_file(name), record)


def names() -> dict[str, dict[str, Any]]:
    """What was made known under a name."""
    found = {}
    for path in sorted((root() / "names").glob("*.json")):
        record = _read_json(path)
        if isinstance(record, dict) and "key" in record:
            found[unquote(path.stem)] = record
    return found


def recall(name: str) -> dict[str, Any] | None:
    """What was made known under this name, if anything."""
    record = _read_json(_name_file(name))
    return record if isinstance(record, dict) and "key" in record else None


def _name_file(name: str) -> Path:
    return root() / "names" / f"{quote(name, safe='')}.json"


def _folder(key: str) -> Path:
    return root() / "arrays" / key


def _key(source: Source) -> tuple[str, str]:
    """The source's key, from memory when no file has changed since it was computed; and what was seen of the files."""
    try:
        before, is_settled = fingerprint.signature(source)
        memory = root() / "seen" / f"{fingerprint.place(source)}.json"
        known = _read_json(memory)
        if isinstance(known, dict) and known.get("signature") == before:
            return str(known["key"]), before
        key = fingerprint.key(source)
    except OSError as error:
        raise refuse(
            str(error.filename), f"cannot be read: {error.strerror}", "check that it is yours to read"
        ) from None
    if is_settled:
        with contextlib.suppress(OSError):  # a cache that cannot be written can still be read
            _write_json(memory, {"signature": before, "key": key})
    return key, before


def _build(source: Source, key: str, signature: str) -> None:
    from pmfl.world.sources.provenance import compared
    from pmfl.world.sources.writing import write

    with _said_when_full(), _locked(key):
        if _folder(key).is_dir():
            return  # another process was first
        building = root() / "building"
        for left_over in building.glob(f"{key}.*"):  # of a process that was killed; the lock says it is gone
            shutil.rmtree(left_over, ignore_errors=True)
        work = building / f"{key}.{os.getpid()}"
        scratch, arrays = work / "scratch", work / "arrays"
        try:
            scratch.mkdir(parents=True)
            arrays.mkdir()
            manifest = write(source.read(scratch), arrays, source.options)
            if fingerprint.signature(source)[0] != signature:
                raise refuse(source.root, "was changed while it was read", "try again when nothing writes to it")
            manifest |= {"format": fingerprint.FORMAT, "reader": source.reader, "options": source.options.said()}
            manifest |= {"source": source.origin, "notes": manifest["notes"] | compared(source.files)}
            _write_json(arrays / MANIFEST, manifest)
            _folder(key).parent.mkdir(exist_ok=True)
            arrays.rename(_folder(key))
        except DataMissing as error:
            error.message = error.message.replace(f"{scratch}{os.sep}", f"{source.files[0]}: ")
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _locked(key: str) -> Iterator[None]:
    """Hold the lock of one key; says so when another process makes us wait."""
    from filelock import FileLock, Timeout

    path = root() / "locks" / f"{key}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        sys.stderr.write("waiting for another process that prepares the same data …\n")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _said_when_full() -> Iterator[None]:
    """Operating system errors while the cache is written, as one of ours."""
    try:
        yield
    except OSError as error:
        place = error.filename or root()
        if error.errno in FULL:
            what, hint = f"the disk is full: {error.strerror}", "make room (`pmfl data clear`), or set PMFL_CACHE"
        else:
            what = f"cannot be read or written: {error.strerror or error}"
            hint = f"check whose it is; the cache is at {root()}, and PMFL_CACHE puts it elsewhere"
        raise DataMissing(f"{place}: {what}", hint=hint, code="D104") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _write_json(path: Path, content: Any) -> None:
    """Written beside and renamed, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(content))
    beside.replace(path)
