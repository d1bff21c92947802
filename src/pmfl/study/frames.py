"""Tidy tables: one metric per row, from runs that are done and from runs that are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pmfl.errors import StoreError
from pmfl.study.metrics import summary_of
from pmfl.study.store import Store

ROUNDS = pa.schema([("t", pa.int64()), ("metric", pa.string()), ("split", pa.string()), ("value", pa.float64())])
CLIENTS = pa.schema([("t", pa.int64()), ("client", pa.int64()), ("metric", pa.string()), ("value", pa.float64())])
PARTICIPATION = pa.schema([("t", pa.int64()), ("client", pa.int64())])


def rounds(store: Store, run_ids: Sequence[str]) -> pa.Table:
    """run_id, t, metric, split, value: what was measured of whole rounds."""
    return _tables(store, run_ids, "rounds")


def clients(store: Store, run_ids: Sequence[str]) -> pa.Table:
    """run_id, t, client, metric, value: what was measured of each client."""
    return _tables(store, run_ids, "clients")


def participation(store: Store, run_ids: Sequence[str]) -> pa.Table:
    """run_id, t, client: one row per participation."""
    return _tables(store, run_ids, "participation")


def _tables(store: Store, run_ids: Sequence[str], name: str) -> pa.Table:
    tables = []
    for run_id in run_ids:
        table = (
            _sealed(store.sealed(run_id) / f"{name}.parquet") if store.is_done(run_id) else live(store, run_id, name)
        )
        tables.append(table.add_column(0, "run_id", pa.array([run_id] * len(table), pa.string())))
    return pa.concat_tables(tables) if tables else empty(name)


def summarise(rounds: pa.Table) -> dict[str, dict[str, float]]:
    """Per evaluated curve: the final value, the mean of the last 10 and the mean of the 5 best evaluations."""
    found = {}
    for split in ("test", "train"):
        for metric in ("accuracy", "loss"):
            mask = pc.and_(pc.equal(rounds["split"], split), pc.equal(rounds["metric"], metric))
            curve = rounds.filter(mask).sort_by("t")["value"].to_pylist()
            if curve:
                found[f"{split}/{metric}"] = summary_of(curve, lower_is_better=metric == "loss")
    return found


def live(store: Store, run_id: str, name: str) -> pa.Table:
    """One table of a run that is still in the database."""
    rows = store.rows(name, run_id)
    if name == "rounds":
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
        return pa.table(columns, schema=ROUNDS)
    if name == "participation":
        who = [np.frombuffer(data, "<i4").astype(np.int64) for _, data in rows]
        t = np.repeat([t for t, _ in rows], [len(ids) for ids in who]).astype(np.int64)
        return pa.table([t, np.concatenate([*who, np.empty(0, np.int64)])], schema=PARTICIPATION)
    parts = []
    for t, metric, data in rows:
        values = np.frombuffer(data, "<f8")
        said = np.flatnonzero(~np.isnan(values))
        parts.append(
            pa.table([np.full(len(said), t), said, pa.repeat(metric, len(said)), values[said]], schema=CLIENTS)
        )
    return pa.concat_tables(parts) if parts else CLIENTS.empty_table()


def _sealed(file: Path) -> pa.Table:
    try:
        return pq.read_table(file.absolute())
    except (OSError, pa.ArrowInvalid) as error:
        hint = f"delete {file.parent}; `pmfl run` plays the run again, to the same bits"
        raise StoreError(f"{file} cannot be read: {str(error).splitlines()[0]}", hint=hint, code="R112") from error


def empty(name: str) -> pa.Table:
    """A table of no runs."""
    schema = {"rounds": ROUNDS, "clients": CLIENTS, "participation": PARTICIPATION}[name]
    return schema.insert(0, pa.field("run_id", pa.string())).empty_table()
