"""MNIST's own format: `train-images-idx3-ubyte`, its labels and the `t10k` pair, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from pmfl.world.datasets import Array
from pmfl.world.sources.raw import Options, Raw, RawSplit, Source, guard_size, refuse

SPLITS = (("train",), ("t10k", "test"))
MAGIC = {1: b"\x00\x00\x08\x01", 3: b"\x00\x00\x08\x03"}  # unsigned bytes, of one or three axes
AGAIN = "get the file again from where it came"


def find(path: Path, options: Options, name: str) -> Source | None:
    """One of the four files, which finds the others, or their folder."""
    if path.is_file() and "ubyte" not in path.name:
        return None
    folder = path if path.is_dir() else path.parent
    pairs = [_pair(folder, words) for words in SPLITS]
    if pairs[0] is None:
        return None
    files = tuple(file for pair in pairs if pair is not None for file in pair)
    return Source("idx", folder, files, options, lambda scratch: _raw(files))


def _pair(folder: Path, words: tuple[str, ...]) -> tuple[Path, Path] | None:
    images = _one(folder, words, "images", 3)
    if images is None:
        return None
    labels = _one(folder, words, "labels", 1)
    if labels is None:
        raise refuse(images, "has no file of labels beside it", "get all four files")
    return images, labels


def _one(folder: Path, words: tuple[str, ...], what: str, axes: int) -> Path | None:
    spellings = [
        folder / f"{word}-{what}{dot}idx{axes}-ubyte{gz}" for word in words for dot in "-." for gz in ("", ".gz")
    ]
    return next((file for file in spellings if file.is_file()), None)


def _raw(files: tuple[Path, ...]) -> Raw:
    splits = [_split(*files[i : i + 2]) for i in range(0, len(files), 2)]
    return Raw(splits[0], splits[1] if len(splits) > 1 else None)


def _split(images: Path, labels: Path) -> RawSplit:
    x, y = _read(images, 3), _read(labels, 1)
    if len(x) != len(y):
        raise refuse(
            labels, f"has {len(y):,} labels for the {len(x):,} images of {images.name}", "get both files again"
        )
    return RawSplit(str(images), x, y.astype(np.int64))


def _read(path: Path, axes: int) -> Array:
    """The array in one file; its length must be what its header says."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            if file.read(4) != MAGIC[axes]:
                raise refuse(path, f"does not begin as an idx file of {axes} axes of bytes", AGAIN)
            shape = tuple(int.from_bytes(file.read(4), "big") for _ in range(axes))
            size = int(np.prod(shape, dtype=object))
            guard_size(path, path.stat().st_size, size)
            content = file.read(size + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise refuse(path, f"is not a whole gzip file: {error}", AGAIN) from None
    if len(content) != size:
        more = "more than" if len(content) > size else f"{len(content):,} of"
        raise refuse(path, f"holds {more} the {size:,} bytes its header says", AGAIN)
    return np.frombuffer(content, np.uint8).reshape(shape)
