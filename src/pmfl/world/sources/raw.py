"""What a reader hands over: labels already numbers, images still as they lie in the source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from pmfl.errors import DataMissing, SpecError, did_you_mean
from pmfl.world.datasets import Array, IntArray

CLUTTER = {"Thumbs.db", "desktop.ini", "__MACOSX"}


class Picture(NamedTuple):
    """One encoded image, and how to name it when something is wrong with it."""

    place: str
    data: bytes | Path


@dataclass(frozen=True)
class Pictures:
    """Encoded images in order, handed over a chunk at a time so that a large set never lies in memory."""

    count: int
    chunks: Callable[[], Iterator[list[Picture]]]

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class RawSplit:
    """Samples and labels of one split."""

    place: str  # the file or folder, for messages
    x: Array | Pictures  # uint8 [n, h, w(, c)], float [n, features], or encoded images
    y: IntArray  # [n]
    users: IntArray | None = None  # [n], into Raw.users


@dataclass(frozen=True)
class Raw:
    """What one source holds. Without a test split, a keyed share of train becomes one."""

    train: RawSplit
    test: RawSplit | None
    labels: tuple[str, ...] | None = None  # None: the source does not name its classes
    users: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say about a source that does not speak for itself."""

    image: str | None = None  # the column that holds the images
    label: str | None = None  # the column that holds the labels
    user: str | None = None  # the column that tells whom a sample came from
    train: str | None = None  # the split to train on, by the source's own name
    test: str | None = None  # the split to test on
    size: int | None = None  # resize every image to size x size
    sites: bool | None = None  # whether the top folders are users; None: look and see
    split_seed: int = 0  # which keyed share becomes the test split where the source has none

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Options from keywords; an unknown or impossible one is refused."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise SpecError(f"data: no option `{name}`", hint=did_you_mean(name, known))
        options = cls(**given)
        size = options.size
        if size is not None and not (isinstance(size, int) and 1 <= size <= 4096):
            raise SpecError(f"data: size = {size}", hint="give a side in pixels from 1 to 4096")
        return options

    def said(self) -> dict[str, Any]:
        """Only what differs from the defaults; part of the cache's key."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


@dataclass(frozen=True)
class Source:
    """A source that was found: which files decide its content, and how to read them."""

    reader: str
    root: Path  # names of files in the cache's key are relative to it
    files: Sequence[Path | str]
    options: Options
    read: Callable[[Path], Raw]  # given an empty scratch folder that lives as long as the answer is used

    @property
    def origin(self) -> str:
        """The file, or the folder of the files, for people."""
        return str(self.files[0] if len(self.files) == 1 else self.root)


def refuse(place: str | Path, what: str, hint: str) -> DataMissing:
    """The error for a source that is there but cannot be used."""
    return DataMissing(f"{place}: {what}", hint=hint, code="D101")


def guard_size(place: str | Path, packed: int, unpacked: int) -> None:
    """Refuse what unpacks to more than real data can: a bomb, or a damaged header.

    Images and features shrink by a factor of 2 to 20; the limit is a hundred, and small files are free.
    """
    if unpacked > max(100 * packed, 64 << 20):
        raise refuse(
            place,
            f"{packed:,} bytes claim to unpack to {unpacked:,}: a decompression bomb, or a damaged header",
            "get the file again from where it came; if it is right, unpack it yourself and point at the result",
        )


def listed(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in order, without hidden files; a link that leads out of it is refused.

    Entries rather than paths: a tree of 100,000 images is looked at each time it is opened.
    """
    with os.scandir(folder) as entries:
        found = [e for e in entries if not e.name.startswith(".") and e.name not in CLUTTER]
    for entry in found:
        if entry.is_symlink():
            _check_link(entry, folder)
        if not (entry.is_file() or entry.is_dir()) and Path(entry.path).exists():
            raise refuse(entry.path, "is neither a file nor a folder", "remove it: data are read from plain files")
    return sorted(found, key=lambda entry: entry.name)


def _check_link(entry: os.DirEntry[str], folder: Path) -> None:
    by = "replace the link by the files themselves, or point at the real folder"
    try:
        target = Path(entry.path).resolve()
    except RuntimeError:  # before Python 3.13; since then, reading it fails
        raise refuse(entry.path, "is a link that leads back to itself", by) from None
    if not target.is_relative_to(folder.resolve()):
        raise refuse(entry.path, f"is a link out of its folder, to {target}", by)


def visible(folder: Path) -> list[Path]:
    """The same as paths."""
    return [Path(entry.path) for entry in listed(folder)]
