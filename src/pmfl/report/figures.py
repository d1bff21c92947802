"""Charts of results: each a function from rows to a chart, the same for a page, a paper and a notebook.

Series are told apart by colour and by shape; test is solid and train dashed; shares are drawn in per cent. ``labels``
gives all series their order and so their look, whether or not a chart has something to show of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pmfl.report.gather import Fairness, Rows
from pmfl.report.style import COLOURS, INK, SHAPES, by_label, dressed, percent_axis, save, stack, titled, values
from pmfl.report.tables import percent

if TYPE_CHECKING:
    import altair as alt

    from pmfl.report.style import Chart

__all__ = ["accuracy_by_rate", "accuracy_cdf", "accuracy_curves", "final_accuracy", "save", "weights_picture"]

WIDTH = 790  # of what is drawn in a row, without the axis of the first
DOTS = 240  # clients drawn per panel of a scatter
BANDS = 5  # series whose bands can still be told apart
MARKS = 6  # shapes along a line
GROUPS = 6  # of clients of similar rates


def accuracy_curves(test: Rows, train: Rows | None = None, labels: Sequence[str] = (), *, height: int = 300) -> Chart:
    """Accuracy by round: a line for the mean over seeds, a band from the lowest to the highest seed."""
    import altair as alt

    both = test + (train or [])
    labels = labels or _labels(both)
    low, high = (min(_ends(both, "low")), max(_ends(both, "high")))
    # From the lowest to the highest, in whole steps of 5 points.
    y = alt.Scale(domain=[np.floor(low * 20) / 20, max(min(np.ceil(high * 20) / 20, 1.0), 0.05)])
    if not train:
        return dressed(_curves(test, labels, y, "test accuracy", [], WIDTH, height))
    half = (WIDTH - 86) // 2
    return dressed(
        alt.hconcat(
            _curves(test, labels, y, "test accuracy", [], half, height),
            _curves(train, labels, y, "train accuracy", [5, 3], half, height),
            spacing=26,
        )
    )


def final_accuracy(rows: Rows, seeds: Rows, labels: Sequence[str] = ()) -> Chart:
    """Final numbers: a dot and a 95 % interval per setting, and a thin tick for each seed.

    ``rows`` have panel, label, mean, low and high (None without an interval); ``seeds`` have panel, label and value.
    """
    import altair as alt

    labels = labels or _labels(rows)
    names = list(dict.fromkeys(row["panel"] for row in rows))
    ends = [row[end] for row in rows for end in ("mean", "low", "high") if row[end] is not None]
    ends += [seed["value"] for seed in seeds]
    x = alt.Scale(domain=[min(ends), max(ends)], nice=True, zero=False, clamp=False)
    per_row = 1 if len(names) == 1 else 2
    width = WIDTH - 40 if per_row == 1 else (WIDTH - 60) // 2
    charts = []
    for name in names:
        mine, own = ([row for row in some if row["panel"] == name] for some in (rows, seeds))
        chart = _intervals(mine, own, labels, x, width)
        charts.append(titled(chart, name) if name else chart)
    return dressed(charts[0] if len(charts) == 1 else alt.concat(*charts, columns=per_row, spacing=24))


def weights_picture(rows: Rows, marks: Rows) -> Chart:
    """Weights by round, one panel per method: the mean over clients, the most frequent client and the rarest.

    A dashed line is the inverse of a client's rate, which a weight should come to.
    """
    import altair as alt

    names = _labels(rows)
    per_row = min(max(len(names), 2), 4)
    said = {"mean": "mean of all clients"}
    for mark in marks:
        said.setdefault(mark["who"], f"{mark['who']} client, {percent(mark['rate'])} % of rounds")
    scale = alt.Scale(domain=list(said.values()), range=[INK, COLOURS[0], COLOURS[1]])
    legend = alt.Legend(title=None, orient="top", columns=3, symbolType="stroke", symbolOpacity=1)
    colour = alt.Color("said:N", scale=scale, legend=legend)
    width = (WIDTH - 20 * (per_row - 1)) // per_row
    x = alt.X("round:Q", axis=_rounds_axis(4), scale=alt.Scale(nice=False, domainMin=0))
    found = [row["weight"] for row in rows] + [mark["inverse"] for mark in marks]
    y_scale = alt.Scale(type="log", domain=[min(1.0, *found), max(found) * 1.1], nice=False)
    charts = []
    for i, name in enumerate(names):
        first = i % per_row == 0
        ticks = [a * 10**b for b in range(-3, 7) for a in (1, 2, 5)]
        axis = alt.Axis(title="weight" if first else None, labels=first, ticks=first, values=ticks, format="~g")
        y = alt.Y("weight:Q", scale=y_scale, axis=axis)
        mine = [{**row, "said": said[row["who"]]} for row in rows if row["label"] == name]
        refs = [{"said": said[mark["who"]], "weight": mark["inverse"]} for mark in marks if mark["label"] == name]
        line = alt.Chart(values(mine)).mark_line(strokeWidth=1.6, interpolate="step-after")
        rule = alt.Chart(values(refs)).mark_rule(strokeDash=[3, 3], opacity=0.8)
        encoded = (line.encode(x=x, y=y, color=colour), rule.encode(y=y, color=colour))
        charts.append(titled(stack(*encoded, width=width, height=220), name))
    return dressed(alt.concat(*charts, columns=per_row, spacing=20) if len(charts) > 1 else charts[0])


def accuracy_cdf(found: Sequence[Fairness], labels: Sequence[str] = (), *, height: int = 280) -> Chart:
    """Who is left behind: the share of clients on whose own data the model has at most an accuracy."""
    import altair as alt

    rows: Rows = []
    for one in found:
        shares = np.linspace(0, 1, 101)
        accuracy = np.quantile(one.accuracy, shares)
        rows += [
            {"label": one.label, "accuracy": round(a, 4), "share": round(s, 4)}
            for a, s in zip(accuracy.tolist(), shares.tolist(), strict=True)
        ]
    x = alt.X("accuracy:Q", axis=percent_axis("accuracy on a client’s own training data"), scale=alt.Scale(nice=False))
    y = alt.Y("share:Q", axis=percent_axis("clients with at most this accuracy"))
    return dressed(_lines(rows, labels or _labels(rows), x, y, WIDTH, height))


def accuracy_by_rate(found: Sequence[Fairness], labels: Sequence[str] = ()) -> Chart:
    """Participation bias: accuracy on each client's own data against how often it took part, a panel per setting.

    A dot is a client of one seed; the line joins the means of clients of similar rates.
    """
    import altair as alt

    labels = list(labels) or [one.label for one in found]
    per_row = min(max(len(found), 2), 3)
    width = (WIDTH - 22 * (per_row - 1)) // per_row
    most = max(float(one.rate.max()) for one in found) or 1.0
    lowest = min(float(one.accuracy.min()) for one in found)
    shares = alt.Scale(type="sqrt", domain=[0, most * 1.03], nice=False)
    x = alt.X("rate:Q", scale=shares, axis=percent_axis("share of rounds taken part in", values=_few(most), grid=False))
    charts = []
    for i, one in enumerate(found):
        first = i % per_row == 0
        axis = percent_axis("accuracy on own data" if first else None, labels=first, ticks=first)
        y = alt.Y("accuracy:Q", scale=alt.Scale(domain=[min(lowest, 0.95), 1], nice=True), axis=axis)
        look = labels.index(one.label)
        colour, shape = COLOURS[look % len(COLOURS)], SHAPES[look % len(SHAPES)]
        dots = alt.Chart(values(_dots(one))).mark_circle(size=14, opacity=0.35, color=colour)
        middle = alt.Chart(values(_means(one)))
        line = middle.mark_line(strokeWidth=2.4, color=colour)
        points = middle.mark_point(shape=shape, size=55, filled=True, color=colour, opacity=1)
        encoded = [layer.encode(x=x, y=y) for layer in (dots, line, points)]
        charts.append(titled(stack(*encoded, width=width, height=200), one.label))
    return dressed(alt.concat(*charts, columns=per_row, spacing=22) if len(charts) > 1 else charts[0])


def _curves(
    rows: Rows, labels: Sequence[str], y_scale: alt.Scale, title: str, dash: list[int], width: int, height: int
) -> alt.LayerChart:
    import altair as alt

    each, end = max(row["each"] for row in rows), max(row["end"] for row in rows)
    if each > 1:
        title += f", mean of {each} evaluations"
    x = alt.X("round:Q", axis=_rounds_axis(6), scale=alt.Scale(domain=[0, end], nice=False))
    y = alt.Y("mean:Q", axis=percent_axis(title), scale=y_scale)
    lines = _lines(rows, labels, x, y, width, height, dash)
    if len(labels) > BANDS:
        return lines
    band = alt.Chart(values([row for row in rows if "low" in row])).mark_area(opacity=0.16)
    colour = lines.layer[0].encoding.color
    banded = band.encode(x=x, y=alt.Y("low:Q", scale=y_scale), y2="high:Q", color=colour)
    return stack(banded, *lines.layer, width=width, height=height)


def _lines(
    rows: Rows, labels: Sequence[str], x: alt.X, y: alt.Y, width: int, height: int, dash: Sequence[int] = ()
) -> alt.LayerChart:
    """Lines with a few marks on each, so that they are told apart without colour."""
    import altair as alt

    colours, shapes = by_label(labels)
    shown = _labels(rows)
    legend = None
    if len(labels) > 1:
        legend = alt.Legend(title=None, orient="top", columns=min(len(shown), 5), symbolOpacity=1, values=shown)
    colour = alt.Color("label:N", scale=colours, legend=legend)
    shape = alt.Shape("label:N", scale=shapes, legend=legend)
    marked: Rows = []
    for i, label in enumerate(labels):
        mine = [row for row in rows if row["label"] == label]
        step = max(len(mine) // MARKS, 1)
        marked += mine[(i + 1) * step // (len(labels) + 1) :: step]  # not above one another where lines meet
    line = alt.Chart(values(rows)).mark_line(strokeWidth=1.8, strokeDash=list(dash))
    mark = alt.Chart(values(marked)).mark_point(size=55, filled=True, opacity=1)
    encoded = (line.encode(x=x, y=y, color=colour), mark.encode(x=x, y=y, color=colour, shape=shape))
    return stack(*encoded, width=width, height=height)


def _intervals(rows: Rows, seeds: Rows, labels: Sequence[str], scale: alt.Scale, width: int) -> alt.LayerChart:
    import altair as alt

    colours, shapes = by_label(labels)
    left = alt.Axis(title=None, labelLimit=260, ticks=False, domain=False, labelPadding=8)
    y = alt.Y("label:N", sort=list(labels), axis=left)
    x = alt.X("mean:Q", scale=scale, axis=percent_axis("test accuracy"))
    colour = alt.Color("label:N", scale=colours, legend=None)
    shape = alt.Shape("label:N", scale=shapes, legend=None)
    rule = alt.Chart(values([row for row in rows if row["low"] is not None])).mark_rule(strokeWidth=2)
    tick = alt.Chart(values(seeds)).mark_tick(thickness=1.5, size=12, opacity=0.55)
    dot = alt.Chart(values(rows)).mark_point(size=80, filled=True, opacity=1)
    return stack(
        rule.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y, color=colour),
        tick.encode(x=alt.X("value:Q", scale=scale), y=y, color=colour),
        dot.encode(x=x, y=y, color=colour, shape=shape),
        width=width,
        height=alt.Step(26),
    )


def _labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in rows))


def _ends(rows: Rows, end: str) -> list[float]:
    return [float(row[end if end in row else "mean"]) for row in rows]


def _rounds_axis(ticks: int) -> alt.Axis:
    import altair as alt

    return alt.Axis(title="round", format=",d", tickCount=ticks, grid=False)


def _few(most: float) -> list[float]:
    """Ticks of a share's axis that do not touch one another on a square root's scale."""
    every = [0, 0.01, 0.05, 0.1, 0.2] if most < 0.25 else [0, 0.02, 0.1, 0.25, 0.5, 1]
    return [tick for tick in every if tick <= most * 1.03]


def _dots(one: Fairness) -> Rows:
    keep = np.unique(np.linspace(0, len(one.rate) - 1, min(len(one.rate), DOTS)).round().astype(np.int64))
    return [{"rate": round(float(one.rate[k]), 4), "accuracy": round(float(one.accuracy[k]), 4)} for k in keep]


def _means(one: Fairness) -> Rows:
    """Mean rate and accuracy of clients of similar rates, in bands of equal width as the axis draws them."""
    place = np.sqrt(one.rate)
    edges = np.linspace(place.min(), place.max(), GROUPS + 1)[1:-1]
    group = np.searchsorted(edges, place, side="right")
    few = max(5, len(place) // 50)
    rows: Rows = []
    waiting = np.zeros(len(place), bool)
    for number in range(GROUPS):
        waiting |= group == number
        rest = int((group > number).sum())
        if waiting.any() and (rest == 0 or (waiting.sum() >= few and rest >= few)):
            rate, accuracy = float(one.rate[waiting].mean()), float(one.accuracy[waiting].mean())
            rows.append({"rate": round(rate, 4), "accuracy": round(accuracy, 4)})
            waiting[:] = False
    return rows
