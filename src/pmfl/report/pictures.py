"""The drawn sections of a study's page, panel by panel, each picture with its caption and with words for the blind."""

from __future__ import annotations

from collections.abc import Sequence

from pmfl.report import gather
from pmfl.report.attendance import Attendance, attended
from pmfl.report.html import Drawer, Figure, Section, Sheet
from pmfl.report.series import Setting, panels
from pmfl.report.tables import Row, percent, points
from pmfl.study.store import RunRow, Store

SHOWN = 6  # panels whose clients are drawn; tables and curves hold every panel


def final_picture(
    draw: Drawer, found: Sequence[Setting], summary: Sequence[Row], measure: str, what: str
) -> list[Figure]:
    """The numbers of the results table as dots and intervals."""
    from pmfl.report.figures import final_accuracy

    key = f"test_accuracy_{measure}"
    rows = [
        {"panel": s.panel, "label": s.label, "mean": row[key], "low": row[f"{key}_low"], "high": row[f"{key}_high"]}
        for s, row in zip(found, summary, strict=True)
        if row[key] is not None
    ]
    seeds = [
        {"panel": setting.panel, "label": setting.label, "value": run.metrics["test/accuracy"][measure]}
        for setting in found
        for run in setting.done
        if run.metrics and "test/accuracy" in run.metrics
    ]
    if not rows:
        return []
    caption = f"Test accuracy {what}: mean and 95 % interval; a thin tick is one seed."
    chart = final_accuracy(rows, seeds, _labels(found))
    return [draw(chart, f"Dot plot. {caption} The table above holds the numbers.", caption)]


def curve_sections(draw: Drawer, store: Store, found: Sequence[Setting]) -> list[Section]:
    """Accuracy by round, of every panel."""
    from pmfl.report.figures import BANDS, accuracy_curves

    parts: dict[str, Section] = {}
    labels = _labels(found)
    for name, panel in panels(found).items():
        test, train = gather.curves(store, panel)
        if not test:
            continue
        several = len({row["round"] for row in train}) > 2
        said = "" if parts else "Mean over seeds." if any("low" in row for row in test) else "One seed."
        if said == "Mean over seeds." and len(labels) <= BANDS:
            said = "Mean over seeds, and the range from the lowest to the highest seed."
        unfinished = [setting.label for setting in panel if not setting.done and setting.shown]
        if unfinished:
            said += f" No run of {', '.join(unfinished)} is finished: drawn as far as all of its seeds have come."
        last = {row["label"]: row["mean"] for row in test}
        ends = ", ".join(f"{label} {percent(value)} %" for label, value in last.items())
        chart = accuracy_curves(test, train if several else None, labels)
        text = f"Line chart of accuracy by round. Test accuracy at the end: {ends}."
        parts[name] = Section(name, figures=[draw(chart, text, said.strip())])
    return _under("Accuracy by round", parts)


def client_sections(draw: Drawer, store: Store, found: Sequence[Setting]) -> list[Section]:
    """Who took part, what they weighed, and whom the model serves."""
    took: dict[str, Section] = {}
    weights: dict[str, Section] = {}
    fair: dict[str, Section] = {}
    by_panel, labels = panels(found), _labels(found)
    for name, panel in list(by_panel.items())[:SHOWN]:
        shown = [setting for setting in panel if setting.shown]
        if shown:
            run = shown[0].shown[0]
            participation = gather.took_part(store, run)
            took[name] = Section(name, figures=[_took_part(draw, attended(participation), run)])
            figures = _weights(draw, store, shown, participation, not weights)
            if figures:
                weights[name] = Section(name, figures=figures)
        clients = gather.fairness(store, panel)
        if clients:
            sheet, figures = _fair_sheet(clients, not fair), _fairness(draw, clients, labels, not fair)
            fair[name] = Section(name, sheets=[sheet], figures=figures)
    text = f"Clients are drawn for {SHOWN} of {len(by_panel)} conditions." if len(by_panel) > SHOWN else ""
    return [
        *_under("Who took part", took, text),
        *_under("Weights", weights, text),
        *_under("Who is left behind", fair, text),
    ]


