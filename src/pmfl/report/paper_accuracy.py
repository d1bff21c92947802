"""Accuracy: setting by setting, against one setting or two, by round, from one evaluation to the next, repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pmfl.report import panels as draw
from pmfl.report.figures import BANDS
from pmfl.report.findings import WHAT, measure_of
from pmfl.report.gather import Rows
from pmfl.report.paper_plates import INTERVAL, hollow, in_rows, line_panels, listed, plate, printed_of
from pmfl.report.paper_rows import (
    Placed,
    axes_of,
    axis_name,
    by_run,
    curve_rows,
    grouped,
    in_order,
    interval,
    level_rows,
    number,
    placed,
    unsteadiness,
)
from pmfl.report.plates import Plate
from pmfl.study.settings import plain

if TYPE_CHECKING:
    from pmfl.study.answers import Answers

TEST = "test/accuracy"


def finals(answers: Answers) -> list[Plate]:
    """The number a study is judged by, setting by setting."""
    measure, found = measure_of(answers.study), placed(answers)
    rows = level_rows(found, TEST, measure, printed_of(answers))
    seeds = _each_seed(found, TEST, measure)
    if not any(row["mean"] is not None for row in rows):
        return []
    labels = in_order(row["label"] for row in rows)
    domain = draw.shares(rows + [{"mean": seed["value"]} for seed in seeds])
    title = f"Test accuracy {WHAT[measure]}"
    each = grouped(seeds)
    panels = [
        (name, draw.dot_panel(mine, each.get(name, []), labels, domain, "test accuracy"))
        for name, mine in grouped(rows).items()
    ]
    caption = f"{INTERVAL}A thin tick is one seed. {hollow(rows)}"
    return [plate("finals", title, answers, caption, lambda width: listed(panels, labels, width))]


def levels(answers: Answers) -> list[Plate]:
    """Accuracy against a setting, on the test set and where there are numbers of it on the train set."""
    measure, (axes, series) = measure_of(answers.study), axes_of(answers, 1)
    if not axes:
        return finals(answers)
    found, title = placed(answers, x=axes[0], series=series), axis_name(axes[0])
    plates = []
    for curve_name in (TEST, "train/accuracy"):
        rows = level_rows(found, curve_name, measure, printed_of(answers))
        if not any(row["mean"] is not None for row in rows):
            continue
        labels, xs = in_order(row["label"] for row in rows), in_order(row["x"] for row in rows)
        domain, split = draw.shares(rows), curve_name.partition("/")[0]
        panels = [
            (panel, draw.level_panel(mine, labels, xs, domain, title, f"{split} accuracy", draw.PERCENT))
            for panel, mine in grouped(rows).items()
        ]
        said = f"{split.capitalize()} accuracy against {title}, {WHAT[measure]}"
        caption = INTERVAL + hollow(rows)
        plates.append(plate(f"levels-{split}", said, answers, caption, in_rows(panels, 3, 190)))
    return plates


def cells(answers: Answers) -> list[Plate]:
    """Accuracy for each pair of two settings."""
    measure, (axes, _) = measure_of(answers.study), axes_of(answers, 2)
    if len(axes) < 2:
        return levels(answers)
    found = placed(answers, x=axes[0], series=(axes[1],))
    rows = [
        {**row, "y": plain(one.setting.values[axes[1]])}
        for one, row in zip(found, level_rows(found, TEST, measure, printed_of(answers)), strict=True)
    ]
    known = [row["mean"] for row in rows if row["mean"] is not None]
    if not known:
        return []
    xs, ys = in_order(row["x"] for row in rows), in_order(row["y"] for row in rows)[::-1]
    titles = [axis_name(key) for key in axes]
    panels = [
        (panel, draw.cell_panel(mine, xs, ys, [min(known), max(known)], *titles))
        for panel, mine in grouped(rows).items()
    ]
    caption = (
        "Test accuracy in %, mean over seeds; the darker, the higher, on one scale for all panels. A dash: no run is "
        "finished. "
    )
    if any(row["printed"] is not None for row in rows):
        caption += "Framed, in italics below ours: what the paper printed. "
    said = f"Test accuracy by {titles[0]} and {titles[1]}, {WHAT[measure]}"
    return [plate("cells", said, answers, caption, in_rows(panels, 3, len(xs) * 28))]


def convergence(answers: Answers) -> list[Plate]:
    """Accuracy by round."""
    found = placed(answers)
    plates = []
    for split in ("train", "test"):
        rows = curve_rows(answers, found, "accuracy", split)
        if len({row["x"] for row in rows}) < 3:
            continue
        panels = line_panels(rows, found, f"{split} accuracy")
        caption = "Mean over seeds. "
        if len({one.label for one in found}) <= BANDS and any("low" in row for row in rows):
            caption = "Mean over seeds, and the range from the lowest to the highest seed. "
        each = max(row["each"] for row in rows)
        if each > 1:
            caption += f"A point is the mean of {each} evaluations. "
        title = f"{split.capitalize()} accuracy by round"
        plates.append(plate(f"convergence-{split}", title, answers, caption, in_rows(panels, 3, 200)))
    return plates


def steadiness(answers: Answers) -> list[Plate]:
    """How far the global model's accuracy jumps from one evaluation to the next: the curves of a seed, and numbers."""
    found = placed(answers, series=("training.model", "method"))
    tables = by_run(answers.rounds, "accuracy", "test")
    first = [run for run in answers.done if run.seed == answers.done[0].seed]
    lines, dots, seeds = _late_curves(found, tables, first[0].seed) if first else [], [], []
    for one in found:
        steps = [unsteadiness(tables[run.run_id]["value"].to_numpy()) for run in one.done if run.run_id in tables]
        known = [step for step in steps if step is not None]
        dots.append({"panel": one.panel, "label": one.label, **interval(known), "seeds": len(known)})
        seeds += [{"panel": one.panel, "label": one.label, "value": step} for step in known]
    if not lines:
        return []
    labels = in_order(one.label for one in found)
    shown, domain = grouped(lines), draw.shares(lines)
    over = [
        (name, draw.line_panel(mine, labels, "round", "test accuracy", domain, stroke=1.0, bands=False))
        for name, mine in shown.items()
    ]
    domain = draw.shares(dots + [{"mean": seed["value"]} for seed in seeds])
    under = [
        (name, draw.dot_panel(mine, grouped(seeds).get(name, []), labels, [0.0, domain[1]], "accuracy, mean step"))
        for name, mine in grouped(dots).items()
    ]
    one_seed = "One seed, the last evaluations, none averaged away. "
    mean = f"Mean distance of one evaluation from the next over the second half of a run. {INTERVAL}"
    title, lists = "Test accuracy, evaluation by evaluation", lambda width: listed(under, labels, width)
    return [
        plate("fluctuation-curves", title, answers, one_seed, in_rows(over, 3, 180), first),
        plate("fluctuation", "Fluctuation of test accuracy", answers, mean, lists),
    ]


