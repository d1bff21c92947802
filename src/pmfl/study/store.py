"""Where answers are kept: SQLite while a run is being played, Parquet and safetensors once it is done.

OUT/store.sqlite             what is running, and its records so far (WAL: readers never block the writer)
OUT/running/RUN/             checkpoint of an unfinished run; gone when it is done
OUT/runs/RUN/                a finished run: rounds, clients and participation as Parquet, spec.toml,
                             final.safetensors, summary.json, and MANIFEST.json with the hash of each
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pmfl.errors import StoreError

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, question_id TEXT, study TEXT, method TEXT, seed INTEGER, spec TEXT, status TEXT,
    t INTEGER, total INTEGER, seconds REAL, resumed INTEGER, started REAL, updated REAL, note TEXT);
CREATE TABLE IF NOT EXISTS rounds (
    run_id TEXT, t INTEGER, metric TEXT, split TEXT, value REAL,
    PRIMARY KEY (run_id, t, metric, split)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clients (
    run_id TEXT, t INTEGER, metric TEXT, data BLOB, PRIMARY KEY (run_id, t, metric)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS participation (
    run_id TEXT, t INTEGER, data BLOB, PRIMARY KEY (run_id, t)) WITHOUT ROWID;
"""


class Record(NamedTuple):
    """What one round showed."""

    t: int
    values: Mapping[str, float]  # "split/metric"
    per_client: Mapping[str, npt.NDArray[np.float64]]  # metric -> [K], NaN where there is nothing to say
    took_part: npt.NDArray[np.int64]  # ids


