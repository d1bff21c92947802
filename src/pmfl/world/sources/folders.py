"""Images in folders: `cat/1.png`, or `train/cat/1.png` and `test/cat/2.png` (the CINIC-10 tree is one of these)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pmfl.world.sources.raw import Options, Picture, Pictures, Raw, RawSplit, Source, listed, refuse, visible
from pmfl.world.sources.splits import HELD_OUT, TEST, TRAIN, choose

PICTURES_AT_A_TIME = 250
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")  # what images.FORMATS are called


def find(path: Path, options: Options, name: str) -> Source | None:
    """A folder per class, with or without a folder per split above."""
    if not path.is_dir():
        return None
    below = [p for p in visible(path) if p.is_dir()]
    splits = [p for p in below if p.name in {*TRAIN, *TEST, *HELD_OUT, options.train, options.test}]
    is_split = any(p.name in {*TRAIN, options.train} for p in splits)
    if not any(_holds_pictures(child) for child in (_children(splits) if is_split else below)):
        return None
    train, test, notes = choose([p.name for p in splits], options, path) if is_split else ("", None, {})
    roots = {split: path / split for split in (train, test) if split is not None}
    found = {split: _scan(root) for split, root in roots.items()}
    files = tuple(file for classes in found.values() for inside in classes.values() for file in inside)
    return Source("folders", path, files, options, lambda scratch: _raw(roots, found, notes))


def _children(folders: list[Path]) -> list[Path]:
    return [child for folder in folders for child in visible(folder) if child.is_dir()]


def _holds_pictures(folder: Path) -> bool:
    return any(p.suffix.lower() in SUFFIXES for p in folder.iterdir())


def _scan(root: Path) -> dict[str, list[str]]:
    """Class name -> its images. Anything unexpected inside of a class is refused rather than left out."""
    classes = {}
    for folder in visible(root):
        if not folder.is_dir():
            continue  # a README beside the classes
        entries = listed(folder)
        for entry in entries:
            if not entry.name.lower().endswith(SUFFIXES):
                if entry.is_dir():
                    raise refuse(
                        entry.path, "is a folder inside of a class", "keep one folder per class; or sites=True"
                    )
                raise refuse(entry.path, "is not an image", f"remove it: classes hold only {', '.join(SUFFIXES)}")
        if not entries:
            raise refuse(folder, "is an empty class", "remove the folder, or put images into it")
        classes[folder.name] = [entry.path for entry in entries]
    return classes


def _raw(roots: dict[str, Path], found: dict[str, dict[str, list[str]]], notes: dict[str, str]) -> Raw:
    names = tuple(sorted({name for classes in found.values() for name in classes}, key=in_order))
    parts = []
    for split, classes in found.items():
        files = [file for name in names for file in classes.get(name, [])]
        y = np.repeat(np.arange(len(names)), [len(classes.get(name, [])) for name in names])
        parts.append(RawSplit(str(roots[split]), _pictures(files), y.astype(np.int64)))
    return Raw(parts[0], parts[1] if len(parts) > 1 else None, names, (), notes)


def in_order(name: str) -> tuple[int, int, str]:
    """Numbers by value, before words by letter."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)


def _pictures(files: list[str]) -> Pictures:
    def chunks() -> Iterator[list[Picture]]:
        for start in range(0, len(files), PICTURES_AT_A_TIME):
            yield [Picture(file, Path(file)) for file in files[start : start + PICTURES_AT_A_TIME]]

    return Pictures(len(files), chunks)