def stability(answers: Answers) -> list[Plate]:
    """Final test accuracy of repeated runs that differ in their seed alone."""
    found = placed(answers, x="participation.pattern", series=())
    rows: Rows = []
    for one in found:
        numbers = [value for value in (number(run, TEST, "final") for run in one.done) if value is not None]
        printed = printed_of(answers)(one.setting, TEST)
        rows += [{"panel": one.panel, "x": one.x, "value": value, "printed": printed} for value in numbers]
    if not rows:
        return []
    xs, domain = in_order(row["x"] for row in rows), draw.shares(rows, ("value", "printed"))
    panels = [(name, draw.repeat_panel(mine, xs, domain, "", "test accuracy")) for name, mine in grouped(rows).items()]
    ranges = []
    for name, mine in grouped(rows).items():
        for x, own in grouped(mine, "x").items():
            values = [row["value"] for row in own]
            width = f"{100 * (max(values) - min(values)):.1f} points over {len(values)}"
            ranges.append(" ".join(word for word in (name, x, width) if word))
    caption = f"A dot is a run; the box spans the middle half. From lowest to highest: {'; '.join(ranges)}. "
    caption += "Hollow diamond: accuracy printed in Table I." if any(row["printed"] for row in rows) else ""
    title = "Test accuracy of the final model over repetitions"
    return [plate("stability", title, answers, caption, in_rows(panels, 2, 200))]


def _late_curves(found: Sequence[Placed], tables: Mapping[str, Any], seed: int, last: int = 100) -> Rows:
    rows: Rows = []
    for one in found:
        for run in one.done:
            if run.seed != seed or run.run_id not in tables:
                continue
            table = tables[run.run_id]
            t, value = table["t"].to_numpy()[-last:], table["value"].to_numpy()[-last:]
            rows += [
                {"panel": one.panel, "label": one.label, "x": int(a) + 1, "mean": round(float(b), 5)}
                for a, b in zip(t, value, strict=True)
            ]
    return rows


def _each_seed(found: Sequence[Placed], curve_name: str, measure: str) -> Rows:
    return [
        {"panel": one.panel, "label": one.label, "value": value}
        for one in found
        for value in (number(run, curve_name, measure) for run in one.done)
        if value is not None
    ]
