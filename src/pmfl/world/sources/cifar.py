"""The official CIFAR-10 and CIFAR-100 Python archives, packed (`cifar-10-python.tar.gz`) or unpacked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from pmfl.world.datasets import Array, IntArray
from pmfl.world.sources import opcodes
from pmfl.world.sources.archives import each_member
from pmfl.world.sources.raw import Options, Raw, RawSplit, Source, refuse

ARCHIVES = ("cifar-10-python.tar.gz", "cifar-100-python.tar.gz")
FOLDERS = ("cifar-10-batches-py", "cifar-100-python")
TRAIN_10 = tuple(f"data_batch_{i}" for i in range(1, 6))
MEMBERS_10 = (*TRAIN_10, "test_batch", "batches.meta")
MEMBERS_100 = ("train", "test", "meta")
SIDE = 32


def find(path: Path, options: Options, name: str) -> Source | None:
    """An archive by its official name, its unpacked folder, or a folder that holds one of the two."""
    if path.is_file():
        if path.name in ARCHIVES:
            return Source("cifar", path.parent, (path,), options, lambda scratch: _from_archive(path, options))
        return None
    for wanted, usual in ((MEMBERS_10, FOLDERS[0]), (MEMBERS_100, FOLDERS[1])):
        files = tuple(path / member for member in wanted)
        missing = [file.name for file in files if not file.is_file()]
        if not missing:
            return Source("cifar", path, files, options, lambda scratch: _from_folder(path, options))
        if path.name == usual:
            raise refuse(path, f"lacks {', '.join(missing)}", "unpack the archive again")
    inside = {child.split("-")[1]: path / child for child in (*ARCHIVES, *FOLDERS) if (path / child).exists()}
    if len(inside) == 2 and name.removeprefix("cifar") not in inside:
        raise refuse(path, "holds both CIFAR-10 and CIFAR-100", "point at one of the two")
    chosen = inside.get(name.removeprefix("cifar")) or next(iter(inside.values()), None)
    return find(chosen, options, name) if chosen is not None else None


def _from_folder(path: Path, options: Options) -> Raw:
    wanted = MEMBERS_10 if (path / MEMBERS_10[0]).is_file() else MEMBERS_100
    contents = {member: opcodes.load((path / member).read_bytes(), str(path / member)) for member in wanted}
    return _raw(contents, str(path), options)


def _from_archive(path: Path, options: Options) -> Raw:
    wanted = MEMBERS_100 if "100" in path.name else MEMBERS_10
    contents: dict[str, Any] = {}

    def take(name: str, stream: IO[bytes]) -> None:
        short = PurePosixPath(name).name
        if short in wanted:
            contents[short] = opcodes.load(stream.read(), f"{path} ({name})")

    each_member(path, take)
    missing = [member for member in wanted if member not in contents]
    if missing:
        raise refuse(path, f"lacks {', '.join(missing)}", opcodes.AGAIN)
    return _raw(contents, str(path), options)


def _raw(contents: Mapping[str, Any], place: str, options: Options) -> Raw:
    is_10 = "test_batch" in contents
    kind = "" if is_10 else ("coarse_" if (options.label or "fine").startswith("coarse") else "fine_")
    train = [(member, contents[member]) for member in (TRAIN_10 if is_10 else ("train",))]
    test_member = "test_batch" if is_10 else "test"
    names = _field(contents["batches.meta" if is_10 else "meta"], f"{kind}label_names", place)
    pairs = [_batch(batch, f"{kind}labels", f"{place} ({member})") for member, batch in train]
    x_test, y_test = _batch(contents[test_member], f"{kind}labels", f"{place} ({test_member})")
    return Raw(
        RawSplit(place, np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])),
        RawSplit(place, x_test, y_test),
        tuple(map(str, names)),
    )


def _batch(batch: Any, labels: str, place: str) -> tuple[Array, IntArray]:
    data, y = _field(batch, "data", place), _field(batch, labels, place)
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3 * SIDE * SIDE:
        raise refuse(place, "its `data` is not an array of 3,072 bytes per image", opcodes.AGAIN)
    if not isinstance(y, list) or len(y) != len(data) or not all(type(label) is int for label in y):
        raise refuse(place, f"its `{labels}` is not one whole number per image", opcodes.AGAIN)
    return data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), np.array(y, np.int64)


def _field(batch: Any, key: str, place: str) -> Any:
    """An entry by name; Python 3 reads the keys of some archives as bytes."""
    if isinstance(batch, dict):
        for candidate in (key, key.encode()):
            if candidate in batch:
                return batch[candidate]
    raise refuse(place, f"has no `{key}`", opcodes.AGAIN)