def _attendance(seen: Attendance) -> str:
    empty, never = int((seen.by_round == 0).sum()), int((seen.times == 0).sum())
    return (
        ("A mark: the client took part in that round. " if seen.exact else "")
        + f"Below, how many took part in each round: {seen.by_round.mean():.1f} on average (dashed), from "
        + f"{seen.by_round.min():,} to {seen.by_round.max():,}"
        + (f", nobody in {empty:,} of {seen.rounds:,} rounds" if empty else "")
        + ". On the right, the share of rounds in which each client took part: "
        + f"{percent(float(seen.rates.min()))} to {percent(float(seen.rates.max()))} %"
        + (f"; {never:,} of {seen.clients:,} clients never did." if never else ".")
    )


def _took_part(draw: Drawer, seen: Attendance, run: RunRow) -> Figure:
    from pmfl.report.rasters import participation_picture

    caption = f"Run {run.method}, seed {run.seed}. {_attendance(seen)}"
    return draw(participation_picture(seen), f"Raster of clients by rounds. {caption}", caption)


def _weights(draw: Drawer, store: Store, shown: Sequence[Setting], took: gather.Took, is_first: bool) -> list[Figure]:
    from pmfl.report.figures import weights_picture

    rows: gather.Rows = []
    marks: gather.Rows = []
    for setting in shown:
        lines, references = gather.weights(store, setting.shown[0], setting.label, took)
        rows, marks = rows + lines, marks + references
    if not rows:
        return []
    ends = {(row["label"], row["who"]): row["weight"] for row in rows}
    text = "; ".join(f"{label}, {who}: {weight:.1f}" for (label, who), weight in ends.items())
    caption = (
        "How much a client counts when it takes part, under the methods that weigh clients; one seed, logarithmic "
        "scale. Dashed: one over the share of rounds in which the client took part; with that weight, all would count "
        "the same."
    )
    chart = weights_picture(rows, marks)
    return [draw(chart, f"Line chart of weights by round. At the end: {text}.", caption if is_first else "")]


def _fairness(draw: Drawer, fair: Sequence[gather.Fairness], labels: Sequence[str], is_first: bool) -> list[Figure]:
    from pmfl.report.figures import accuracy_by_rate, accuracy_cdf

    seeds = int(max(one.seed.max() for one in fair)) + 1
    pooled = f", clients of {seeds} seeds together" if seeds > 1 else ""
    cdf = (
        f"Share of clients on whose own training data the final model is at most so accurate{pooled}. Lower is better."
    )
    rate = (
        f"A dot is a client{pooled}; the line joins means of clients of similar rates. Where it rises, the model "
        "serves those who take part often."
    )
    return [
        draw(accuracy_cdf(fair, labels), f"Cumulative distribution. {cdf}", cdf if is_first else ""),
        draw(accuracy_by_rate(fair, labels), f"Scatter plots, accuracy by rate. {rate}", rate if is_first else ""),
    ]


def _fair_sheet(fair: Sequence[gather.Fairness], is_first: bool) -> Sheet:
    rows = gather.fairness_rows(fair)
    keys = ("mean", "median", "lowest_tenth", "rarest_quarter", "most_frequent_quarter")
    caption = (
        "Accuracy in % on each client’s own training data. Lowest tenth: one client in ten is below. Gap: the quarter "
        "of clients that took part most often minus the quarter that did least, in percentage points."
    )
    return Sheet(
        ["", "mean", "median", "lowest tenth", "rarest quarter", "most frequent quarter", "gap"],
        [False, *[True] * 6],
        [[row["label"], *(percent(row[key]) for key in keys), points(row["gap"])] for row in rows],
        caption if is_first else "",
    )


def _under(title: str, parts: dict[str, Section], text: str = "") -> list[Section]:
    """Panels under one heading; a study of a single panel has none of its own."""
    said = [text] if text else []
    if list(parts) == [""]:
        only = parts[""]
        return [Section(title, text=said, sheets=only.sheets, figures=only.figures)]
    below = [Section(name, sheets=part.sheets, figures=part.figures, level=3) for name, part in parts.items()]
    return [Section(title, text=said), *below] if below else []


def _labels(found: Sequence[Setting]) -> list[str]:
    return list(dict.fromkeys(setting.label for setting in found))