class Sink(Protocol):
    """Anything that wants to see records: a store, a progress bar, a callback."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...


@dataclass(frozen=True)
class RunRow:
    """What is known of a run without opening its records."""

    run_id: str
    question_id: str
    study: str
    method: str
    seed: int
    spec: dict[str, Any]
    status: str  # waiting, running, interrupted, diverged, done
    t: int  # rounds played
    total: int
    seconds: float
    resumed: int
    started: float
    updated: float
    note: str = ""
    model_sha256: str = ""
    metrics: Mapping[str, Mapping[str, float]] | None = None


class Store:
    """Results in one folder, safe to read and to write from several processes at once."""

    def __init__(self, out: Path, *, create: bool = False) -> None:
        self.out, self.file = out, out / "store.sqlite"
        if create:
            with storing(out):
                (out / "runs").mkdir(parents=True, exist_ok=True)
        elif not self.file.is_file():
            raise StoreError(f"there are no results in {out}", hint="`pmfl run` makes some; --out names another folder")
        with storing(self.file):
            self._db = sqlite3.connect(self.file, timeout=30, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Let the file go."""
        self._db.close()

    # runs

    def add(self, row: RunRow) -> None:
        """Make a run known, unless it is."""
        known = asdict(row) | {"spec": json.dumps(row.spec)}
        names = [name for name in known if name not in ("model_sha256", "metrics")]
        marks = ", ".join(f":{name}" for name in names)
        with self._changing() as db:
            db.execute(f"INSERT OR IGNORE INTO runs ({', '.join(names)}) VALUES ({marks})", known)

    def mark(self, run_id: str, **values: Any) -> None:
        """Change what is known of a run."""
        changes = ", ".join(f"{name} = :{name}" for name in values)
        with self._changing() as db:
            db.execute(
                f"UPDATE runs SET {changes}, updated = :now WHERE run_id = :run_id",
                {**values, "now": time.time(), "run_id": run_id},
            )

    def runs(self) -> list[RunRow]:
        """All runs, in the order in which they were first asked for."""
        with storing(self.file):
            rows = [dict(row) for row in self._db.execute("SELECT * FROM runs ORDER BY rowid")]
        return [self._row(row) for row in rows]

    def run(self, run_id: str) -> RunRow:
        """One run, by its id or the beginning of it."""
        rows = [row for row in self.runs() if row.run_id.startswith(run_id)]
        if len(rows) != 1:
            what = "several runs start" if rows else "no run starts"
            raise StoreError(f"{what} with `{run_id}` in {self.out}", hint="`pmfl status` lists the runs")
        return rows[0]

    def _row(self, row: dict[str, Any]) -> RunRow:
        row["spec"] = json.loads(row["spec"])
        summary = self.sealed(row["run_id"]) / "summary.json"
        if summary.is_file():
            row |= {"status": "done"} | read_json(summary)
        try:
            return RunRow(**row)
        except TypeError as error:
            hint = f"delete {summary.parent}; the run is played again, to the same bits"
            raise StoreError(f"{summary} does not hold what it should: {error}", hint=hint, code="R114") from None

    # records

    def write(self, run_id: str, records: Sequence[Record], **values: Any) -> None:
        """Append records and change what is known of the run, all or nothing. Writing a round again replaces it."""
        now = time.time()
        changes = "".join(f"{name} = :{name}, " for name in values)
        with self._changing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?)",
                [
                    (run_id, record.t, metric, split, value)
                    for record in records
                    for (split, _, metric), value in ((name.partition("/"), v) for name, v in record.values.items())
                    if value == value  # NaN is not a row
                ],
            )
            db.executemany(
                "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?)",
                [
                    (run_id, record.t, metric, np.asarray(data, "<f8").tobytes())
                    for record in records
                    for metric, data in record.per_client.items()
                ],
            )
            db.executemany(
                "INSERT OR REPLACE INTO participation VALUES (?, ?, ?)",
                [(run_id, record.t, np.asarray(record.took_part, "<i4").tobytes()) for record in records],
            )
            db.execute(
                f"UPDATE runs SET {changes}updated = :now WHERE run_id = :run_id",
                {**values, "now": now, "run_id": run_id},
            )

    def forget(self, run_id: str, from_t: int = 0) -> None:
        """Drop records of rounds that are going to be played again."""
        with self._changing() as db:
            for table in ("rounds", "clients", "participation"):
                db.execute(f"DELETE FROM {table} WHERE run_id = ? AND t >= ?", (run_id, from_t))

    def rows(self, table: str, run_id: str) -> list[tuple[Any, ...]]:
        """Raw records of a run that is not sealed yet, by round."""
        columns = {"rounds": "t, metric, split, value", "clients": "t, metric, data", "participation": "t, data"}
        query = f"SELECT {columns[table]} FROM {table} WHERE run_id = ? ORDER BY t"
        with storing(self.file):
            return [tuple(row) for row in self._db.execute(query, (run_id,))]

    def latest(self, run_id: str, split: str, metric: str) -> float | None:
        """The newest value of a metric of a run that is being played."""
        query = "SELECT value FROM rounds WHERE run_id = ? AND split = ? AND metric = ? ORDER BY t DESC LIMIT 1"
        with storing(self.file):
            found = self._db.execute(query, (run_id, split, metric)).fetchone()
        return float(found[0]) if found else None

    # folders

    def running(self, run_id: str) -> Path:
        """Where an unfinished run keeps its checkpoint."""
        return self.out / "running" / run_id

    def sealed(self, run_id: str) -> Path:
        """Where a finished run lies."""
        return self.out / "runs" / run_id

    def is_done(self, run_id: str) -> bool:
        """Whether the run is finished and sealed."""
        return (self.sealed(run_id) / "MANIFEST.json").is_file()

    def tidy(self, run_id: str) -> None:
        """Remove what a finished run no longer needs."""
        self.forget(run_id)
        shutil.rmtree(self.running(run_id), ignore_errors=True)
        with contextlib.suppress(OSError):
            self.running(run_id).parent.rmdir()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with storing(self.file):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise


@contextlib.contextmanager
def storing(what: Path) -> Iterator[None]:
    """Say in our own words what went wrong with a file of results."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        hint = (
            "free some space and run the same command again: it goes on where it stopped"
            if "full" in str(error)
            else f"finished runs lie in {what.parent / 'runs'} and are safe; move {what.name} away and run again"
        )
        raise StoreError(f"{what}: {error}", hint=hint, code="R110") from error
    except OSError as error:
        raise StoreError(
            f"{error.filename or what} cannot be written: {error.strerror or error}",
            hint="check space and permissions, then run the same command again: it goes on where it stopped",
            code="R111",
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """A small JSON file of ours."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{file} cannot be read: {error}", hint=f"delete {file.parent}; the run is played again"
        ) from error
    if not isinstance(found, dict):
        raise StoreError(f"{file} does not hold what it should", hint=f"delete {file.parent}; the run is played again")
    return found


def sha256(file: Path) -> str:
    """The hash of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
