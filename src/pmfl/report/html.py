"""What pages are made of: templates, figures that carry their own words, and tables."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pmfl.core.files import replacing
from pmfl.report.tables import Column, Row, columns
from pmfl.study.store import storing

if TYPE_CHECKING:
    from pmfl.report.style import Chart


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows for who cannot see it, and what to know when looking at it."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Sheet:
    """A table, ready to be laid out."""

    headings: Sequence[str]
    numbers: Sequence[bool]  # which columns are numbers
    rows: Sequence[Sequence[str]]
    caption: str = ""
    small: bool = False
    groups: Sequence[str] = ()  # what columns share with their neighbours, by column

    @property
    def spans(self) -> list[tuple[str, int]]:
        """Groups and how many columns each has."""
        return [(name, len(list(same))) for name, same in itertools.groupby(self.groups)]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: sentences, tables and figures in this order."""

    title: str
    text: Sequence[str] = ()
    sheets: Sequence[Sheet] = ()
    figures: Sequence[Figure] = ()
    code: Sequence[str] = ()
    level: int = 2


class Drawer:
    """Draws figures of one page: numbers them, since names inside of a page must differ."""

    def __init__(self) -> None:
        self._drawn = 0

    def __call__(self, chart: Chart, alt: str, caption: str) -> Figure:
        """A chart as a figure."""
        from pmfl.report.style import svg

        self._drawn += 1
        return Figure(svg(chart, f"f{self._drawn}", alt), caption)


def sheet(
    rows: Sequence[Row], caption: str, more: Sequence[Column] = (), layout: Sequence[Column] | None = None
) -> Sheet:
    """Rows as a table of a page: summary or difference rows, if their layout is not given."""
    layout = [*(columns(rows) if layout is None else layout), *more]
    return Sheet(
        [column.heading for column in layout],
        [column.is_number for column in layout],
        [[column.cell(row) for column in layout] for row in rows],
        caption,
        groups=[column.group for column in layout],
    )


def pairs(given: Mapping[str, str]) -> Sheet:
    """Names and values as a table without headings."""
    return Sheet((), (False, False), list(given.items()))


def download(name: str, text: str, kind: str = "text/csv") -> dict[str, str]:
    """A link to a file that lies within the page."""
    data = base64.b64encode(text.encode()).decode()
    return {"name": name, "href": f"data:{kind};base64,{data}"}


def write_page(to: Path, **content: Any) -> Path:
    """Fill the page and write it, beside first, so that nobody ever sees half of it."""
    html = _render()(**content)
    with storing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with replacing(to, durable=False) as beside:
            beside.write_text(html, "utf-8")
    return to


def _render() -> Callable[..., str]:
    import jinja2

    loader = jinja2.PackageLoader("pmfl.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["tight"] = lambda text: str(text).replace(" %", "\u00a0%")
    return environment.get_template("page.html.j2").render
