"""Runs against runs, whatever study they belong to: paired by seed, tested, corrected for their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmfl.errors import SpecError
from pmfl.report.records import flat_spec
from pmfl.report.tables import Column, Row, as_text, percent, points, to_rich
from pmfl.study.answers import StoreSource
from pmfl.study.expression import Measure
from pmfl.study.measures import Recorded
from pmfl.study.settings import plain
from pmfl.study.statistics import judge, paired
from pmfl.study.store import RunRow, Store

IGNORED = ("seed", "engine.")  # what runs of one setting may differ in
WORDS = {"holds": "first is ahead", "does not hold": "first is behind", "undecided": "undecided", "not run": "–"}
NOTE = (
    "Difference: the first setting minus this one, seed by seed, with its 95 % interval (BCa bootstrap). p: exact "
    "permutation test where seeds suffice for it, else Student's paired test, with Holm's correction."
)


def compare(store: Store, names: Sequence[str], measure: Measure) -> list[Row]:
    """One row per setting of the runs named, by id or by study: its mean, and the first setting's lead over it."""
    groups = _settings(chosen_runs(store, names))
    ids = [run.run_id for runs in groups.values() for run in runs]
    source = StoreSource(store)
    specs = {run.run_id: run.spec for runs in groups.values() for run in runs}
    known = Recorded(source.rounds(ids), source.clients(ids), specs)
    numbers = {
        label: {run.seed: value for run in runs if (value := known.measured(measure, run.run_id)) is not None}
        for label, runs in groups.items()
    }
    (first, ours), *others = numbers.items()
    shared = {label: sorted(set(ours) & set(theirs)) for label, theirs in others}
    pairs = {
        label: paired([ours[seed] for seed in seeds], [numbers[label][seed] for seed in seeds])
        for label, seeds in shared.items()
        if seeds
    }
    judged = dict(zip(pairs, judge(list(pairs.values())), strict=True))
    rows = [_row(first, ours, 0)]
    for label, theirs in others:
        row = _row(label, theirs, len(shared[label]))
        if label in pairs:
            gap, said = pairs[label], judged[label]
            row |= {"difference": gap.mean, "low": gap.low, "high": gap.high, "effect": gap.effect, "p": said.p}
            row |= {"test": said.test, "verdict": WORDS[said.verdict], "needed": said.needed}
        rows.append(row)
    return rows


def chosen_runs(store: Store, names: Sequence[str]) -> list[RunRow]:
    """The finished runs that ids, beginnings of ids, or names of studies stand for, each once."""
    rows = store.runs()
    found: dict[str, RunRow] = {}
    for name in names:
        mine = [row for row in rows if row.study == name] or [store.run(name)]
        found |= {row.run_id: row for row in mine if row.status == "done"}
    if not found:
        raise SpecError(f"{', '.join(names)}: none of these runs is finished", hint="`pmfl status` lists the runs")
    return list(found.values())


def comparison_text(rows: Sequence[Row], measure: Measure) -> str:
    """The rows as a table for a terminal."""
    in_percent = measure.of.endswith("accuracy") and measure.name != "correlation"
    shown, gap = (percent, points) if in_percent else (_digits, _digits)

    def interval(row: Row) -> str:
        if row["difference"] is None:
            return "–"
        low, high = row["low"], row["high"]
        return gap(row["difference"]) + (f" ({gap(low)} to {gap(high)})" if low == low else "")

    def verdict(row: Row) -> str:
        needed = f"; about {row['needed']} seeds would decide" if row["needed"] else ""
        return f"{row['verdict']}{needed}" if row["verdict"] else "the first setting"

    layout = [
        Column("setting", lambda row: row["setting"], is_number=False),
        Column("seeds", lambda row: str(row["seeds"])),
        Column(str(measure), lambda row: shown(row["mean"]) if row["mean"] is not None else "–"),
        Column("shared", lambda row: str(row["shared"]) if row["verdict"] else ""),
        Column("difference", interval),
        Column("d", lambda row: _digits(row["effect"])),
        Column("p", lambda row: _digits(row["p"])),
        Column("verdict", verdict, is_number=False),
    ]
    return as_text(to_rich(rows, layout=layout), NOTE)


def _settings(runs: Sequence[RunRow]) -> dict[str, list[RunRow]]:
    """Runs that differ in their seed alone, under what tells them from the others."""
    flat = {run.run_id: _plain(run.spec) for run in runs}
    groups: dict[tuple[tuple[str, str], ...], list[RunRow]] = {}
    for run in runs:
        groups.setdefault(tuple(sorted(flat[run.run_id].items())), []).append(run)
    keys = {key for settings in groups for key, _ in settings}
    varied = {key for key in keys if len({dict(settings).get(key) for settings in groups}) > 1}
    labels: dict[str, list[RunRow]] = {}
    for settings, mine in groups.items():
        known = dict(settings)
        # A method's own parameters say something beside others of the same method only.
        same = [dict(other) for other in groups if dict(other)["method"] == known["method"]]
        own = [key for key in sorted(varied) if key in known and len({other.get(key) for other in same}) > 1]
        words = [known["method"], *(f"{key.rpartition('.')[2]}={known[key]}" for key in own)]
        labels[" ".join(words)] = mine
    return labels


def _plain(spec: Mapping[str, Any]) -> dict[str, str]:
    return {key: plain(value) for key, value in flat_spec(spec).items() if not key.startswith(IGNORED)}


def _row(label: str, numbers: Mapping[int, float], shared: int) -> Row:
    mean = float(np.mean(list(numbers.values()))) if numbers else None
    none = dict.fromkeys(("difference", "low", "high", "effect", "p", "test", "verdict", "needed"))
    return {"setting": label, "seeds": len(numbers), "mean": mean, "shared": shared, **none}


def _digits(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.3g}"
