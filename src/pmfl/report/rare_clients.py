"""Participation bias in numbers: how much better a model serves clients that often take part than those that rarely do.

Measured on each client's own training data, for the quarter of clients that took part least and the quarter that did
most, as mean of the last 10 measurements. Under one seed all methods see the same clients and the same participation,
so what a method changes is told seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pmfl.errors import SpecError, did_you_mean
from pmfl.report import gather
from pmfl.report.series import Setting, panels
from pmfl.report.tables import Column, Row, accuracy_cell, as_text, gap_cell, interval, points, to_rich
from pmfl.study.grid import Study
from pmfl.study.store import Store

MEASUREMENTS = 10
READING = (
    "Accuracy in % on clients’ own training data, mean of the last 10 measurements; gap: the quarter of clients that "
    "took part most minus the quarter that did least, in points; intervals: 95 % over seeds (Student’s t), differences "
    "of the gap seed by seed."
)


class Served(NamedTuple):
    """What a run's model makes of the clients at both ends."""

    rarest: float
    most_frequent: float

    @property
    def gap(self) -> float:
        """The participation bias."""
        return self.most_frequent - self.rarest


def rare_client_rows(store: Store, study: Study, found: Sequence[Setting]) -> list[Row]:
    """One row per setting: both quarters, the gap between them, and by how much it differs from the reference's gap.

    Empty unless the study asks for it by ``[report] rare_clients``, which names the reference.
    """
    reference = str(study.report.get("rare_clients", ""))
    rows = []
    for panel in panels(found).values() if reference else ():
        labels = [setting.label for setting in panel]
        if reference not in labels:
            raise SpecError(
                f"study {study.id}: report.rare_clients = {reference!r} is not one of its methods",
                hint=did_you_mean(reference, labels),
                code="S119",
            )
        served = {setting.label: _by_seed(store, setting) for setting in panel}
        rows += [_row(setting, served[setting.label], served[reference], reference) for setting in panel]
    return rows


def rare_client_columns(rows: Sequence[Row]) -> list[Column]:
    """How the rows are laid out."""
    group = "a quarter of clients"
    against = rows[0]["against"] if rows else ""
    return [
        Column("method", lambda row: str(row["who"]), is_number=False),
        Column("that came least", accuracy_cell("rarest_quarter"), group=group),
        Column("that came most", accuracy_cell("most_frequent_quarter"), group=group),
        Column("in points", gap_cell("gap"), group="gap"),
        Column(f"against {against}", gap_cell("gap_difference"), group="gap"),
    ]


def rare_client_text(rows: Sequence[Row]) -> str:
    """The rows for a terminal, and what they say."""
    table = as_text(to_rich(rows, layout=rare_client_columns(rows)), READING)
    return "\n".join([table, "", *rare_client_findings(rows)])


def rare_client_findings(rows: Sequence[Row]) -> list[str]:
    """Sentences that claim no more than the intervals allow."""
    measured = [row for row in rows if row["seeds"]]
    return [
        _reference_says(row) if row["who"] == row["against"] else _other_says(row)
        for row in sorted(measured, key=lambda row: row["who"] != row["against"])
    ]


def _reference_says(row: Row) -> str:
    who, low = row["against"], row["gap_low"]
    gap = f"the gap is {points(row['gap'])} points{_interval(row, 'gap')}"
    if low is None:
        return f"{who}: {gap}; one seed supports no claim."
    if low > 0:
        return f"{who} is biased by participation: it serves the clients that come often better; {gap}."
    return f"{who} shows no bias by participation that its seeds could tell from chance: {gap}."


def _other_says(row: Row) -> str:
    who, against = row["who"], row["against"]
    change, low, high = row["gap_difference"], row["gap_difference_low"], row["gap_difference_high"]
    said = f"the gap is {points(change)} points against that of {against}{_interval(row, 'gap_difference')}"
    if change is None or low is None:
        return f"{who} and {against} share too few finished seeds to compare their bias."
    if low <= 0 <= high:
        return f"{who} is not shown to correct it: {said}."
    if low > 0:
        return f"{who} makes it larger: {said}."
    left = row["gap_low"] > 0
    rest = f" What is left, {points(row['gap'])} points, is still beyond chance." if left else ""
    over = f" It now serves the rare ones better, by {points(-row['gap'])} points." if row["gap_high"] < 0 else ""
    return f"{who} {'lessens' if left else 'corrects'} it: {said}.{rest}{over}"


def _interval(row: Row, key: str) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return "" if low is None else f" (95 % interval {points(low)} to {points(high)}, {row['seeds']} seeds)"


def _by_seed(store: Store, setting: Setting) -> dict[int, Served]:
    """Every finished run's two ends, where they were measured."""
    found = {}
    for run in setting.done:
        took = gather.took_part(store, run)
        accuracy = gather.last_accuracies(store, run, took.clients, MEASUREMENTS)
        if accuracy is not None:
            known = accuracy == accuracy  # a client without data has none
            found[run.seed] = Served(*gather.quarters(took.rates[known], accuracy[known]))
    return found


def _row(setting: Setting, mine: Mapping[int, Served], theirs: Mapping[int, Served], reference: str) -> Row:
    shared = [seed for seed in mine if seed in theirs]
    return {
        **setting.values,
        "who": setting.label,
        "against": reference,
        "seeds": len(mine),
        **interval("rarest_quarter", [one.rarest for one in mine.values()]),
        **interval("most_frequent_quarter", [one.most_frequent for one in mine.values()]),
        **interval("gap", [one.gap for one in mine.values()]),
        **interval("gap_difference", [] if mine is theirs else [mine[s].gap - theirs[s].gap for s in shared]),
    }
