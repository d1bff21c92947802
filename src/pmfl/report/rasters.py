"""Matrices as pictures: one pixel per cell, so that a quarter of a million cells take a few kilobytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pmfl.report.attendance import Attendance, binned
from pmfl.report.gather import FloatArray, Rows
from pmfl.report.style import COLOURS, INK, SOFT, dressed, percent_axis, stack, values

if TYPE_CHECKING:
    import altair as alt

    from pmfl.report.style import Chart

WIDTH, SIDE = 666, 110
LEFT = 44  # room for the labels of every vertical axis, so that what is stacked is aligned


def participation_picture(seen: Attendance, rates: FloatArray | None = None) -> Chart:
    """Who was there, round by round: clients from the most to the least frequent, and how many came each round.

    ``rates`` are what the clients' shares of rounds should be; they are drawn as a line beside what they were.
    """
    import altair as alt

    rows, height = len(seen.cells), int(np.clip(6 * len(seen.cells), 90, 260))
    bottom = float(seen.bands[-1])
    who = f"{seen.clients:,} clients" if seen.every_client else f"{rows} of {seen.clients:,} clients"
    y = axis("y", (0, bottom), f"{who}, by rate", reverse=True, shows=seen.every_client)
    x = axis("x", (0, seen.rounds), None, shows=False)
    main: Any = raster(seen.cells, x, y, (0, seen.rounds), (0, bottom), WIDTH, height)
    if not seen.exact:
        legend = shade_legend("share of rounds in which a client took part")
        main = stack(main, legend, width=WIDTH, height=height)
    beside = _rates_beside(seen, rates, height)
    return dressed(
        alt.vconcat(alt.hconcat(main, beside, spacing=14, bounds="flush"), _participants_below(seen), spacing=8)
    )


def raster(
    cells: FloatArray,
    x: Any,
    y: Any,
    across: tuple[float, float],
    down: tuple[float, float],
    width: int,
    height: int,
) -> alt.Chart:
    """A matrix of shares as an image: a share's colour has its square root as opacity, so that small ones are seen."""
    import altair as alt

    box = {"url": _png(cells), "x": across[0], "x2": across[1], "y": down[0], "y2": down[1]}
    picture = alt.Chart(values([box])).mark_image(
        width=width, height=height, aspect=False, align="left", baseline="top", smooth=False
    )
    return cast("alt.Chart", picture.encode(x=x, y=y, url="url:N").properties(width=width, height=height))


def axis(
    way: str,
    domain: Sequence[float],
    title: str | None,
    *,
    reverse: bool = False,
    shows: bool = True,
    **more: Any,
) -> Any:
    """An axis of a matrix, from its first to its last row or column; with ``shows=False`` it is bare."""
    import altair as alt

    channel = alt.X if way == "x" else alt.Y
    given: dict[str, Any] = {
        "labels": shows,
        "ticks": shows,
        "format": ",d",
        "tickCount": 8 if way == "x" else 4,
        **({"minExtent": LEFT} if way == "y" else {}),
        **more,
    }
    scale = alt.Scale(domain=list(domain), nice=False, zero=False, reverse=reverse)
    return channel(f"{way}:Q", scale=scale, axis=alt.Axis(title=title, grid=False, **given))


def shade_legend(title: str) -> alt.Chart:
    """What the shades of a raster stand for."""
    import altair as alt

    blue = ", ".join(map(str, _rgb()))
    ramp = alt.Scale(type="sqrt", domain=[0, 1], range=[f"rgba({blue}, 0)", f"rgba({blue}, 1)"], interpolate="rgb")
    legend = alt.Legend(
        title=title,
        titleOrient="left",
        orient="top",
        direction="horizontal",
        format=".0%",
        labelExpr="replace(datum.label, '%', ' %')",
        values=[0, 0.1, 0.4, 1],
        gradientLength=160,
        gradientThickness=8,
        gradientStrokeColor=INK,
        gradientStrokeWidth=0.3,
    )
    shade = alt.Color("share:Q", scale=ramp, legend=legend)
    return cast("alt.Chart", alt.Chart(values([{"share": 0}])).mark_point(opacity=0).encode(color=shade))


def _png(cells: FloatArray) -> str:
    from PIL import Image

    pixels = np.empty((*cells.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = _rgb(), np.rint(255 * np.sqrt(np.clip(cells, 0, 1)))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _rgb() -> tuple[int, ...]:
    return tuple(int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5))


def _rates_beside(seen: Attendance, rates: FloatArray | None, height: int) -> alt.LayerChart:
    """How often each client was there, on the picture's own axis of clients."""
    import altair as alt

    edges = list(zip(seen.bands[:-1].tolist(), seen.bands[1:].tolist(), seen.shown.tolist(), strict=True))
    steps: Rows = [{"y": end, "rate": float(seen.rates[k])} for a, b, k in edges for end in (a, b)]
    line: Rows = [] if rates is None else [{"y": (a + b) / 2, "rate": float(rates[k])} for a, b, k in edges]
    top = max(row["rate"] for row in steps + line) or 1.0
    y = axis("y", (0, float(seen.bands[-1])), None, reverse=True, shows=False, minExtent=0)
    scale = alt.Scale(domain=[0, top], nice=False)
    x = alt.X("rate:Q", stack=None, scale=scale, axis=percent_axis("share of rounds", tickCount=2, grid=False))
    drawn = alt.Chart(values(steps)).mark_area(color=SOFT, orient="horizontal").encode(x=x, y=y)
    layers = [drawn]
    if line:
        rule = alt.Chart(values(line)).mark_line(color=INK, strokeWidth=1.2)
        layers.append(rule.encode(x=x, y=y, order=alt.Order("y:Q")))
    return stack(*layers, width=SIDE, height=height)


def _participants_below(seen: Attendance) -> alt.LayerChart:
    """How many were there in each round; in bins of rounds their mean, and the band from fewest to most."""
    import altair as alt

    starts, sizes = binned(seen.by_round)
    mean = np.add.reduceat(seen.by_round, starts) / sizes
    low, high = np.minimum.reduceat(seen.by_round, starts), np.maximum.reduceat(seen.by_round, starts)
    middle = starts + sizes / 2
    rows = [
        {"x": x, "mean": round(m, 2), "low": int(a), "high": int(b)}
        for x, m, a, b in zip(middle.tolist(), mean.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    x = axis("x", (0, seen.rounds), "round")
    counted = alt.Axis(title="clients", tickCount=3, minExtent=LEFT, format=",d")
    y = alt.Y("mean:Q", axis=counted, scale=alt.Scale(zero=True))
    data = alt.Chart(values(rows))
    layers = [data.mark_line(color=COLOURS[0], strokeWidth=1).encode(x=x, y=y)]
    if len(starts) < seen.rounds:
        layers.insert(0, data.mark_area(color=COLOURS[0], opacity=0.2).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"))
    overall = alt.Chart(values([{"mean": float(seen.by_round.mean())}]))
    layers.append(overall.mark_rule(color=INK, strokeDash=[4, 3]).encode(y="mean:Q"))
    return stack(*layers, width=WIDTH, height=60)
