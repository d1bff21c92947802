"""Numbers of a study as plain rows, and the rows as text, Markdown, LaTeX and CSV.

A row is a dict of plain values, shares as they are (0.874, not 87.4 %) and None where there is nothing to say:
what `pmfl run --json` prints. Layout comes after: percent, one decimal, mean ± half the width of the 95 % interval.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from pmfl.report.series import Setting, panels, runs_of, settings, short_names
from pmfl.study.grid import Study
from pmfl.study.metrics import mean_interval
from pmfl.study.settings import plain
from pmfl.study.store import RunRow, Store

if TYPE_CHECKING:
    from rich.table import Table

Row: TypeAlias = dict[str, Any]

# The three ways in which a curve becomes a number, never one without the others.
MEASURES = {"final": "final", "last10_mean": "last 10", "top5_mean": "best 5"}
DEFAULT_MEASURE = "last10_mean"  # neither one evaluation's luck nor a choice made by looking at the test set
SPLITS = ("test", "train")
MINUS = "−"


@dataclass(frozen=True)
class Column:
    """A heading, and what a row shows under it."""

    heading: str
    cell: Callable[[Row], str]
    is_number: bool = True
    group: str = ""  # what it shares with its neighbours

    @property
    def title(self) -> str:
        """The heading in full."""
        return f"{self.group} {self.heading}".strip()


def summary_table(store: Store, study: Study, runs: Sequence[RunRow] | None = None) -> list[Row]:
    """One row per setting: accuracy as mean and 95 % interval over the seeds that are done.

    ``method`` and the other swept keys; ``seeds`` done of ``planned``; for each of test and train and each of final,
    last10_mean and top5_mean: ``test_accuracy_final``, ``…_low`` and ``…_high``; ``minutes`` a run took on average.
    """
    return summary_rows(settings(study, runs_of(store, study) if runs is None else runs))


def summary_rows(found: Sequence[Setting]) -> list[Row]:
    """One row per setting, from settings that are already laid out."""
    rows = []
    for setting in found:
        row: Row = {**setting.values, "seeds": len(setting.done), "planned": len(setting.runs)}
        for split in SPLITS:
            for measure in MEASURES:
                numbers = [n for n in (_measured(run, split, measure) for run in setting.done) if n is not None]
                row |= interval(f"{split}_accuracy_{measure}", numbers)
        minutes = [run.seconds / 60 for run in setting.done]
        rows.append({**row, "minutes": float(np.mean(minutes)) if minutes else None})
    return rows


def paired_differences(
    store: Store, study: Study, runs: Sequence[RunRow] | None = None, *, reference: str = ""
) -> list[Row]:
    """Test accuracy of the first method minus each other's, over the seeds both have finished.

    Under one seed all methods see the same partition, participation and mini-batches, so differences are taken per
    seed. ``reference`` names another method to compare with the rest.
    """
    return difference_rows(settings(study, runs_of(store, study) if runs is None else runs), reference)


def difference_rows(found: Sequence[Setting], reference: str = "") -> list[Row]:
    """One row per pair of settings in a panel: those that differ from the first, or from ``reference``."""
    rows = []
    for panel in panels(found).values():
        first = next((setting for setting in panel if setting.label == reference), panel[0])
        for other in panel:
            if other is first:
                continue
            pairs = pairs_of(first, other)
            row: Row = {**first.values, "against": other.label, "seeds": len(pairs)}
            for measure in MEASURES:
                gaps = [
                    a - b
                    for a, b in ((_measured(x, "test", measure), _measured(y, "test", measure)) for x, y in pairs)
                    if a is not None and b is not None
                ]
                row |= interval(f"test_accuracy_{measure}_difference", gaps)
            rows.append(row)
    return rows


def columns(rows: Sequence[Row], *, brief: bool = False) -> list[Column]:
    """The layout of summary or difference rows: every column that has something to say.

    ``brief`` leaves out how train accuracy got to where it is.
    """
    if not rows:
        return []
    swept = [key for key in rows[0] if key in ("method", "against") or "." in key]
    short = short_names(swept)
    found = [
        Column(short[key], _plain_cell(key), is_number=False)
        for key in swept
        if key in ("method", "against") or len({repr(row[key]) for row in rows}) > 1
    ]
    found.append(Column("seeds", _seeds))
    if "against" in rows[0]:
        return found + [
            Column(words, gap_cell(f"test_accuracy_{measure}_difference"), group="difference")
            for measure, words in MEASURES.items()
        ]
    for split in SPLITS:
        full = split == "test" or (not brief and _has_curve(rows, split))
        shown = MEASURES if full else {"final": "final"}
        found += [
            Column(words, accuracy_cell(f"{split}_accuracy_{measure}"), group=split) for measure, words in shown.items()
        ]
    return [*found, Column("minutes", lambda row: minutes(row["minutes"]))]


def to_rich(rows: Sequence[Row], *, brief: bool = False, layout: Sequence[Column] | None = None) -> Table:
    """The rows as a table for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    layout = columns(rows, brief=brief) if layout is None else layout
    grouped = any(column.group for column in layout)
    for column in layout:
        heading = f"{column.group}\n{column.heading}" if grouped else column.heading
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(heading, justify=justify, header_style="bold", no_wrap=True)
    for row in rows:
        table.add_row(*(column.cell(row) for column in layout))
    return table


