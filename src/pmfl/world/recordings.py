"""Recordings of availability: files that say when real devices could have trained, read and checked.

A recording is a set of devices, each with the intervals in which it was available. It may be
  *.parquet, *.csv   a matrix of 0 and 1, one row per round and one column per device; or a pair of tables,
                     NAME_intervals (client_id, start_s, end_s; they count from the client's own trace_start_s)
                     and NAME_clients (client_id, trace_start_s, trace_end_s)
  *.npy              such a matrix
  *.json             {device: {"isSuccess", "trace_start", "trace_end", "ready_time": [[start, end], …]}}, as FLASH and
                     FLHetBench cache their traces; or {device: {"active": […], "inactive": […], "finish_time"}},
                     the layout of FedScale's client_behave_trace
Pickles are refused: reading one runs whatever code it carries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError  # what numpy lets through of a damaged header
from typing import Any, NamedTuple

import numpy as np

from pmfl.errors import DataMissing, PmflError, SpecError
from pmfl.world.datasets import Array, IntArray
from pmfl.world.partition import FloatArray

INTERVALS, CLIENTS = ("client_id", "start_s", "end_s"), ("client_id", "trace_start_s", "trace_end_s")


class Intervals(NamedTuple):
    """A recording as it was read: n intervals of D devices, all times on the recording's common clock."""

    device: IntArray  # [n], 0 … D - 1
    start: FloatArray  # [n]
    end: FloatArray  # [n]; the device is still available at this instant
    begin: FloatArray  # [D] when each device's recording begins …
    finish: FloatArray  # [D] … and ends
    names: tuple[str, ...]  # [D]


@dataclass(frozen=True)
class Recording:
    """When devices were available. They lie one after the other on one axis, on which a single search finds all."""

    edges: FloatArray  # [2n] ascending; from an even one to the next, a device is available
    base: FloatArray  # [D] where each device begins on that axis
    span: FloatArray  # [D] how long it was recorded
    begin: FloatArray  # [D] when its recording begins on the common clock
    share: FloatArray  # [D] the share of its recording in which it was available
    in_seconds: bool  # whether time is in seconds; otherwise a unit of time is a round
    notes: tuple[str, ...]


def read(path: str | Path) -> Recording:
    """A recording from a file, checked."""
    file = Path(path)
    if not file.is_file():
        raise DataMissing(f"{file}: there is no such file", hint="relative paths count from the current folder")
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise _refused(file)
    try:
        return reader(file)
    except PmflError:
        raise
    except (OSError, ValueError, EOFError, NotImplementedError, RecursionError, SyntaxError, TokenError) as error:
        raise DataMissing(
            f"{file} cannot be read: {error}", hint="is the file complete, and what its name says?"
        ) from error


def _refused(file: Path) -> SpecError:
    with file.open("rb") as content:
        is_pickle = content.read(1) == b"\x80"
    if is_pickle or file.suffix.lower() in (".pkl", ".pickle"):
        convert = "import json, pickle; json.dump(pickle.load(open({0!r}, 'rb')), open({1!r}, 'w'), default=float)"
        return SpecError(
            f"{file}: pickles are not read, since reading one runs whatever code it carries",
            hint="convert it once, where you trust it: "
            f'python -c "{convert.format(file.name, file.with_suffix(".json").name)}"',
        )
    return SpecError(
        f"{file}: no recording is read from `{file.suffix or 'a file without extension'}`",
        hint="known: " + ", ".join(READERS),
    )


def _from_npy(file: Path) -> Recording:
    return _from_matrix(file, np.load(file, allow_pickle=False))


def _from_table(file: Path) -> Recording:
    import pyarrow as pa

    table = _table(file)
    if set(INTERVALS) & set(table.column_names):
        return _from_pair(file, table)
    columns = [table.column(i).cast(pa.float64()).to_numpy() for i in range(table.num_columns)]
    return _from_matrix(file, np.stack(columns, axis=1) if columns else np.empty((0, 0)))


