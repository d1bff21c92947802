"""From what a reader hands over to .npy files: labels checked, images decoded, features standardised, all hashed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pmfl.world.datasets import Array
from pmfl.world.sources.crew import decode_all
from pmfl.world.sources.npy import NpyFile, Record, chunks, write_array
from pmfl.world.sources.progress import Progress
from pmfl.world.sources.raw import Options, Pictures, Raw, RawSplit, refuse
from pmfl.world.sources.splits import keyed_share


def write(raw: Raw, folder: Path, options: Options) -> dict[str, Any]:
    """Write the arrays of a set into a folder; returns the manifest that describes them."""
    _check_samples(raw, options)
    classes = _check_labels(raw)
    notes = dict(raw.notes)
    splits = {"train": raw.train} if raw.test is None else {"train": raw.train, "test": raw.test}
    aside = folder / "all_x.npy"
    if raw.test is None:
        splits = _divided(raw.train, aside, options)
        notes["test split"] = f"a keyed fifth of every class, split_seed = {options.split_seed}"
    if not isinstance(splits["train"].x, Pictures) and splits["train"].x.ndim == 2:
        splits = _standardised(splits)
        notes["features"] = "standardised to mean 0 and deviation 1 by the train split"
    files = {f"{name}_x": _write_x(folder / f"{name}_x.npy", split, options.size) for name, split in splits.items()}
    _agree(files, folder, splits)
    for name, split in splits.items():
        files[f"{name}_y"] = write_array(folder / f"{name}_y.npy", split.y)
        if split.users is not None:
            files[f"{name}_users"] = write_array(folder / f"{name}_users.npy", split.users)
    aside.unlink(missing_ok=True)
    mean, std = _statistics(np.load(folder / "train_x.npy", mmap_mode="r"))
    return {
        "files": files,
        "classes": classes,
        "labels": raw.labels,
        "users": raw.users,
        "counts": {name: np.bincount(split.y, minlength=classes).tolist() for name, split in splits.items()},
        "mean": mean,
        "std": std,
        "notes": notes,
    }


def _check_samples(raw: Raw, options: Options) -> None:
    """Arrays must be images or features; what is encoded is checked when it is decoded."""
    for split in (raw.train, raw.test):
        if split is None or isinstance(split.x, Pictures):
            continue
        x, place = split.x, split.place
        is_image = x.ndim in (3, 4) and x.dtype == np.uint8 and (x.ndim == 3 or x.shape[3] in (1, 3))
        if not is_image and (x.ndim != 2 or x.dtype.kind not in "iufb"):
            raise refuse(
                place,
                f"samples are {x.dtype} {x.shape}",
                "images are uint8 [n, height, width] or [n, height, width, 1 or 3], features are numbers [n, features]",
            )
        if is_image and options.size is not None and x.shape[1:3] != (options.size, options.size):
            raise refuse(place, f"images are {x.shape[1:3]}, not {options.size}", "size=… resizes image files only")
        if x.ndim == 2:
            wrong = np.argwhere(~np.isfinite(x))
            if len(wrong):
                row, column = wrong[0]
                raise refuse(place, f"row {row}, feature {column} is NaN or infinite", "fill in or drop those rows")
            if not isinstance(raw.train.x, Pictures) and x.shape[1:] != raw.train.x.shape[1:]:
                raise refuse(place, "train and test differ in their features", "give both the same columns")


def _check_labels(raw: Raw) -> int:
    """The number of classes; every label must be among them, and every class must have a training sample."""
    splits = [split for split in (raw.train, raw.test) if split is not None]
    for split in splits:
        if len(split.y) == 0 or len(split.x) != len(split.y):
            raise refuse(split.place, f"{len(split.x):,} samples and {len(split.y):,} labels", "every sample needs one")
    classes = len(raw.labels) if raw.labels is not None else 1 + max(int(split.y.max()) for split in splits)
    for split in splits:
        wrong = np.flatnonzero((split.y < 0) | (split.y >= classes))
        if len(wrong):
            named = f"0 to {classes - 1}" if raw.labels is not None else "0 and up"
            raise refuse(
                split.place,
                f"row {wrong[0]}: label {split.y[wrong[0]]} is out of range ({named})",
                "correct the labels, or choose another split: train=…, test=…",
            )
    if classes < 2:
        raise refuse(raw.train.place, "holds only one class", 'name another column of labels: label="…"')
    if classes > len(raw.train.y):
        raise refuse(raw.train.place, f"{classes} classes for {len(raw.train.y)} training samples", "is it the label?")
    empty = np.flatnonzero(np.bincount(raw.train.y, minlength=classes) == 0)
    if len(empty):
        shown = ", ".join(f"{c}" if raw.labels is None else f'{c} ("{raw.labels[c]}")' for c in empty[:5])
        raise refuse(
            raw.train.place,
            f"{len(empty)} of {classes} classes have no training sample: {shown}",
            "remove the class, or give it samples; labels count from 0 without gaps",
        )
    return classes


def _divided(split: RawSplit, aside: Path, options: Options) -> dict[str, RawSplit]:
    """Train and test out of a source that has one split; encoded images are decoded into a file of their own first."""
    if isinstance(split.x, Pictures):
        _write_x(aside, split, options.size)
        split = replace(split, x=np.load(aside, mmap_mode="r"))
    train, test = keyed_share(split.y, options.split_seed)
    if len(test) == 0:
        raise refuse(split.place, "has no test split and less than 5 samples of every class", "add samples, or test=…")

    def part(rows: npt.NDArray[np.int64]) -> RawSplit:
        assert not isinstance(split.x, Pictures)
        return RawSplit(split.place, split.x[rows], split.y[rows], None if split.users is None else split.users[rows])

    return {"train": part(train), "test": part(test)}


def _standardised(splits: dict[str, RawSplit]) -> dict[str, RawSplit]:
    tables = {name: np.asarray(split.x, np.float64) for name, split in splits.items()}
    mean, std = tables["train"].mean(axis=0), tables["train"].std(axis=0)
    std[std == 0] = 1  # a constant column stays constant, at 0
    return {name: replace(split, x=((tables[name] - mean) / std).astype(np.float32)) for name, split in splits.items()}


def _write_x(path: Path, split: RawSplit, size: int | None) -> Record:
    if isinstance(split.x, Pictures):
        return _write_pictures(path, split.x, split.place, size)
    return write_array(path, split.x[..., None] if split.x.ndim == 3 else split.x)


def _write_pictures(path: Path, pictures: Pictures, place: str, size: int | None) -> Record:
    file: NpyFile | None = None
    with ExitStack() as closing, Progress(f"decode {Path(place).name}", len(pictures)) as progress:
        for pixels in decode_all(pictures, size):
            if file is None:
                file = closing.enter_context(NpyFile(path, (len(pictures), *pixels.shape[1:]), pixels.dtype))
            elif file.shape[3] < pixels.shape[3]:
                file = _widened(file, closing)
            elif pixels.shape[3] < file.shape[3]:
                pixels = np.repeat(pixels, 3, axis=3)
            file.append(pixels)
            progress.advance(len(pixels))
        if file is None or file.rows != len(pictures):
            raise refuse(place, f"holds {file.rows if file else 0} of {len(pictures)} images", "get it again")
        return file.finish()


def _widened(grey: NpyFile, closing: ExitStack) -> NpyFile:
    """The same rows in a file of three channels: the first RGB image has come after grey ones."""
    written, old = grey.rows, grey.path.with_suffix(".grey")
    grey.finish()
    grey.path.rename(old)
    wide = closing.enter_context(NpyFile(grey.path, (*grey.shape[:3], 3), np.dtype(np.uint8)))
    for rows in chunks(np.memmap(old, np.uint8, "r", grey.header, (written, *grey.shape[1:]))):
        wide.append(np.repeat(rows, 3, axis=3))
    old.unlink()
    return wide


def _agree(files: dict[str, Record], folder: Path, splits: dict[str, RawSplit]) -> None:
    """Both splits must have samples of one shape; a grey split beside an RGB one is repeated."""
    train, test = files["train_x"]["shape"][1:], files["test_x"]["shape"][1:]
    if len(train) == len(test) == 3 and train[:2] == test[:2] and train != test:
        name = "train_x" if train[2] == 1 else "test_x"
        path, old = folder / f"{name}.npy", folder / f"{name}.grey"
        path.rename(old)
        grey = np.load(old, mmap_mode="r")
        files[name] = write_array(path, np.broadcast_to(grey, (*grey.shape[:3], 3)))
        old.unlink()
    elif train != test:
        raise refuse(
            splits["test"].place, f"test samples are {test}, train samples {train}", "bring both to one shape: size=…"
        )


def _statistics(x: Array) -> tuple[list[float], list[float]]:
    """Mean and deviation of every channel, of pixels scaled to [0, 1]; features are standardised already."""
    if x.ndim == 2:
        return [0.0], [1.0]
    counts = np.zeros((x.shape[3], 256), np.int64)
    for rows in chunks(x):
        for channel in range(x.shape[3]):
            counts[channel] += np.bincount(rows[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt(shares @ levels**2 - mean**2)
    return mean.tolist(), np.where(std > 0, std, 1.0).tolist()
