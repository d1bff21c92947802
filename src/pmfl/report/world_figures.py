"""Charts of a world before anything is trained: who holds what, and how often what they hold is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pmfl.report.gather import FloatArray, IntArray, Rows
from pmfl.report.rasters import LEFT, axis, raster, shade_legend
from pmfl.report.style import INK, SOFT, dressed, percent_axis, stack, values

if TYPE_CHECKING:
    import altair as alt

    from pmfl.report.style import Chart

WIDTH = 790
SHOWN = 60  # clients of the picture of labels
BINS = 30  # of a histogram
NAMED = 20  # so many labels are written out


def label_picture(mix: FloatArray, labels: Sequence[str]) -> Chart:
    """Which labels each client holds: a column per client, a row per label, darker where its share is larger."""
    cells = mix[label_order(mix)].T
    classes, clients = cells.shape
    height = int(np.clip(18 * classes, 120, 360))
    y = axis("y", (0, classes), "label", reverse=True, **label_axis(labels))
    what = f"{clients} clients" if clients == len(mix) else f"{clients} of {len(mix):,} clients"
    x = axis("x", (0, clients), f"{what}, by their most frequent label", shows=False)
    picture = raster(cells, x, y, (0, clients), (0, classes), WIDTH, height)
    return dressed(stack(picture, shade_legend("share of a client’s samples"), width=WIDTH, height=height))


def label_axis(labels: Sequence[str]) -> dict[str, Any]:
    """An axis of labels whose names stand in the middle of their rows; numbers where there are too many to name."""
    names = [f"'{_quoted(label)}'" for label in labels]
    inner: dict[str, Any] = {
        "values": [k + 0.5 for k in range(len(labels))],
        "labelExpr": f"[{', '.join(names)}][floor(datum.value)]",
        "labelOverlap": False,
        "labelLimit": 120,
        "tickCount": len(labels),
    }
    return {"minExtent": LEFT, **(inner if len(labels) <= NAMED else {})}


def label_order(mix: FloatArray) -> IntArray:
    """The clients to show, by their most frequent label and its share; evenly spaced where there are many."""
    order = np.lexsort((-mix.max(1), mix.argmax(1)))
    keep = np.linspace(0, len(mix) - 1, min(len(mix), SHOWN)).round().astype(np.int64)
    found: IntArray = order[keep]
    return found


def distributions(sizes: IntArray, rates: FloatArray) -> Chart:
    """How clients differ in how much they hold, and in how often they should be there."""
    import altair as alt

    width = (WIDTH - 70) // 2
    left = _histogram(
        sizes.astype(np.float64),
        alt.Axis(title="training samples", format=",d", grid=False, tickMinStep=1, tickCount=8),
        width,
    )
    right = _histogram(rates, percent_axis("participation rate", grid=False, format="~%"), width)
    return dressed(alt.hconcat(left, right, spacing=26))


def label_rates(counts: IntArray, rates: FloatArray, labels: Sequence[str]) -> Chart:
    """How often the samples of each label are there: what participation does to the data that is trained on."""
    import altair as alt

    expected = label_activity(counts, rates)
    rows: Rows = [{"label": name, "rate": round(rate, 5)} for name, rate in zip(labels, expected.tolist(), strict=True)]
    named = len(labels) <= NAMED
    bottom = alt.Axis(title="label", labels=named, ticks=named, labelAngle=0, labelLimit=60)
    x = alt.X("label:N", sort=list(labels), axis=bottom, scale=alt.Scale(paddingInner=0.25))
    y = alt.Y("rate:Q", axis=percent_axis("share of rounds", minExtent=LEFT, tickCount=4, format="~%"))
    bars = alt.Chart(values(rows)).mark_bar(color=SOFT).encode(x=x, y=y)
    mean = float(expected @ counts.sum(0) / counts.sum())
    rule = alt.Chart(values([{"rate": mean}])).mark_rule(color=INK, strokeDash=[4, 3]).encode(y="rate:Q")
    return dressed(stack(bars, rule, width=WIDTH, height=150))


def label_activity(counts: IntArray, rates: FloatArray) -> FloatArray:
    """The share of rounds in which a sample of each label is there, [classes]; 0 for a label nobody holds."""
    found: FloatArray = rates @ counts / np.maximum(counts.sum(0), 1)
    return found


def by_hour(shares: FloatArray) -> Chart:
    """The mean share of clients that are there by hour; hours without a round are left out."""
    import altair as alt

    rows: Rows = [
        {"hour": hour, "to": hour + 1, "share": round(share, 5)}
        for hour, share in enumerate(shares.tolist())
        if share == share
    ]
    x = alt.X(
        "hour:Q",
        axis=alt.Axis(title="hour", values=list(range(0, 25, 3)), format="d", grid=False),
        scale=alt.Scale(domain=[0, 24], nice=False),
    )
    y = alt.Y("share:Q", axis=percent_axis("clients there", minExtent=LEFT, tickCount=4, format="~%"))
    bars = alt.Chart(values(rows)).mark_rect(color=SOFT)
    return dressed(stack(bars.encode(x=x, x2="to:Q", y=y, y2=alt.datum(0)), width=WIDTH, height=150))


def _histogram(numbers: FloatArray, bottom: alt.Axis, width: int) -> alt.LayerChart:
    import altair as alt

    low, high = float(numbers.min()), float(numbers.max())
    whole = low == np.floor(low) and high - low < BINS  # a bar for every number
    edges = (
        np.arange(low, high + 2) - 0.5
        if whole
        else np.linspace(low, high, int(np.clip(2 * len(numbers) ** 0.5, 8, BINS)) + 1)
    )
    counts, _ = np.histogram(numbers, edges)
    rows: Rows = [
        {"from": a, "to": b, "clients": n}
        for a, b, n in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
    ]
    x = alt.X("from:Q", axis=bottom, scale=alt.Scale(domain=[edges[0], edges[-1]], nice=False))
    y = alt.Y("clients:Q", axis=alt.Axis(title="clients", tickCount=4, tickMinStep=1, format=",d", minExtent=LEFT))
    bars = alt.Chart(values(rows)).mark_rect(color=SOFT, stroke=SOFT, strokeWidth=0.5)
    return stack(bars.encode(x=x, x2="to:Q", y=y, y2=alt.datum(0)), width=width, height=150)


def _quoted(label: str) -> str:
    return label.replace("\\", "\\\\").replace("'", "\\'")
