"""Archives: finished runs as three tidy Parquet files, small enough to be kept with a repository.

DIR/runs.parquet     one row per run: what was asked (its whole specification), how long it took, its summaries
DIR/rounds.parquet   run_id, t, metric, split, value
DIR/clients.parquet  run_id, t, client, metric, value

What is kept of rounds and clients is what `answers.py` says. Models are not: the hash of each is. Later runs are
added; a question that is answered already keeps its answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmfl.core.tree import replacing
from pmfl.errors import StoreError
from pmfl.study import frames
from pmfl.study.answers import Source, question_of
from pmfl.study.store import RunRow, storing

JSON = ("spec", "metrics")  # columns that hold trees
TABLES = ("rounds", "clients", "runs")  # runs last: a run that is not named there is not there
COLUMNS = {"rounds": ("run_id", "split", "metric", "t"), "clients": ("run_id", "metric", "t", "client")}


class Archive:
    """A folder of finished runs; a folder that does not exist is an empty one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def runs(self) -> list[RunRow]:
        """Every run, in the order in which they were added."""
        if not (self.folder / "runs.parquet").is_file():
            return []
        try:
            rows = _read(self.folder / "runs.parquet").to_pylist()
            return [RunRow(**row | {name: json.loads(row[name]) for name in JSON}) for row in rows]
        except (TypeError, ValueError, KeyError) as error:
            raise _damaged(self.folder / "runs.parquet", error) from error

    def rounds(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of whole rounds."""
        return self._of("rounds", run_ids)

    def clients(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of each client."""
        return self._of("clients", run_ids)

    def _of(self, name: str, run_ids: Sequence[str]) -> pa.Table:
        file, schema = self.folder / f"{name}.parquet", frames.empty(name).schema
        if not run_ids or not file.is_file():
            return frames.empty(name)
        table = _read(file, filters=pc.field("run_id").isin(list(run_ids)))
        if not set(schema.names) <= set(table.column_names):
            raise _damaged(file, ValueError(f"columns {', '.join(table.column_names)}"))
        return table.select(schema.names).cast(schema)


def add(folder: Path, sources: Iterable[Source]) -> list[RunRow]:
    """Add the finished runs of some sources to an archive; returns those that answer what nobody had answered."""
    old = Archive(folder)
    known = old.runs()
    answered, kept = {question_of(row) for row in known}, [row.run_id for row in known]
    added: list[RunRow] = []
    tables = {name: [old._of(name, kept)] for name in COLUMNS}
    for source in sources:
        new = []
        for row in source.runs():
            question = question_of(row)
            if row.status == "done" and question not in answered:
                answered.add(question)
                new.append(replace(row, question_id=question))
        ids = [row.run_id for row in new]
        tables["rounds"].append(source.rounds(ids))
        tables["clients"].append(source.clients(ids))
        added += new
    if added:
        _write(folder, [*known, *added], {name: pa.concat_tables(parts) for name, parts in tables.items()})
    return added


def _write(folder: Path, runs: Sequence[RunRow], tables: dict[str, pa.Table]) -> None:
    names = [field.name for field in fields(RunRow)]
    rows = [
        {name: json.dumps(getattr(row, name)) if name in JSON else getattr(row, name) for name in names} for row in runs
    ]
    short = {name: _sorted(table, name) for name, table in tables.items()} | {"runs": pa.Table.from_pylist(rows)}
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            with replacing(folder / f"{name}.parquet") as beside:
                pq.write_table(short[name], beside, compression="zstd", compression_level=19)


def _sorted(table: pa.Table, name: str) -> pa.Table:
    """In one order whatever the order of adding, and with numbers no wider than they need to be."""
    table = table.sort_by([(column, "ascending") for column in COLUMNS[name]])
    for column in ("t", "client"):
        if column in table.column_names:
            place = table.schema.get_field_index(column)
            table = table.set_column(place, column, table[column].cast(pa.int32()))
    return table


def _read(file: Path, filters: object = None) -> pa.Table:
    try:
        return pq.read_table(file, filters=filters)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> StoreError:
    hint = f"write it again from the results it was made of: `pmfl archive {file.parent} --out DIR`"
    return StoreError(f"{file} cannot be read: {str(error).splitlines()[0]}", hint=hint, code="R120")
