"""Writing .npy files a piece at a time, hashed on the way."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from pmfl.world.datasets import Array
from pmfl.world.sources.fingerprint import HASH_BYTES

AT_A_TIME = 1 << 24  # bytes
Record = dict[str, Any]  # what the manifest says of a file: bytes, blake2b, shape, dtype


def write_array(path: Path, array: Array) -> Record:
    """A whole array into a file."""
    with NpyFile(path, array.shape, array.dtype) as file:
        for rows in chunks(array):
            file.append(rows)
        return file.finish()


def chunks(array: Array) -> Iterator[Array]:
    """An array in pieces of a few megabytes, so that a memory-mapped one never lies in memory whole."""
    step = max(1, AT_A_TIME * len(array) // max(array.nbytes, 1))
    for start in range(0, len(array), step):
        yield array[start : start + step]


class NpyFile:
    """An .npy file written front to back and hashed on the way; a full disk is an error here, not a signal later."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype, self.rows = path, shape, dtype, 0
        needed, free = int(np.prod(shape, dtype=object)) * dtype.itemsize, shutil.disk_usage(path.parent).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{needed:,} bytes needed, {free:,} free", str(path))
        self._file, self._hash, self.bytes = path.open("wb"), hashlib.blake2b(digest_size=HASH_BYTES), 0
        header = io.BytesIO()
        layout = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, layout)
        self._put(header.getvalue())
        self.header = self.bytes

    def append(self, rows: Array) -> None:
        """Write the next rows."""
        self._put(np.ascontiguousarray(rows).data.cast("B"))
        self.rows += len(rows)

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def finish(self) -> Record:
        """Bring everything to the disk; returns what the manifest says of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {
            "bytes": self.bytes,
            "blake2b": self._hash.hexdigest(),
            "shape": list(self.shape),
            "dtype": self.dtype.str,
        }