def to_text(rows: Sequence[Row], width: int | None = None) -> str:
    """The rows as a table of plain text and a line that says how to read it; no wider than the terminal if possible."""
    from rich.console import Console

    console = Console(width=width)
    table = to_rich(rows)
    if console.measure(table, options=console.options.update(max_width=1000)).maximum > console.width:
        table = to_rich(rows, brief=True)
    return as_text(table, reading(rows), width)


def as_text(table: Table, note: str = "", width: int | None = None) -> str:
    """A table and a note below it as plain text."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, color_system=None, width=width, highlight=False, markup=False)
    room = console.width
    # Better beyond the edge than in pieces.
    console.width = max(room, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    console.print(table)
    console.width = room
    console.print(note)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()).strip("\n")


def to_markdown(rows: Sequence[Row], layout: Sequence[Column] | None = None) -> str:
    """The rows as a Markdown table."""
    layout = columns(rows) if layout is None else layout
    lines = [
        [column.title for column in layout],
        ["---:" if column.is_number else "---" for column in layout],
        *([column.cell(row).replace("|", "\\|") for column in layout] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def to_latex(rows: Sequence[Row], layout: Sequence[Column] | None = None) -> str:
    """The rows as a LaTeX tabular; needs the package booktabs."""
    layout = columns(rows) if layout is None else layout
    body = [[_latex(column.cell(row)) for column in layout] for row in rows]
    lines = [
        rf"\begin{{tabular}}{{@{{}}{''.join('r' if column.is_number else 'l' for column in layout)}@{{}}}}",
        r"\toprule",
        " & ".join(_latex(column.title) for column in layout) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with all digits, one column per key; what is not known is empty."""
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue()


def reading(rows: Sequence[Row]) -> str:
    """How to read the numbers of a table, in a sentence or two."""
    measures = "last 10 and best 5: mean of so many evaluations."
    if rows and "against" in rows[0]:
        how = "mean and 95 % interval over the seeds both have finished (Student’s t)"
        return f"Test accuracy of the method minus that of the other, in percentage points: {how}; {measures}"
    how = ", mean ± half the 95 % interval over seeds (Student’s t)" if any(row["seeds"] > 1 for row in rows) else ""
    return f"Accuracy in %{how}; {measures}"


def percent(share: float | None) -> str:
    """A share as per cent with one decimal, without the sign.

    >>> percent(0.8744)
    '87.4'
    """
    return "–" if share is None else f"{100 * share:.1f}"


def points(gap: float | None) -> str:
    """A difference of shares in percentage points, always with its sign.

    >>> points(-0.0312)
    '−3.1'
    """
    if gap is None:
        return "–"
    text = f"{100 * gap:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", MINUS)


def minutes(value: float | None) -> str:
    """A duration in minutes, as precise as is of use."""
    if value is None:
        return "–"
    return "< 0.1" if value < 0.1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _measured(run: RunRow, split: str, measure: str) -> float | None:
    found = (run.metrics or {}).get(f"{split}/accuracy", {}).get(measure)
    return None if found is None or found != found else float(found)


def interval(key: str, numbers: Sequence[float]) -> Row:
    """A mean over seeds with its 95 % interval, as three entries of a row; None where there is nothing to say."""
    if not numbers:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    found = mean_interval(numbers)
    return {key: found["mean"]} | {
        f"{key}_{end}": None if found[end] != found[end] else found[end] for end in ("low", "high")
    }


def pairs_of(first: Setting, other: Setting) -> list[tuple[RunRow, RunRow]]:
    """The finished runs of two settings that share a seed."""
    by_seed = {run.seed: run for run in other.done}
    return [(run, by_seed[run.seed]) for run in first.done if run.seed in by_seed]


def _has_curve(rows: Sequence[Row], split: str) -> bool:
    """Whether a split was evaluated more than once: with one evaluation its three numbers are the same."""
    return any(row[f"{split}_accuracy_final"] != row[f"{split}_accuracy_last10_mean"] for row in rows)


def _plain_cell(key: str) -> Callable[[Row], str]:
    return lambda row: plain(row[key])


def _seeds(row: Row) -> str:
    planned = row.get("planned", row["seeds"])
    return str(planned) if planned == row["seeds"] else f"{row['seeds']} of {planned}"


def accuracy_cell(key: str) -> Callable[[Row], str]:
    """What is shown of a share: percent ± half the interval."""

    def cell(row: Mapping[str, Any]) -> str:
        value, high = row[key], row[f"{key}_high"]
        return percent(value) if high is None else f"{percent(value)} ± {percent(high - value)}"

    return cell


def gap_cell(key: str) -> Callable[[Row], str]:
    """What is shown of a difference: points, and the interval."""

    def cell(row: Mapping[str, Any]) -> str:
        value, low, high = row[key], row[f"{key}_low"], row[f"{key}_high"]
        return points(value) if low is None else f"{points(value)} ({points(low)} to {points(high)})"

    return cell


_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "<": "$<$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
