"""From panels to plates that say what data, what scale and which seeds they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pmfl.report import panels as draw
from pmfl.report.figures import BANDS
from pmfl.report.gather import Rows
from pmfl.report.paper_rows import Placed, facts, grouped, in_order
from pmfl.report.plates import Plate, laid_out
from pmfl.report.series import Setting
from pmfl.study.settings import look_up, plain
from pmfl.study.store import RunRow

if TYPE_CHECKING:
    from pmfl.report.plates import Panel
    from pmfl.study.answers import Answers

HOLLOW = "Hollow marks: what the paper printed. "
INTERVAL = "Marks are means over seeds, lines their 95 % intervals (BCa bootstrap). "


def line_panels(rows: Rows, found: Sequence[Placed], y_title: str, unit: str = draw.PERCENT) -> Any:
    """Panels of curves by round, with bands where there are few enough."""
    labels = in_order(one.label for one in found)
    bands = len(labels) <= BANDS
    domain, ends = _ends(rows, unit, bands), max(row["x"] for row in rows)
    x = [0, max(row.get("end", ends) for row in rows)]
    return [
        (name, draw.line_panel(mine, labels, "round", y_title, domain, unit=unit, x_domain=x, bands=bands))
        for name, mine in grouped(rows).items()
    ]


def _ends(rows: Rows, unit: str, bands: bool) -> list[float]:
    scale = draw.shares if unit == draw.PERCENT else draw.span
    return scale(rows, ("mean", "low", "high") if bands else ("mean",))


def plate(
    name: str,
    title: str,
    answers: Answers,
    caption: str,
    drawn: Callable[[int], Any],
    runs: Sequence[RunRow] | None = None,
) -> Plate:
    """A plate that states its data; of some runs only where they are given."""
    return Plate(name, title, facts(answers, runs), caption.strip(), drawn)


def in_rows(panels: Sequence[tuple[str, Panel]], most: int, narrowest: int) -> Callable[[int], Any]:
    """Panels side by side as far as the width allows."""
    return lambda width: laid_out(panels, width, most=most, narrowest=min(narrowest, 270))


def listed(panels: Sequence[tuple[str, Panel]], labels: Sequence[str], width: int) -> Any:
    """Panels whose rows are named on the left: each needs room for the names."""
    return laid_out(panels, width, most=2, names=max(len(label) for label in labels))


def hollow(rows: Rows) -> str:
    """What hollow marks are, where there are any."""
    return HOLLOW if any(row["printed"] is not None for row in rows) else ""


def printed_of(answers: Answers) -> Callable[[Setting, str], float | None]:
    """What the paper printed for a setting, of a curve, as a share; nothing on other data than its own."""
    artefact = getattr(answers.study, "artefact", None)
    cells = artefact.printed.cells if artefact and artefact.printed else []

    def printed(setting: Setting, curve: str) -> float | None:
        spec = setting.runs[0].spec
        if artefact is None or look_up(spec, "data.dataset") not in artefact.data:
            return None
        for cell in cells:
            if cell.curve == curve and all(_is(spec, key, value) for key, value in cell.where.items()):
                return float(cell.value)
        return None

    return printed


def _is(spec: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """Whether a run has a value, told by name where it is a named thing."""
    found = look_up(spec, key)
    return plain(found["name"] if isinstance(found, Mapping) else found) == plain(wanted)
