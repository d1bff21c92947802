"""Numpy files: one .npz with train and test arrays, or pairs of .npy files. Never with pickled objects."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError  # what numpy lets through of a damaged header

import numpy as np

from pmfl.errors import did_you_mean
from pmfl.world.datasets import Array, IntArray
from pmfl.world.sources import columns
from pmfl.world.sources.raw import Options, Raw, RawSplit, Source, guard_size, refuse

SAMPLES, LABELS, USERS = ("x", "images", "data"), ("y", "labels", "label", "targets"), ("users", "user")
SPLITS = {"train": ("train",), "test": ("test",), "val": ("val", "valid", "validation")}
DAMAGE = (ValueError, EOFError, OSError, KeyError, SyntaxError, TokenError, zlib.error, zipfile.BadZipFile)
AGAIN = "save it again with numpy.savez(file, x_train=…, y_train=…, x_test=…, y_test=…), as plain numbers"


def find(path: Path, options: Options, name: str) -> Source | None:
    """An .npz file, a folder with exactly one, or .npy files named x_train, y_train, … in one folder."""
    if path.is_file():
        if path.suffix == ".npz":
            return _source((path,), options)
        if path.suffix != ".npy":
            return None
    folder = path if path.is_dir() else path.parent
    packed = sorted(folder.glob("*.npz"))
    if path.is_dir() and len(packed) == 1:
        return _source((packed[0],), options)
    loose = sorted(file for file in folder.glob("*.npy") if _role(file.stem.lower()) is not None)
    return _source(tuple(loose), options) if loose else None


def _source(files: tuple[Path, ...], options: Options) -> Source:
    return Source("arrays", files[0].parent, files, options, lambda scratch: _raw(files, options))


def _role(name: str) -> tuple[str, str] | None:
    """What an array's name says: `x_train`, `train_images` and `X` -> ("x", "train")."""
    words = name.lower().split("_")
    kinds = {"x": SAMPLES, "y": LABELS, "users": USERS}
    kind = next((kind for kind, usual in kinds.items() if any(word in usual for word in words)), None)
    split = next((split for split, usual in SPLITS.items() if any(word in usual for word in words)), "train")
    return (kind, split) if kind is not None and len(words) <= 2 else None


@dataclass(frozen=True)
class _Stored:
    """One array on disk."""

    path: Path
    name: str

    @property
    def place(self) -> str:
        return f"{self.path} ({self.name})" if self.path.suffix == ".npz" else str(self.path)

    def read(self) -> Array:
        try:
            if self.path.suffix == ".npy":
                return np.asarray(np.load(self.path, allow_pickle=False, mmap_mode="r"))
            with np.load(self.path, allow_pickle=False) as archive:
                return np.asarray(archive[self.name])
        except DAMAGE as error:
            raise refuse(self.place, f"cannot be read: {error}", AGAIN) from None


def _raw(files: tuple[Path, ...], options: Options) -> Raw:
    stored = [_Stored(file, name) for file in files for name in _names(file)]
    chosen = {role: array for array in stored if (role := _role(array.name)) is not None}
    for kind, asked in (("x", options.image), ("y", options.label), ("users", options.user)):
        if asked is not None:
            named = next((array for array in stored if array.name == asked), None)
            if named is None:
                raise refuse(files[0], f'has no array "{asked}"', did_you_mean(asked, [a.name for a in stored]))
            chosen[kind, "train"] = named
    test = next((split for split in ("test", "val") if ("x", split) in chosen), None)
    splits = [split for split in ("train", test) if split is not None]
    for needed in ((kind, split) for split in splits for kind in "xy"):
        if needed not in chosen:
            shown = ", ".join(array.name for array in stored)
            raise refuse(files[0], f"holds {shown or 'nothing'}: no {'_'.join(needed)}", AGAIN)
    users, names = _users([chosen.get(("users", split)) for split in splits])
    parts = [_split(chosen["x", split], chosen["y", split], mine) for split, mine in zip(splits, users, strict=True)]
    notes = {"test split": "the source's validation arrays"} if test == "val" else {}
    return Raw(parts[0], parts[1] if test is not None else None, None, names, notes)


def _users(stored: list[_Stored | None]) -> tuple[list[IntArray | None], tuple[str, ...]]:
    """Users of each split as numbers, and their names."""
    values = [None if array is None else array.read() for array in stored]
    known = [value for value in values if value is not None]
    if not known:
        return [None] * len(stored), ()
    _, names = columns.counted(np.concatenate(known))
    distinct = np.unique(np.concatenate(known))
    return [None if value is None else np.searchsorted(distinct, value) for value in values], names


def _split(stored_x: _Stored, stored_y: _Stored, users: IntArray | None) -> RawSplit:
    x, y = stored_x.read(), stored_y.read()
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise refuse(stored_y.place, f"labels are {y.dtype} {y.shape}", "save one whole number per sample")
    if x.ndim < 2:
        raise refuse(stored_x.place, f"samples are {x.dtype} {x.shape}", "save one row or one image per sample")
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] not in (1, 3):
        raise refuse(stored_x.place, f"images are {x.shape}: channels come second", "save x.transpose(0, 2, 3, 1)")
    if x.ndim > 2 and x.dtype != np.uint8:
        raise refuse(stored_x.place, f"images are {x.dtype}", "save them as uint8 from 0 to 255")
    return RawSplit(stored_x.place, x, y.astype(np.int64), users)


def _names(path: Path) -> list[str]:
    if path.suffix == ".npy":
        return [path.stem]
    try:
        with zipfile.ZipFile(path) as archive:
            guard_size(path, path.stat().st_size, sum(member.file_size for member in archive.infolist()))
            return [member.filename.removesuffix(".npy") for member in archive.infolist()]
    except zipfile.BadZipFile as error:
        raise refuse(path, f"is not a whole .npz file: {error}", AGAIN) from None
