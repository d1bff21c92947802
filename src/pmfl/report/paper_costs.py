"""What accuracy costs: client computation, the bias that a cutoff leaves, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pmfl.report import panels as draw
from pmfl.report.gather import FloatArray, Rows
from pmfl.report.paper_accuracy import levels
from pmfl.report.paper_plates import in_rows, listed, plate
from pmfl.report.paper_rows import Placed, axes_of, axis_name, by_run, curve_rows, grouped, in_order, interval, placed
from pmfl.report.plates import Plate

if TYPE_CHECKING:
    from pmfl.study.answers import Answers

RARE = 0.02  # the rate of the rarest clients, for which a cutoff matters most


def computation(answers: Answers) -> list[Plate]:
    """Test accuracy against what clients have computed for it, and what one participation costs under each method."""
    from pmfl.study.cost import client_flops

    found = placed(answers)
    came = by_run(answers.rounds, "clients", "local")
    price: dict[str, int] = {}
    lines: Rows = []
    for one in found:
        mine = [run for run in one.done if run.run_id in came]
        if not mine:
            continue
        price[one.label] = client_flops(mine[0].spec)
        spent = price[one.label] * np.mean([_participations(came[run.run_id]) for run in mine], axis=0)
        at = came[mine[0].run_id]["t"].to_numpy() + 1
        for row in curve_rows(answers, [one], "accuracy", "test"):
            lines.append({**row, "x": round(float(np.interp(row["x"], at, spent)), 0)})
    if not lines:
        return []
    labels = in_order(one.label for one in found if one.label in price)
    least = min(price.values())
    bars = [
        {"label": label, "value": flops, "text": f"{_short(flops)} · {flops / least:.2f}×"}
        for label, flops in price.items()
    ]
    domain, ends = draw.shares(lines, ("mean",)), [0.0, max(row["x"] for row in lines)]
    over = [
        (
            name,
            draw.line_panel(
                mine, labels, "client FLOPs", "test accuracy", domain, x_domain=ends, x_unit="~s", bands=False
            ),
        )
        for name, mine in grouped(lines).items()
    ]
    under = [("", draw.bar_panel(bars, labels, "FLOPs of one participation", unit="~s"))]
    how = "Multiplications and additions of convolutions and matrix products, forwards and backwards, as counted"
    return [
        plate(
            "computation",
            "Test accuracy against client computation",
            answers,
            f"Mean over seeds, by the operations that all clients together have spent. {how}.",
            in_rows(over, 2, 220),
        ),
        plate(
            "participation-cost",
            "What one participation costs a client",
            answers,
            f"{how}, of one client with a full memory; behind it, the multiple of the cheapest.",
            lambda width: listed(under, labels, width),
        ),
    ]


def cutoff_bias(answers: Answers) -> list[Plate]:
    """Accuracy against the cutoff, and the share of their influence that clients lose by it."""
    axes, _ = axes_of(answers, 1)
    plates = levels(answers)
    found = placed(answers, x=axes[0]) if axes else []
    rows: Rows = []
    for one in found:
        rates = _rates(answers, one)
        if not len(rates):
            continue
        cutoff = int(one.x)
        for label, p in (("mean of all clients", rates), (f"a client of {100 * RARE:g} %", np.array([RARE]))):
            lost = float(((1 - p) ** cutoff).mean()) if cutoff else 0.0
            rows.append({"panel": one.panel, "label": label, "x": one.x, "mean": lost})
    if not rows:
        return plates
    xs, labels = in_order(row["x"] for row in rows), in_order(row["label"] for row in rows)
    title = axis_name(axes[0])
    panels = [
        (name, draw.level_panel(mine, labels, xs, [0.0, 1.0], title, "influence lost", draw.PERCENT))
        for name, mine in grouped(rows).items()
    ]
    caption = (
        "With a cutoff C, a client of rate p counts as p E[x] = 1 − (1 − p)^C of what it should; shown is what is "
        "missing, (1 − p)^C, with the rates at which clients took part. C = 0 is no cutoff."
    )
    return [
        *plates,
        plate("cutoff-bias", "Influence that clients lose by the cutoff", answers, caption, in_rows(panels, 2, 220)),
    ]


def clock(answers: Answers) -> list[Plate]:
    """Milliseconds by the clock: of a participation against local iterations, of an aggregation by method."""
    trained = [run for run in answers.done if len(answers.study.sweep.get("training.iterations", ())) > 1]
    return _training_time(answers) if trained else _aggregation_time(answers)


def _training_time(answers: Answers) -> list[Plate]:
    found = placed(answers, x="training.iterations")
    plates = []
    for metric, y_title, unit in (("train", "milliseconds", draw.PLAIN), ("flops", "operations", "~s")):
        tables = by_run(answers.rounds, metric, "clock")
        rows: Rows = []
        for one in found:
            numbers = [_late_median(tables[run.run_id]) for run in one.done if run.run_id in tables]
            rows.append({"panel": one.panel, "label": one.label, "x": one.x, **interval(numbers), "printed": None})
        labels, xs = in_order(row["label"] for row in rows), in_order(row["x"] for row in rows)
        panel = draw.level_panel(rows, labels, xs, [0.0, draw.span(rows)[1]], "local iterations E", y_title, unit)
        title = "Time of one participation, by the clock" if metric == "train" else "Operations of one participation"
        how = (
            "Medians over the later rounds, when memories are full; marks are means over repetitions, lines 95 % "
            "intervals. A clock shows something else on every machine: compare the two lines."
            if metric == "train"
            else "Multiplications and additions of convolutions and matrix products, counted, with a full memory."
        )
        name = "time-training" if metric == "train" else "operations"
        plates.append(plate(name, title, answers, how, in_rows([("", panel)], 1, 200)))
    return plates


def _aggregation_time(answers: Answers) -> list[Plate]:
    tables = by_run(answers.rounds, "aggregate", "clock")
    bars: Rows = []
    for one in placed(answers):
        numbers = [_late_median(tables[run.run_id]) for run in one.done if run.run_id in tables]
        if numbers:
            middle = float(np.median(numbers))
            bars.append({"label": one.label, "value": middle, "text": f"{middle:.3g} ms"})
    if not bars:
        return []
    labels = [bar["label"] for bar in bars]
    caption = (
        "One round on the server besides local training: choosing, weighing, summing, moving the model. Median over "
        "rounds and repetitions. A clock shows something else on every machine: compare the bars."
    )
    panel = draw.bar_panel(bars, labels, "milliseconds of one aggregation")
    title = "Time of one aggregation, by the clock"
    return [plate("time-aggregation", title, answers, caption, lambda width: listed([("", panel)], labels, width))]


def _late_median(table: pa.Table) -> float:
    values = table["value"].to_numpy()
    return float(np.median(values[len(values) // 2 :]))


def _short(flops: float) -> str:
    """With a prefix, as axes write it.

    >>> _short(4.908e9)
    '4.91G'
    """
    power = min(int(np.log10(max(flops, 1.0)) // 3), 5)
    return f"{flops / 1000.0**power:.3g}{' kMGTP'[power].strip()}"


def _participations(table: pa.Table) -> FloatArray:
    """How many participations there had been by each of the recorded rounds, from means since the one before."""
    t, mean = table["t"].to_numpy(), table["value"].to_numpy()
    rounds = np.diff(np.r_[-1, t])
    total: FloatArray = np.cumsum(rounds * mean)
    return total


def _rates(answers: Answers, one: Placed) -> FloatArray:
    """The share of rounds in which each client took part, all seeds of a setting together."""
    tables = by_run(answers.clients, "participations")
    mine = [tables[run.run_id] for run in one.done if run.run_id in tables]
    parts: Sequence[FloatArray] = [table["value"].to_numpy() / (table["t"].to_numpy() + 1) for table in mine]
    return np.concatenate(parts) if parts else np.empty(0)
