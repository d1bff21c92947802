"""Parquet files in the Hugging Face hub's image layout: `image: struct<bytes, path>`, `label`, one file per split."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pmfl.world.datasets import Array
from pmfl.world.sources import columns
from pmfl.world.sources.raw import Options, Picture, Pictures, Raw, RawSplit, Source, guard_size, refuse, visible
from pmfl.world.sources.splits import choose, split_word

ROWS = 1000  # pictures handed over at a time


def find(path: Path, options: Options, name: str) -> Source | None:
    """A Parquet file with its siblings (`x_train.parquet` finds `x_test.parquet`), or a folder of them."""
    if path.is_file():
        if path.suffix != ".parquet":
            return None
        group = _group(path)
        siblings = [p for p in sorted(path.parent.glob("*.parquet")) if _group(p) == group]
        is_set = split_word(path.stem) == "train" and path in siblings
        return _source(path.parent, siblings if is_set else [path], options)
    folder = _folder(path)
    if folder is None:
        return None
    groups = defaultdict(list)
    for file in visible(folder):
        if file.suffix == ".parquet":
            groups[_group(file)].append(file)
    if len(groups) > 1:
        wanted = {g: files for g, files in groups.items() if g.startswith(_plain(name))}
        if len(wanted) != 1:
            shown = ", ".join(sorted(p.name for files in groups.values() for p in files)[:8])
            raise refuse(path, f"holds several sets: {shown}", "point at the train file of one of them")
        groups = defaultdict(list, wanted)
    return _source(folder, next(iter(groups.values())), options)


def _folder(path: Path) -> Path | None:
    """The folder itself, or its only subfolder with Parquet files (`data/`, or a hub configuration)."""
    if any(path.glob("*.parquet")):
        return path
    below = [p for p in visible(path) if p.is_dir() and any(p.glob("*.parquet"))]
    return below[0] if len(below) == 1 else None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())


def _group(path: Path) -> str:
    """What is left of a file's name without its split and its shard: files of one set share it."""
    stem = re.sub(r"[-_.]\d{3,}-of-\d{3,}$", "", path.stem)
    word = split_word(stem)
    return _plain(re.sub(rf"(?i)(^|[^a-z0-9]){word}([^a-z0-9]|$)", " ", stem) if word else stem)


def _source(root: Path, files: Sequence[Path], options: Options) -> Source:
    return Source("parquet", root, tuple(files), options, lambda scratch: read(root, files, options))


def read(root: Path, files: Sequence[Path], options: Options) -> Raw:
    """Open the files, choose columns and splits; images stay encoded until they are asked for."""
    by_split: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        by_split[split_word(file.stem) or "all"].append(file)
    train, test, notes = choose(by_split, options, root)
    return raw(
        {role: _tables(by_split[split]) for role, split in (("train", train), ("test", test)) if split is not None},
        options,
        notes,
    )


class Table:
    """One Parquet file as a source of columns and of pictures."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._file = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise refuse(path, f"cannot be read as Parquet: {error}", "get the file again from where it came") from None
        self.place, self.path = path.name, path
        self.schema, self.rows = self._file.schema_arrow, self._file.metadata.num_rows
        guard_size(path, path.stat().st_size, self.rows * 64)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Record batches of some columns."""
        import pyarrow as pa

        try:
            yield from self._file.iter_batches(batch_size=ROWS, columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise refuse(self.path, f"is damaged: {error}", "get the file again from where it came") from None


def _tables(paths: Sequence[Path]) -> list[Table]:
    return [Table(path) for path in paths]


def raw(splits: dict[str, list[Any]], options: Options, notes: dict[str, str]) -> Raw:
    """What tables hold that answer to ``place``, ``schema``, ``rows`` and ``batches`` (Parquet here, or the hub's)."""
    first = splits["train"][0]
    chosen = columns.choose(first.schema, options, first.place)
    y, names = columns.labels(_values(splits, chosen.label), chosen.names, first.place)
    users, user_names = columns.counted(_values(splits, chosen.user)) if chosen.user else (None, ())
    parts, start = {}, 0
    for role, tables in splits.items():
        pictures = _pictures(tables, chosen.image)
        rows = slice(start, start + len(pictures))
        start = rows.stop
        parts[role] = RawSplit(tables[0].place, pictures, y[rows], None if users is None else users[rows])
    return Raw(parts["train"], parts.get("test"), names, user_names, notes)


def _values(splits: dict[str, list[Any]], column: str) -> Array:
    """One column of all splits, one after the other."""
    pieces = []
    for table in itertools.chain.from_iterable(splits.values()):
        if column not in table.schema.names:
            raise refuse(
                table.place, f'has no column "{column}", which the first file has', "give all files one layout"
            )
        for batch in table.batches([column]):
            if batch.column(0).null_count:
                raise refuse(table.place, f'column "{column}" has missing values', "fill in or drop those rows")
            pieces.append(np.asarray(batch.column(0).to_numpy(zero_copy_only=False)))
    values = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    return values.astype(str) if values.dtype.kind == "O" else values


def _pictures(tables: Sequence[Any], column: str) -> Pictures:
    def chunks() -> Iterator[list[Picture]]:
        for table in tables:
            row = 0
            for batch in table.batches([column]):
                yield _chunk(batch.column(0), table.place, row)
                row += len(batch)

    return Pictures(sum(table.rows for table in tables), chunks)


def _chunk(array: Any, place: str, row: int) -> list[Picture]:
    import pyarrow.types as kinds

    if kinds.is_struct(array.type):
        data = array.field("bytes").to_pylist()
        has_path = any(field.name == "path" for field in array.type)
        paths = array.field("path").to_pylist() if has_path else [None] * len(data)
    else:
        data, paths = array.to_pylist(), [None] * len(array)
    pictures = []
    for i, (bytes_, path) in enumerate(zip(data, paths, strict=True), start=row):
        where = f"{place} row {i}" + (f" ({path})" if path else "")
        if not isinstance(bytes_, bytes):
            raise refuse(where, "holds no image", "the image column must hold encoded bytes, not only paths")
        pictures.append(Picture(where, bytes_))
    return pictures
