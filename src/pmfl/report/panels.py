"""The panels of plates: each function turns rows into something that draws them in a frame of any width.

Ours is filled and solid, what the paper printed is hollow and dotted. Series differ in colour and in shape. A row
without a value is left out, and a cell without one says so: nothing is drawn as zero that was not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pmfl.report.gather import Rows
from pmfl.report.plates import legend, side_axis
from pmfl.report.style import COLOURS, INK, by_label, stack, values

if TYPE_CHECKING:
    import altair as alt

    from pmfl.report.plates import Panel

DARK, PALE = "#111111", "#E6F0F7"  # of cells: they keep their colours in a dark page
PERCENT, PLAIN = "percent", ",.6~g"
MARKS = 5  # shapes along a line


def span(
    rows: Rows, keys: Sequence[str] = ("mean", "low", "high", "printed"), *, cap: float = float("inf")
) -> list[float]:
    """From the lowest to the highest of what rows show, rounded outwards to whole steps, and not beyond ``cap``."""
    found = [float(row[key]) for row in rows for key in keys if row.get(key) is not None]
    if not found:
        return [0.0, 1.0]
    low, high = min(found), max(found)
    step = _round_step(high - low or abs(high) or 1.0)
    bottom, top = float(np.floor(low / step + 1e-9) * step), float(np.ceil(high / step - 1e-9) * step)
    # An interval of few seeds may reach beyond what there can be.
    return [max(bottom, 0.0), min(top, cap) if top > bottom else bottom + step]


def shares(rows: Rows, keys: Sequence[str] = ("mean", "low", "high", "printed")) -> list[float]:
    """The same of shares, which end at 1."""
    return span(rows, keys, cap=1.0)


def level_panel(
    rows: Rows, labels: Sequence[str], xs: Sequence[str], domain: Sequence[float], x_title: str, y_title: str, unit: str
) -> Panel:
    """A value against a setting: a mark and a 95 % interval per series, joined; hollow and dotted what was printed."""
    import altair as alt

    colours, shapes = by_label(labels)

    def panel(frame: int, first: bool) -> alt.LayerChart:
        lower = alt.Axis(title=x_title, labelAngle=0, grid=False, labelOverlap=True)
        x = alt.X("x:N", sort=list(xs), axis=lower, scale=alt.Scale(type="band", domain=list(xs), paddingInner=0.25))
        aside = alt.XOffset("label:N", scale=alt.Scale(domain=list(labels), paddingOuter=0.5))
        y = _side("mean", domain, y_title, unit, first)
        shown = _key(labels, frame)
        colour = alt.Color("label:N", scale=colours, legend=shown)
        shape = alt.Shape("label:N", scale=shapes, legend=shown)
        mine = alt.Chart(values([row for row in rows if row.get("mean") is not None]))
        sure = alt.Chart(values([row for row in rows if row.get("low") is not None]))
        theirs = alt.Chart(values([row for row in rows if row.get("printed") is not None]))
        low, printed = _side("low", domain, y_title, unit, first), _side("printed", domain, y_title, unit, first)
        layers = [
            theirs.mark_line(strokeWidth=1, strokeDash=[1, 3]).encode(x=x, y=printed, color=colour, xOffset=aside),
            theirs.mark_point(size=34, filled=False, strokeWidth=1.2).encode(
                x=x, y=printed, color=colour, shape=shape, xOffset=aside
            ),
            mine.mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour, xOffset=aside),
            sure.mark_rule(strokeWidth=1.2, clip=True).encode(x=x, y=low, y2="high:Q", color=colour, xOffset=aside),
            mine.mark_point(size=46, filled=True, opacity=1).encode(
                x=x, y=y, color=colour, shape=shape, xOffset=aside, tooltip=_told("x", "label", "mean", "low", "high")
            ),
        ]
        return stack(*layers, width=frame, height=170)

    return panel


def cell_panel(
    rows: Rows, xs: Sequence[str], ys: Sequence[str], domain: Sequence[float], x_title: str, y_title: str
) -> Panel:
    """A value for each pair of settings, written into a cell that is the darker, the higher it is.

    A cell for which the paper printed a value is framed, and the printed value stands below ours.
    """
    import altair as alt

    def panel(frame: int, first: bool) -> alt.LayerChart:
        found = {(row["x"], row["y"]): row for row in rows}
        cells = [{"x": x, "y": y, **_cell(found.get((x, y)))} for y in ys for x in xs]
        lower = alt.Axis(title=x_title, labelAngle=0, grid=False, ticks=False, domain=False, labelOverlap=False)
        x = alt.X("x:N", sort=list(xs), axis=lower, scale=alt.Scale(paddingInner=0.04, domain=list(xs)))
        side = alt.Axis(**side_axis(first, title=y_title, grid=False, ticks=False, domain=False))
        y = alt.Y("y:N", sort=list(ys), axis=side, scale=alt.Scale(paddingInner=0.04, domain=list(ys)))
        full = alt.Chart(values([cell for cell in cells if cell["mean"] is not None]))
        ramp = alt.Scale(domain=list(domain), range=[PALE, COLOURS[0]], clamp=True)
        fill = alt.Color("mean:Q", scale=ramp, legend=None)
        ink = alt.condition(
            alt.datum.mean > domain[0] + 0.62 * (domain[1] - domain[0]), alt.value("white"), alt.value(DARK)
        )
        told = _told("x", "y", "mean", "low", "high", "seeds")
        layers = [
            alt.Chart(values(cells)).mark_rect(fill=None, stroke=INK, strokeOpacity=0.25).encode(x=x, y=y),
            full.mark_rect().encode(x=x, y=y, color=fill, tooltip=told),
            full.mark_text(fontSize=11).encode(x=x, y=y, text="text:N", color=ink),
            alt.Chart(values([cell for cell in cells if cell["mean"] is None]))
            .mark_text(text="–", fontSize=11, color=INK)
            .encode(x=x, y=y),
        ]
        known = [cell for cell in cells if cell["printed"] is not None]
        if known:
            framed = alt.Chart(values(known))
            layers += [
                framed.mark_rect(fill=None, stroke=DARK, strokeWidth=1.6).encode(x=x, y=y),
                framed.mark_text(fontSize=11, dy=11, fontStyle="italic").encode(x=x, y=y, text="said:N", color=ink),
            ]
        return stack(*layers, width=frame, height=alt.Step(34 if any(row.get("printed") for row in rows) else 26))

    return panel


def dot_panel(rows: Rows, seeds: Rows, labels: Sequence[str], domain: Sequence[float], x_title: str) -> Panel:
    """A dot and a 95 % interval per setting, a thin tick for each seed, and a hollow diamond for what was printed."""
    import altair as alt

    def panel(frame: int, first: bool) -> alt.LayerChart:
        kept = [label for label in labels if any(row["label"] == label for row in rows)]
        longest = max([len(label) for label in kept] or [1])
        side = alt.Axis(title=None, ticks=False, domain=False, labelLimit=max(60, int(longest * 6.4)))
        y = alt.Y("label:N", sort=kept, axis=side, scale=alt.Scale(domain=kept))
        axis = alt.Axis(title=x_title, tickCount=4, **_unit(PERCENT))
        scale = alt.Scale(domain=list(domain), nice=False, zero=False)
        x = alt.X("mean:Q", scale=scale, axis=axis)
        colours, shapes = by_label(labels)
        colour = alt.Color("label:N", scale=colours, legend=None)
        shape = alt.Shape("label:N", scale=shapes, legend=None)
        mine = alt.Chart(values([row for row in rows if row.get("mean") is not None]))
        sure = alt.Chart(values([row for row in rows if row.get("low") is not None]))
        theirs = alt.Chart(values([row for row in rows if row.get("printed") is not None]))
        each = alt.Chart(values([seed for seed in seeds if seed["label"] in kept]))
        layers = [
            each.mark_tick(thickness=1.2, size=11, opacity=0.5).encode(
                x=alt.X("value:Q", scale=scale, axis=axis), y=y, color=colour
            ),
            sure.mark_rule(strokeWidth=1.8, clip=True).encode(
                x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q", y=y, color=colour
            ),
            mine.mark_point(size=60, filled=True, opacity=1).encode(
                x=x, y=y, color=colour, shape=shape, tooltip=_told("label", "mean", "low", "high", "seeds")
            ),
            theirs.mark_point(size=75, shape="diamond", filled=False, strokeWidth=1.4, color=INK).encode(
                x=alt.X("printed:Q", scale=scale, axis=axis), y=y
            ),
        ]
        return stack(*layers, width=frame, height=alt.Step(20))

    return panel


def line_panel(
    rows: Rows,
    labels: Sequence[str],
    x_title: str,
    y_title: str,
    domain: Sequence[float],
    *,
    unit: str = PERCENT,
    x_domain: Sequence[float] | None = None,
    marks: Rows = (),  # type: ignore[assignment]
    height: int = 170,
    x_unit: str = "",
    x_scale: str = "linear",
    bands: bool = True,
    stroke: float = 1.5,
    own_axis: bool = False,
) -> Panel:
    """Lines with a few shapes on each, a band from the lowest to the highest seed, and rules at ``marks``.

    Rows have label, x and mean; low and high where there is a band. Marks have mean, text and kind, printed or not.
    """
    import altair as alt

    colours, shapes = by_label(labels)
    ends = list(x_domain or span(rows, ("x",)))

    def panel(frame: int, first: bool) -> alt.LayerChart:
        first = first or own_axis
        lower = alt.Axis(title=x_title, tickCount=4, grid=False, **(_unit(x_unit) if x_unit else {"format": PLAIN}))
        x = alt.X("x:Q", axis=lower, scale=alt.Scale(domain=ends, nice=False, zero=False, type=x_scale))  # type: ignore[arg-type]
        y = _side("mean", domain, y_title, unit, first)
        shown = _key(labels, frame)
        colour = alt.Color("label:N", scale=colours, legend=shown)
        shape = alt.Shape("label:N", scale=shapes, legend=shown)
        line = alt.Chart(values(rows)).mark_line(strokeWidth=stroke, clip=True).encode(x=x, y=y, color=colour)
        some = alt.Chart(values(_some([row for row in rows if row["x"] <= ends[1]], labels))).mark_point(
            size=42, filled=True, opacity=1
        )
        layers: list[Any] = [line]
        wide = [row for row in rows if row.get("low") is not None]
        if bands and wide:
            low = _side("low", domain, y_title, unit, first)
            band = alt.Chart(values(wide)).mark_area(opacity=0.16, clip=True)
            layers.insert(0, band.encode(x=x, y=low, y2="high:Q", color=colour))
        layers.append(some.encode(x=x, y=y, color=colour, shape=shape, tooltip=_told("label", "x", "mean")))
        return stack(*layers, *_rules(marks, y, frame, height), width=frame, height=height)

    return panel


def repeat_panel(rows: Rows, xs: Sequence[str], domain: Sequence[float], x_title: str, y_title: str) -> Panel:
    """Repetitions side by side: a point for each, a box from the lower to the upper quartile, a bar at the median.

    Rows have x and value; ``printed`` of any of them is drawn as a hollow diamond.
    """
    import altair as alt

    def panel(frame: int, first: bool) -> alt.LayerChart:
        boxes, points, printed = _boxes(rows, xs)
        lower = alt.Axis(title=x_title, labelAngle=0, grid=False)
        x = alt.X("x:N", sort=list(xs), axis=lower, scale=alt.Scale(domain=list(xs), paddingInner=0.4))
        aside = alt.XOffset("place:Q", scale=alt.Scale(domain=[-1, 1]))
        box, wide = alt.Chart(values(boxes)), max(frame // (3 * len(xs)), 8)
        layers = [
            box.mark_bar(color=COLOURS[0], opacity=0.18, size=wide).encode(
                x=x, y=_side("low", domain, y_title, PERCENT, first), y2="high:Q", xOffset=aside
            ),
            box.mark_tick(color=COLOURS[0], thickness=2, size=wide, orient="horizontal").encode(
                x=x, y=_side("middle", domain, y_title, PERCENT, first), xOffset=aside
            ),
            alt.Chart(values(points))
            .mark_point(size=22, filled=True, color=COLOURS[0], opacity=0.9)
            .encode(x=x, y=_side("value", domain, y_title, PERCENT, first), xOffset=aside, tooltip=_told("x", "value")),
            alt.Chart(values(printed))
            .mark_point(size=75, shape="diamond", filled=False, strokeWidth=1.4, color=INK)
            .encode(x=x, y=_side("printed", domain, y_title, PERCENT, first), xOffset=aside),
        ]
        return stack(*layers, width=frame, height=170)

    return panel


def bar_panel(rows: Rows, labels: Sequence[str], x_title: str, *, unit: str = PLAIN, log: bool = False) -> Panel:
    """One horizontal bar per label with its number at the end."""
    import altair as alt

    def panel(frame: int, first: bool) -> alt.LayerChart:
        longest = max(len(label) for label in labels)
        side = alt.Axis(title=None, ticks=False, domain=False, labelLimit=max(60, int(longest * 6.4)))
        y = alt.Y("label:N", sort=list(labels), axis=side, scale=alt.Scale(paddingInner=0.3))
        top = max([row["value"] for row in rows] or [1.0])
        low = min([row["value"] for row in rows if row["value"] > 0] or [0.1])
        scale = alt.Scale(type="log" if log else "linear", domain=[low / 2 if log else 0, top * (3 if log else 1.3)])
        x = alt.X("value:Q", scale=scale, axis=alt.Axis(title=x_title, tickCount=4, format=unit))
        bars = alt.Chart(values(rows))
        text = bars.mark_text(align="left", dx=4, fontSize=11, color=INK).encode(x=x, y=y, text="text:N")
        return stack(
            bars.mark_bar(color=COLOURS[0]).encode(x=x, y=y, x2=alt.datum(low / 2 if log else 0)),
            text,
            width=frame,
            height=alt.Step(20),
        )

    return panel


def _side(field: str, domain: Sequence[float], title: str, unit: str, first: bool) -> alt.Y:
    import altair as alt

    axis = alt.Axis(**side_axis(first, title=title, tickCount=5, **_unit(unit)))
    return alt.Y(f"{field}:Q", axis=axis, scale=alt.Scale(domain=list(domain), nice=False, zero=False))


def _unit(unit: str) -> dict[str, Any]:
    """How an axis writes its numbers: per cent, or a format of its own."""
    if unit == PERCENT:
        return {"format": ".3~%", "labelExpr": "replace(datum.label, '%', ' %')"}
    return {"format": unit or PLAIN}


def _key(labels: Sequence[str], frame: int) -> alt.Legend | None:
    return legend(labels, max(2 * frame, 300))


def _told(*keys: str) -> list[str]:
    return [f"{key}:{'N' if key in ('x', 'y', 'label') else 'Q'}" for key in keys]


def _cell(row: dict[str, Any] | None) -> dict[str, Any]:
    mean, printed = (row or {}).get("mean"), (row or {}).get("printed")
    return {
        "mean": mean,
        "low": (row or {}).get("low"),
        "high": (row or {}).get("high"),
        "seeds": (row or {}).get("seeds"),
        "printed": printed,
        "text": "" if mean is None else f"{100 * mean:.1f}",
        "said": "" if printed is None else f"{100 * printed:.1f}",
    }


def _some(rows: Rows, labels: Sequence[str]) -> Rows:
    """A few rows of each series, at other places in each, so that shapes do not cover one another where lines meet."""
    found: Rows = []
    for i, label in enumerate(labels):
        mine = [row for row in rows if row["label"] == label]
        step = max(len(mine) // MARKS, 1)
        found += mine[(i + 1) * step // (len(labels) + 1) :: step]
    return found


def _rules(marks: Rows, y: alt.Y, frame: int, height: int) -> list[Any]:
    import altair as alt

    if not marks:
        return []
    layers: list[Any] = []
    for line, mark in enumerate(reversed(marks)):
        printed, chart = mark["kind"] == "printed", alt.Chart(values([mark]))
        text = chart.mark_text(align="right", baseline="bottom", color=INK)
        place = alt.value(height - 4 - 14 * line)  # at the bottom, where an axis from zero leaves room
        layers += [
            chart.mark_rule(color=INK, strokeDash=[1, 3] if printed else [6, 3], strokeWidth=1.3).encode(y=y),
            text.encode(x=alt.value(frame - 3), y=place, text="text:N"),
        ]
    return layers


def _boxes(rows: Rows, xs: Sequence[str]) -> tuple[Rows, Rows, Rows]:
    boxes: Rows = []
    points: Rows = []
    printed: Rows = []
    for x in xs:
        mine = [row for row in rows if row["x"] == x]
        found = [row["value"] for row in mine if row.get("value") is not None]
        if found:
            low, middle, high = (float(q) for q in np.quantile(found, (0.25, 0.5, 0.75)))
            boxes.append({"x": x, "low": low, "middle": middle, "high": high, "place": 0.0})
        at = np.linspace(-0.6, 0.6, len(found)) if len(found) > 1 else [0.0]
        points += [{"x": x, "value": value, "place": float(place)} for value, place in zip(found, at, strict=False)]
        printed += [
            {"x": x, "printed": row["printed"], "place": 0.0} for row in mine[:1] if row.get("printed") is not None
        ]
    return boxes, points, printed


def _round_step(width: float) -> float:
    """A step of 1, 2 or 5 times a power of ten that fits some four to ten times into a width."""
    power = 10.0 ** np.floor(np.log10(width))
    return float(next(power * factor for factor in (0.1, 0.2, 0.5, 1.0) if width / (power * factor) <= 10))