def _table(file: Path) -> Any:
    if file.suffix.lower() == ".parquet":
        from pyarrow import parquet

        return parquet.read_table(file)
    from pyarrow import csv

    with file.open(encoding="utf-8") as text:
        cells = [cell.strip() for cell in text.readline().split(",")]
    # A matrix may come without a header; a first line of 0 and 1 is a round, not a line of names.
    headless = csv.ReadOptions(autogenerate_column_names=set(cells) <= {"0", "1"})
    return csv.read_csv(file, read_options=headless)


def _from_matrix(file: Path, cells: Array) -> Recording:
    if cells.ndim != 2 or 0 in cells.shape or cells.dtype.kind not in "biuf":
        raise DataMissing(
            f"{file}: an array of {cells.dtype} {cells.shape}, and not a matrix of 0 and 1",
            hint="give one row per round and one column per device",
        )
    wrong = ~((cells == 0) | (cells == 1))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise DataMissing(
            f"{file}: row {row}, column {column} is {cells[row, column]}, and should be 0 or 1",
            hint="rows and columns count from 0; give 1 where a device was available, without an index column",
        )
    rounds, devices = cells.shape
    change = np.diff(np.pad(cells.T.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    device, start = np.nonzero(change == 1)
    end = np.nonzero(change == -1)[1] - 1  # the last row of ones
    names = tuple(map(str, range(devices)))
    begin, finish = np.zeros(devices), np.full(devices, float(rounds))
    found = Intervals(device, start.astype(np.float64), end.astype(np.float64), begin, finish, names)
    notes = (f"{file.name}: {devices:,} devices, {rounds:,} rounds; a row is a round, whatever round_seconds says",)
    return _recording(file, found, notes, share=cells.mean(0, dtype=np.float64), in_seconds=False)


def _from_pair(file: Path, table: Any) -> Recording:
    other = file.with_name(file.name.replace("intervals", "clients"))
    if other == file or not other.is_file():
        raise DataMissing(
            f"{file}: there is no table of clients beside it",
            hint="name the pair NAME_intervals and NAME_clients, in one folder and one format",
        )
    ids, start, end = _columns(file, table, INTERVALS)
    names, begin, finish = _columns(other, _table(other), CLIENTS)
    order = np.argsort(names)
    known = names[order]
    twice = known[1:][known[1:] == known[:-1]]
    if len(twice):
        raise DataMissing(f"{other}: client_id {twice[0]} occurs twice", hint="give one row per client")
    row = np.searchsorted(known, ids).clip(max=max(len(known) - 1, 0))
    strange = ids[known[row] != ids] if len(known) else ids
    if len(strange):
        raise DataMissing(f"{file}: client_id {strange[0]} is not in {other.name}", hint="the two files do not fit")
    device = order[row]
    found = Intervals(device, start + begin[device], end + begin[device], begin, finish, tuple(names.tolist()))
    return _recording(file, found, ())


def _columns(file: Path, table: Any, names: tuple[str, ...]) -> list[Array]:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise DataMissing(
            f"{file}: column `{missing[0]}` is missing; there are {', '.join(table.column_names)}",
            hint=f"NAME_intervals has {', '.join(INTERVALS)}; NAME_clients has {', '.join(CLIENTS)}",
        )
    for name in names:
        if table.column(name).null_count:
            raise DataMissing(f"{file}: column `{name}` has empty cells", hint="fill or drop those rows")
    ids, *times = (table.column(name).to_numpy() for name in names)
    return [ids.astype(str), *(np.asarray(column, np.float64) for column in times)]


def _from_json(file: Path) -> Recording:
    content = json.loads(file.read_bytes())
    if not isinstance(content, dict):
        raise DataMissing(f"{file}: a {type(content).__name__}, and not {{device: …}}", hint=_LAYOUTS)
    names, windows, spells, left_out = [], [], [], 0
    for name, entry in content.items():
        window, pairs = _entry(file, name, entry)
        if window is None:
            left_out += 1
            continue
        names.append(name)
        windows.append(window)
        spells.append(pairs)
    if not names:
        raise DataMissing(f"{file}: none of its {left_out:,} devices has a recording", hint=_LAYOUTS)
    device = np.repeat(np.arange(len(names)), [len(pairs) for pairs in spells])
    start, end = np.concatenate(spells).T
    begin, finish = np.array(windows, np.float64).T
    notes = (f"{left_out:,} of {len(content):,} devices have no recording and are left out",) if left_out else ()
    return _recording(file, Intervals(device, start, end, begin, finish, tuple(names)), notes)


_LAYOUTS = (
    'per device {"isSuccess", "trace_start", "trace_end", "ready_time"} (FLASH, FLHetBench) '
    'or {"active", "inactive", "finish_time"} (FedScale)'
)


def _entry(file: Path, name: str, entry: Any) -> tuple[tuple[float, float] | None, FloatArray]:
    """One device: its window (None where recording failed) and its intervals [n, 2]."""
    if isinstance(entry, dict) and not entry.get("isSuccess", True):
        return None, np.empty((0, 2))
    try:
        if "ready_time" in entry:
            window, pairs = (entry["trace_start"], entry["trace_end"]), entry["ready_time"]
        else:
            window = (0.0, entry["finish_time"])
            pairs = list(zip(entry["active"], entry["inactive"], strict=True))
        return (float(window[0]), float(window[1])), np.array(pairs, np.float64).reshape(len(pairs), 2)
    except (KeyError, TypeError, ValueError) as error:
        raise DataMissing(f'{file}: device "{name}" is not laid out as expected: {error!r}', hint=_LAYOUTS) from None


def _recording(
    file: Path, found: Intervals, notes: tuple[str, ...], *, share: FloatArray | None = None, in_seconds: bool = True
) -> Recording:
    """Check intervals, put them in order, join those that overlap, and lay devices out on one axis."""
    _check(file, found)
    begin, finish = found.begin, found.finish
    beyond = found.end > finish[found.device]
    if beyond.any():
        notes = (*notes, f"{int(beyond.sum()):,} intervals reach beyond their device's recording and are cut there")
    within = found.start <= finish[found.device]
    device, start, end = found.device[within], found.start[within], np.minimum(found.end, finish[found.device])[within]
    order = np.lexsort((start, device))
    device = device[order]
    span = finish - begin
    base = np.cumsum(span + 1) - (span + 1)  # a gap of 1, so that an end is never the next device's begin
    shift = base[device] - begin[device]
    first, last = start[order] + shift, np.maximum.accumulate(end[order] + shift)
    fresh = np.append(True, first[1:] > last[:-1])
    first, last = first[fresh], last[np.append(fresh[1:], True)]
    if not fresh.all():
        notes = (*notes, f"{int((~fresh).sum()):,} intervals overlap or touch the one before and are joined to it")
    if share is None:
        share = np.bincount(device[fresh], last - first, minlength=len(span)) / span
    edges = np.stack([first, np.nextafter(last, np.inf)], axis=1).ravel()
    if in_seconds:
        notes = (f"{file.name}: {len(span):,} devices, {len(first):,} intervals", *notes)
    return Recording(edges, base, span, begin, share, in_seconds, notes)


def _check(file: Path, found: Intervals) -> None:
    def refuse(what: str, where: IntArray, device: IntArray, *values: FloatArray) -> None:
        if len(where):
            i = int(where[0])
            said = " to ".join(f"{value[i]:g}" for value in values)
            raise DataMissing(
                f'{file}: device "{found.names[device[i]]}": {what} ({said})',
                hint=f"{len(where):,} like it; times are seconds, an interval lies in its device's recording",
            )

    begin, finish, everyone = found.begin, found.finish, np.arange(len(found.begin))
    refuse("its recording has no length", np.flatnonzero(~(finish - begin > 0)), everyone, begin, finish)
    refuse("its recording has no end", np.flatnonzero(~np.isfinite(finish - begin)), everyone, begin, finish)
    start, end, device = found.start, found.end, found.device
    refuse("an interval is not a number", np.flatnonzero(~np.isfinite(start + end)), device, start, end)
    refuse("an interval ends before it starts", np.flatnonzero(end < start), device, start, end)
    early = np.flatnonzero(start < begin[device])
    refuse("an interval starts before the recording does", early, device, start, end)
    if len(start) == 0 or not (start <= finish[device]).any():
        raise DataMissing(f"{file}: no device is ever available", hint="is it the right file?")


READERS: dict[str, Callable[[Path], Recording]] = {
    ".parquet": _from_table,
    ".csv": _from_table,
    ".npy": _from_npy,
    ".json": _from_json,
}
