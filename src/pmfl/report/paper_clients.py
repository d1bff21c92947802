"""What clients do to each other, and what the model does to them: deviation of updates, accuracy client by client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pmfl.report import panels as draw
from pmfl.report.gather import Rows
from pmfl.report.paper_plates import in_rows, line_panels, plate
from pmfl.report.paper_rows import curve_rows, grouped, in_order, of_clients, placed
from pmfl.report.plates import Plate

if TYPE_CHECKING:
    from pmfl.report.plates import Panel
    from pmfl.study.answers import Answers


def deviations(answers: Answers) -> list[Plate]:
    """Dev^t of the updates: how far the clients of a round disagree, in sum as printed and per client."""
    found = placed(answers)
    plates = []
    for metric, what in (("deviation", "summed over clients, as printed"), ("deviation_mean", "per client")):
        rows = curve_rows(answers, found, metric, "local", points=60)
        if not rows:
            continue
        panels = line_panels(rows, found, "deviation", unit=draw.PLAIN)
        caption = "Sum of 1 − cosine to the mean update. Mean over seeds and over the rounds between evaluations. "
        name = "deviation" if metric == "deviation" else "deviation-mean"
        plates.append(plate(name, f"Deviation of updates, {what}", answers, caption, in_rows(panels, 3, 200)))
    return plates


def node_cdfs(answers: Answers) -> list[Plate]:
    """The final model on each client's own data: the share of clients below an accuracy, and below a loss."""
    found = placed(answers)
    labels = in_order(one.label for one in found)
    panels: list[tuple[str, Panel]] = []
    for metric, x_title, ends in (("accuracy", "accuracy on own data", [0.0, 1.0]), ("loss", "loss on own data", None)):
        rows: Rows = []
        for (panel, label), values in of_clients(answers, found, metric).items():
            shares = np.linspace(0, 1, 101)
            at = np.quantile(values, shares)
            rows += [
                {"panel": panel, "label": label, "x": round(float(v), 5), "mean": round(float(share), 4)}
                for v, share in zip(at, shares, strict=True)
            ]
        if ends is None and rows:
            ends = [0.0, float(np.quantile([row["x"] for row in rows], 0.95))]
        for panel, mine in grouped(rows).items():
            unit = draw.PERCENT if metric == "accuracy" else draw.PLAIN
            chart = draw.line_panel(
                mine, labels, x_title, "share of clients", [0.0, 1.0], x_domain=ends, x_unit=unit, bands=False
            )
            panels.append((panel, chart))
    if not panels:
        return []
    caption = (
        "Share of clients on whose own training data the final model has at most this accuracy, or this loss; clients "
        "of all seeds together. The 5 % largest losses are beyond the axis. "
    )
    return [plate("nodes-cdf", "The final model, client by client", answers, caption, in_rows(panels, 2, 220))]
