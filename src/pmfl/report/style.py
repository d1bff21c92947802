"""One look for every chart, and the ways to write a chart to a file, all without a browser or a network."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pmfl.errors import SpecError
from pmfl.study.store import storing

if TYPE_CHECKING:
    import altair as alt

    Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart | alt.FacetChart

INK = "#1f2328"  # text, axes and neutral marks; inline in a page it becomes the colour of the page's own text
# Okabe and Ito's colours, told apart with any colour vision, without the yellow that vanishes on white paper.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK)
SOFT = "#5BA3D0"  # a lighter blue, for what is filled
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-left", "triangle-right")
# Metrically the same face everywhere, so that what is measured here fits there.
FONT = "Arial, Helvetica, 'Liberation Sans', sans-serif"
FORMATS = (".svg", ".png", ".pdf", ".html", ".json")

_CONFIG: dict[str, Any] = {
    "background": "white",
    "font": FONT,
    "aria": False,
    "padding": 4,
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titlePadding": 8,
        "domainColor": INK,
        "domainOpacity": 0.5,
        "tickColor": INK,
        "tickOpacity": 0.5,
        "tickSize": 4,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "labelFlush": False,
        "labelOverlap": True,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 260,
        "titleLimit": 400,
        "symbolSize": 70,
        "symbolStrokeWidth": 2,
        "columnPadding": 18,
    },
    "header": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "labelFontWeight": "bold"},
    "title": {
        "color": INK,
        "subtitleColor": INK,
        "fontSize": 13,
        "subtitleFontSize": 11,
        "anchor": "start",
        "frame": "group",
        "offset": 10,
    },
    "text": {"color": INK, "fontSize": 11},
}


def dressed(chart: Any) -> Chart:
    """The chart in our look; the last thing that is done to it."""
    chart = chart.copy(deep=False)
    chart.config = _CONFIG
    return cast("Chart", chart)


def by_label(labels: Sequence[str]) -> tuple[alt.Scale, alt.Scale]:
    """Colour and shape of each series: the same label never looks like another, in colour or in grey."""
    import altair as alt

    domain = list(labels)
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(domain))]
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(domain))]
    return alt.Scale(domain=domain, range=colours), alt.Scale(domain=domain, range=shapes)


def stack(*charts: Any, width: int, height: Any) -> alt.LayerChart:
    """Charts above one another in one frame."""
    import altair as alt

    return cast("alt.LayerChart", alt.layer(*charts).properties(width=width, height=height))


def titled(chart: alt.LayerChart, text: str) -> alt.LayerChart:
    """A panel with its name above it: at one height in every panel, which Vega's own titles are not."""
    import altair as alt

    name = alt.Chart(values([{}])).mark_text(text=text, x=0, y=-12, align="left", fontSize=13, fontWeight="bold")
    return stack(*chart.layer, name, width=chart.width, height=chart.height)


def percent_axis(title: str | None, **more: Any) -> alt.Axis:
    """An axis of shares, in per cent."""
    import altair as alt

    given = {"format": ".0%", "tickCount": 5, **more}
    return alt.Axis(title=title, labelExpr="replace(datum.label, '%', ' %')", **given)


def values(rows: list[dict[str, Any]]) -> alt.InlineData:
    """Rows as inline data of a chart; as one text until the end, since Altair copies lists again and again."""
    import altair as alt

    return alt.InlineData(values=json.dumps(rows), format=alt.JsonDataFormat(type="json"))


def spec(chart: Chart) -> dict[str, Any]:
    """The chart as Vega-Lite. Altair checked each part when it was made; checking the whole again takes long."""
    found: dict[str, Any] = _unfolded(chart.to_dict(validate=False))
    datasets = found.get("datasets", {}).items()
    found["datasets"] = {name: json.loads(rows) if isinstance(rows, str) else rows for name, rows in datasets}
    return found


def _unfolded(part: Any) -> Any:
    """Rows that are rows again need no parsing."""
    if isinstance(part, dict):
        drop = "format" if "name" in part else ""
        return {key: _unfolded(inner) for key, inner in part.items() if key != drop}
    return [_unfolded(inner) for inner in part] if isinstance(part, list) else part


def svg(chart: Chart, name: str, text: str) -> str:
    """The chart as SVG to stand within a page: takes the page's text colour, and says ``text`` to who cannot see it."""
    import vl_convert

    picture = str(vl_convert.vegalite_to_svg({**spec(chart), "background": "transparent"}))
    picture = re.sub(r'(id="|url\(#|href="#)((?:clip|gradient)[^")]*)', rf"\1{name}-\2", picture)
    picture = picture.replace(INK, "currentColor").replace(' style="cursor: default;"', "")
    # Vega writes 16 digits and a line per axis tick; two decimals are a hundredth of a pixel.
    picture = re.sub(r"(\d+\.\d\d)\d+", r"\1", picture)
    said = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return picture.replace("<svg ", f'<svg role="img" aria-label="{said}" ', 1)


def save(chart: Chart, path: Path) -> Path:
    """Write a chart as .svg, .png, .pdf, as an .html page one can hover over, or as .json for Vega-Lite."""
    form = path.suffix.lower()
    if form not in FORMATS:
        raise SpecError(
            f"{path}: a chart cannot be written as `{form or path.name}`", hint=f"end the name in {', '.join(FORMATS)}"
        )
    content = _content(chart, form)
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _content(chart: Chart, form: str) -> bytes | str:
    import vl_convert

    drawn = spec(chart)
    if form == ".svg":
        return str(vl_convert.vegalite_to_svg(drawn))
    if form == ".png":
        return bytes(vl_convert.vegalite_to_png(drawn, scale=2))
    if form == ".pdf":
        return bytes(vl_convert.vegalite_to_pdf(drawn))
    if form == ".json":
        return json.dumps(drawn, indent=1)
    return str(vl_convert.vegalite_to_html(drawn, bundle=True))
