"""CSV files: numbers in columns, the label in the column named by the user, else in `label`, else in the last one."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from pmfl.errors import did_you_mean
from pmfl.world.datasets import Array, IntArray
from pmfl.world.sources import columns
from pmfl.world.sources.raw import Options, Raw, RawSplit, Source, refuse, visible
from pmfl.world.sources.splits import choose, split_word

SUFFIXES = (".csv", ".tsv", ".csv.gz")
LABEL = "label"


def find(path: Path, options: Options, name: str) -> Source | None:
    """A CSV file (`x_train.csv` finds `x_test.csv`), or a folder with one file, or one per split."""
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            return None
        other = path.with_name(path.name.replace("train", "test"))
        files = [path, other] if split_word(path.name) == "train" and other != path and other.is_file() else [path]
        return _source(path.parent, files, options)
    files = [file for file in visible(path) if file.name.endswith(SUFFIXES)]
    if len(files) == 1 or (files and all(split_word(file.name) for file in files)):
        return _source(path, files, options)
    return None  # several files without a split in their names: a site each


def _source(root: Path, files: list[Path], options: Options) -> Source:
    return Source("tabular", root, tuple(files), options, lambda scratch: _raw(files, options))


def _raw(files: list[Path], options: Options) -> Raw:
    by_split: dict[str, Path] = {}
    for file in files:
        split = split_word(file.name) or "all"
        if split in by_split:
            raise refuse(file, f"is a second {split} file, beside {by_split[split].name}", "point at one of them")
        by_split[split] = file
    train, test, notes = choose(by_split, options, files[0])
    used = [by_split[split] for split in (train, test) if split is not None]
    tables = [_table(file) for file in used]
    names = list(tables[0].column_names)
    label = _label(names, options, used[0])
    for table, file in zip(tables, used, strict=True):
        if list(table.column_names) != names:
            raise refuse(file, "has other columns than the train file", f"it needs {', '.join(names)}")
    y, labels = _classes(_values(tables, label, used[0]), f'{used[0]} (column "{label}")')
    user = columns.user_column(names, options, used[0])
    users, user_names = columns.counted(_values(tables, user, used[0])) if user is not None else (None, ())
    features = [name for name in names if name not in (label, user)]
    parts, start = [], 0
    for table, file in zip(tables, used, strict=True):
        rows = slice(start, start + table.num_rows)
        start = rows.stop
        x = _features(table, features, file)
        parts.append(RawSplit(str(file), x, y[rows], None if users is None else users[rows]))
    return Raw(parts[0], parts[1] if test is not None else None, labels, user_names, notes)


def _classes(values: Array, place: str) -> tuple[IntArray, tuple[str, ...]]:
    if values.dtype.kind == "f":
        if not np.array_equal(values, np.round(values)):
            raise refuse(
                place, "holds fractions, not classes", 'name the label: label="…"; regression is not supported'
            )
        values = values.astype(np.int64)
    return columns.counted(values)


def _label(names: list[str], options: Options, place: Path) -> str:
    if options.label is None:
        return LABEL if LABEL in names else names[-1]
    if options.label not in names:
        raise refuse(place, f'has no column "{options.label}" for label', did_you_mean(options.label, names))
    return options.label


def _table(path: Path) -> Any:
    """The file as an arrow table; without a header line, columns are called 0, 1, …"""
    import pyarrow as pa
    from pyarrow import csv as reader

    try:
        with pa.input_stream(str(path)) as stream:
            first = stream.read(1 << 16).decode().splitlines()[0]
        delimiter = next((d for d in ",;\t" if d in first), ",")
        cells = next(csv.reader([first], delimiter=delimiter))
        names = [str(i) for i in range(len(cells))] if all(map(_is_number, cells)) else None
        table = reader.read_csv(
            path,
            reader.ReadOptions(column_names=names),
            reader.ParseOptions(delimiter=delimiter),
        )
    except (pa.ArrowException, UnicodeDecodeError, IndexError, StopIteration) as error:
        raise refuse(
            path, f"is not a table: {error}", "every row needs as many cells as the header, in UTF-8"
        ) from None
    if table.num_rows == 0 or table.num_columns < 2 or len(set(table.column_names)) < table.num_columns:
        shown = f"{table.num_rows} rows of columns {', '.join(table.column_names)}"
        raise refuse(path, f"has {shown}", "at least one feature and a label are needed, under different names")
    return table


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _values(tables: list[Any], name: str, place: Path) -> Array:
    pieces = [table.column(name).to_numpy() for table in tables]
    missing = sum(table.column(name).null_count for table in tables) + sum((piece == "").sum() for piece in pieces)
    if missing:
        raise refuse(place, f'column "{name}" has {missing} missing values', "fill in or drop those rows")
    values = np.concatenate(pieces)
    return values.astype(str) if values.dtype.kind == "O" else values


def _features(table: Any, names: list[str], path: Path) -> Array:
    import pyarrow.types as kinds

    x = np.empty((table.num_rows, len(names)), np.float64)
    for i, name in enumerate(names):
        column = table.column(name)
        if not (kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_boolean(column.type)):
            row, cell = next(
                ((r, c) for r, c in enumerate(column.to_pylist()) if c is None or not _is_number(str(c))), (0, "")
            )
            raise refuse(
                path,
                f'row {row + 1}: column "{name}" holds "{cell}", not a number',
                "drop the column, replace words by numbers, or say that it is the label or the user",
            )
        if column.null_count:
            row = column.to_pylist().index(None)
            raise refuse(path, f'row {row + 1}: column "{name}" is empty', "fill in or drop rows with missing values")
        x[:, i] = column.to_numpy()
    return x
