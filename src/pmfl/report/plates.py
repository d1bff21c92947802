"""Figures for print: a title, what data it shows, and panels laid out for a page or for one column of it.

A plate is drawn at a width in pixels of 1/96 inch: the text width or the column width of a two-column journal. No text
in it is smaller than 11 pixels, which are 8.25 points, so a plate is legible where it is printed at that width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pmfl.report.style import dressed, titled

if TYPE_CHECKING:
    import altair as alt

    from pmfl.report.style import Chart

    Panel: TypeAlias = Callable[[int, bool], alt.LayerChart]  # width of the frame, whether it has the axis of its row

COLUMN, PAGE = 336, 687  # 3.5 and 7.16 inches
LEFT, RIGHT, GAP = 64, 18, 16  # of a row of panels: its axis, what sticks out at its end, between panels
LABELS = 42  # of the axis, without its title
NARROWEST = 125  # a panel that is worth looking at
LETTER = 6.1  # mean width of a letter of a title's second line
_ROOM: ContextVar[int] = ContextVar("room", default=PAGE - LEFT - RIGHT)  # for a legend above the panels


@dataclass(frozen=True)
class Plate:
    """One figure: what it is called, what it shows, how to read it, and how to draw it at a width."""

    name: str  # of its files
    title: str
    facts: str  # data, scale and seeds: they stand in the picture, wherever it goes
    caption: str  # how to read it
    draw: Callable[[int], Any]

    def chart(self, width: int = PAGE) -> Chart:
        """The figure with its title, at most so many pixels wide."""
        import altair as alt

        title = alt.TitleParams(
            text=textwrap.wrap(self.title, int(width / (LETTER * 1.22))),
            subtitle=textwrap.wrap(self.facts, int(width / LETTER)),
            subtitlePadding=4,
            frame="bounds",
        )
        return dressed(self.draw(width).properties(title=title))

    @property
    def words(self) -> str:
        """The figure for who cannot see it."""
        return f"{self.title}. {self.facts}. {self.caption}"


def laid_out(
    panels: Sequence[tuple[str, Panel]],
    width: int,
    *,
    most: int = 4,
    narrowest: int = NARROWEST,
    names: int = 0,
    axes: bool = False,
) -> Any:
    """Panels in rows, each under its name; those of a row share the axis on its left.

    Where rows of a panel have ``names`` of so many letters, each panel has its own axis for them; with ``axes`` each
    has its own axis of numbers.
    """
    import altair as alt

    own = int(names * LETTER) + 14 if names else LEFT + RIGHT - 4 if axes else 0
    each = narrowest + own + GAP
    per_row = balanced(len(panels), min(max((width - (0 if own else LEFT) - RIGHT + GAP) // each, 1), most))
    room = width - RIGHT - GAP * (per_row - 1) - (own * per_row if own else LEFT)
    frame = room // per_row
    drawn = []
    token = _ROOM.set(width - LEFT - RIGHT)
    try:
        for i, (name, panel) in enumerate(panels):
            chart = panel(frame, bool(own) or i % per_row == 0)
            drawn.append(titled(chart, shortened(name, frame)) if name else chart)
    finally:
        _ROOM.reset(token)
    return drawn[0] if len(drawn) == 1 else alt.concat(*drawn, columns=per_row, spacing=GAP, align="each")


def balanced(panels: int, most: int) -> int:
    """How many of the panels stand in a row: rows as full as each other, and at most so many.

    >>> balanced(4, 3), balanced(6, 4), balanced(2, 4)
    (2, 3, 2)
    """
    rows = -(-panels // most)
    return -(-panels // rows)


def shortened(name: str, frame: int) -> str:
    """A panel's name, cut where it would run into the next panel's."""
    room = max(int((frame + GAP) / 7.2), 8)
    return name if len(name) <= room else name[: room - 1].rstrip(" ·") + "…"


def legend(labels: Sequence[str], width: int, **more: Any) -> alt.Legend | None:
    """A legend above the panels in as many columns as have room; none for one series."""
    import altair as alt

    if len(labels) < 2:
        return None
    each = max(len(label) for label in labels) * 6.6 + 38
    given = {"title": None, "orient": "top", "symbolOpacity": 1, "values": list(labels), **more}
    return alt.Legend(columns=max(min(int(min(width, _ROOM.get()) // each), len(labels)), 1), **given)


def side_axis(shows: bool, **given: Any) -> dict[str, Any]:
    """What makes the vertical axes of a column equally wide, and leaves them out within a row."""
    if shows:
        return {**given, "minExtent": LABELS, "maxExtent": LABELS, "titlePadding": 3}
    return {**given, "title": None, "labels": False, "ticks": False, "domain": False}
