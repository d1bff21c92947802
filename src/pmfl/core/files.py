"""Files that are complete or not there at all. Knows nothing of tensors, so that small commands start quickly."""

from __future__ import annotations

import os
from pathlib import Path


class replacing:
    """A path to write to; on success it takes the place of ``file`` at once, on failure it leaves no trace."""

    def __init__(self, file: Path, *, durable: bool = True) -> None:
        self.file, self.beside, self.durable = file, file.with_name(f".{file.name}.{os.getpid()}.part"), durable

    def __enter__(self) -> Path:
        return self.beside

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                if self.durable:
                    to_disk(self.beside)
                self.beside.replace(self.file)
        finally:
            self.beside.unlink(missing_ok=True)


def to_disk(path: Path) -> None:
    """Return when what was written to a file or folder would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
