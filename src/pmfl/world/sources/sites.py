"""A folder (or a file) per site: each is a source of its own, and its samples belong to one user."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pmfl.world.datasets import IntArray
from pmfl.world.sources.folders import in_order
from pmfl.world.sources.raw import Options, Picture, Pictures, Raw, RawSplit, Source, refuse, visible

FILES = (".csv", ".tsv", ".npz", ".parquet")


def find(path: Path, options: Options, name: str) -> Source | None:
    """Folders that other readers know each by itself; without folders, files that they know."""
    from pmfl.world.sources.finding import one

    if not path.is_dir() or options.sites is False:
        return None
    below = visible(path)
    parts = [p for p in below if p.is_dir()] or [p for p in below if p.name.endswith(FILES)]
    if not parts:
        return None
    found: dict[str, Source | None] = {}
    for part in parts:
        site = part.name if part.is_dir() else part.stem
        if site in found:
            raise refuse(part, f'is a second site called "{site}"', "rename it, or remove one of the two")
        found[site] = one(part, options, name)
    sources = {site: source for site, source in found.items() if source is not None}
    if not sources:
        return None
    unknown = [site for site, source in found.items() if source is None]
    if unknown:
        raise refuse(
            path / unknown[0], "cannot be read, but its neighbours look like sites", "give all sites one layout"
        )
    files = tuple(file for source in sources.values() for file in source.files)
    return Source("sites", path, files, options, lambda scratch: _raw(path, sources, scratch))


def _raw(path: Path, sources: dict[str, Source], scratch: Path) -> Raw:
    raws = {}
    for site, source in sources.items():
        (scratch / site).mkdir()
        raws[site] = source.read(scratch / site)
    named = [raw.labels for raw in raws.values()]
    if any(labels is None for labels in named) and any(labels is not None for labels in named):
        raise refuse(path, "some sites name their classes and some do not", "give all sites one layout")
    names = tuple(sorted({name for labels in named for name in labels or ()}, key=in_order)) or None
    users: list[str] = []
    trains, tests = [], []
    for site, raw in raws.items():
        offset = len(users)
        users += [f"{site}/{user}" for user in raw.users] or [site]
        trains.append(_moved(raw.train, raw.labels, names, offset))
        if raw.test is not None:
            tests.append(_moved(raw.test, raw.labels, names, offset))
    without = [site for site, raw in raws.items() if raw.test is None]
    notes = {"sites": f"{len(raws)} folders or files of {path.name}, a user each"}
    if tests and without:
        notes["test split"] = f"from the sites that have one; not from {', '.join(without)}"
    return Raw(_joined(path, trains), _joined(path, tests) if tests else None, names, tuple(users), notes)


def _moved(split: RawSplit, labels: tuple[str, ...] | None, names: tuple[str, ...] | None, offset: int) -> RawSplit:
    """One site's split, in the labels and the users of all sites."""
    y = split.y
    if labels is not None and names is not None:
        y = np.array([names.index(label) for label in labels], np.int64)[y]
    users = np.zeros(len(y), np.int64) if split.users is None else split.users
    return RawSplit(split.place, split.x, y, users + offset)


def _joined(path: Path, splits: Sequence[RawSplit]) -> RawSplit:
    y: IntArray = np.concatenate([split.y for split in splits])
    users: IntArray = np.concatenate([split.users for split in splits if split.users is not None])
    pictures = [split.x for split in splits if isinstance(split.x, Pictures)]
    if pictures:
        if len(pictures) < len(splits):
            raise refuse(path, "some sites hold encoded images and some arrays", "give all sites one layout")

        def chunks() -> Iterator[list[Picture]]:
            yield from itertools.chain.from_iterable(part.chunks() for part in pictures)

        return RawSplit(str(path), Pictures(len(y), chunks), y, users)
    arrays = [split.x for split in splits if not isinstance(split.x, Pictures)]
    for split, x in zip(splits, arrays, strict=True):
        if x.shape[1:] != arrays[0].shape[1:] or x.dtype != arrays[0].dtype:
            raise refuse(
                split.place,
                f"has {x.dtype} {x.shape[1:]}, {splits[0].place} has {arrays[0].dtype} {arrays[0].shape[1:]}",
                "give all sites the same columns, or images of one size",
            )
    return RawSplit(str(path), np.concatenate(arrays), y, users)
