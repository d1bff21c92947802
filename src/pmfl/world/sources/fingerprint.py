"""What a source's content is called: a hash of its files, remembered as long as nothing about the files changes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pmfl.world.sources.progress import Progress
from pmfl.world.sources.raw import Source

FORMAT = 1  # of the cache; part of every key, so that a new format never meets old arrays
HASH_BYTES = 16
SETTLED = 2_000_000_000  # ns; files younger than that may still be changed without their times showing it
THREADS_FROM = 1 << 20  # bytes per file; hashing of smaller files is mostly Python, where threads do not help


def signature(source: Source) -> tuple[str, bool]:
    """Names, sizes and times of the files as one word, and whether they are old enough to be trusted."""
    digest, newest = hashlib.blake2b(digest_size=HASH_BYTES), 0
    for file in source.files:
        stat = os.stat(file)  # noqa: PTH116 a Path for each of 100,000 images takes longer than looking at it
        digest.update(f"{_relative(source, file)}\0{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}\n".encode())
        newest = max(newest, stat.st_mtime_ns, stat.st_ctime_ns)
    return digest.hexdigest(), time.time_ns() - newest > SETTLED


def place(source: Source) -> str:
    """A word for where the source is and how it is read; under it, its key is remembered."""
    return _word([source.reader, str(source.root), len(source.files), str(source.files[0]), source.options.said()])


def key(source: Source) -> str:
    """A word for what the source holds: equal content, names and options give equal keys, on any machine."""
    sizes = [os.stat(file).st_size for file in source.files]  # noqa: PTH116 see signature
    with Progress("hash", sum(sizes), size_in_bytes=True) as progress:
        if sum(sizes) // len(sizes) >= THREADS_FROM and len(sizes) > 1:
            with ThreadPoolExecutor(min(len(sizes), os.cpu_count() or 1)) as pool:
                hashes = list(pool.map(lambda file: of_file(file, progress), source.files))
        else:
            hashes = [of_file(file, progress) for file in source.files]
    names = [_relative(source, file) for file in source.files]
    return _word([FORMAT, source.reader, source.options.said(), sorted(zip(names, sizes, hashes, strict=True))])


def of_file(path: Path | str, progress: Progress | None = None) -> str:
    """The BLAKE2b hash of a file."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 see signature
        buffer = memoryview(bytearray(min(1 << 20, 1 + os.fstat(file.fileno()).st_size)))
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            if progress is not None:
                progress.advance(size)
    return digest.hexdigest()


def _relative(source: Source, file: Path | str) -> str:
    name, root = str(file), str(source.root) + os.sep
    return (name[len(root) :] if name.startswith(root) else os.path.relpath(name, root)).replace(os.sep, "/")


def _word(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=HASH_BYTES).hexdigest()
