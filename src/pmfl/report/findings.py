"""What the numbers of a study say, in sentences that claim no more than their intervals allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pmfl.errors import SpecError, did_you_mean
from pmfl.report.series import Setting, panels
from pmfl.report.tables import DEFAULT_MEASURE, MEASURES, Row, difference_rows, percent, points, summary_rows
from pmfl.study.grid import Study

WHAT = {
    "final": "of the final model",
    "last10_mean": "as mean of the last 10 evaluations",
    "top5_mean": "as mean of the 5 best evaluations",
}
FEW = 5  # so many comparisons are told one by one; more are counted


def measure_of(study: Study) -> str:
    """The number a study is judged by: ``[report] value``, else the mean of the last 10 evaluations."""
    given = str(study.report.get("value", DEFAULT_MEASURE)).partition("(")[0].strip()
    if given not in MEASURES:
        raise SpecError(
            f"study {study.id}: report.value = {study.report['value']!r} is not known",
            hint=did_you_mean(given, MEASURES),
            code="S119",
        )
    return given


def findings(found: Sequence[Setting], measure: str, reference: str = "") -> list[str]:
    """Sentences on who is ahead, by how much, and whether the seeds can tell."""
    if not any(setting.done for setting in found):
        return ["No run is finished, so there is nothing to conclude yet."]
    gaps = difference_rows(found, reference)
    rows = [row for row in gaps if row["seeds"]]
    said = [_overall(found, measure)] if len(panels(found)) == 1 else []
    if not rows:
        return [*said, "No seed is finished by two methods, so none can be compared yet."] if gaps else said
    key = f"test_accuracy_{measure}_difference"
    if all(row[f"{key}_low"] is None for row in rows):
        return [*said, "Only one seed is shared: how far others would differ is unknown, so no difference counts."]
    first = next((s.label for s in found if s.label == reference), found[0].label)
    if len(rows) <= FEW and len(panels(found)) == 1:
        said += [_one(row, key, first) for row in rows]
    else:
        said.append(_counted(rows, key, first))
    if len(rows) > 1:
        said.append(f"Each interval stands for itself; none is widened because there are {len(rows)} comparisons.")
    return said


def verdict(row: Row, key: str) -> str:
    """``ahead``, ``behind``, ``unclear`` where the interval holds zero, or ``unknown`` without an interval."""
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    if low is None:
        return "unknown"
    return "ahead" if low > 0 else "behind" if high < 0 else "unclear"


def _overall(found: Sequence[Setting], measure: str) -> str:
    key = f"test_accuracy_{measure}"
    known = [(s, row) for s, row in zip(found, summary_rows(found), strict=True) if row[key] is not None]
    known.sort(key=lambda pair: -pair[1][key])
    shown = ", ".join(f"{s.label} {percent(row[key])} %" for s, row in known[:8])
    rest = f" and {len(known) - 8} more below" if len(known) > 8 else ""
    return f"Test accuracy {WHAT[measure]}: {shown}{rest}."


def _one(row: Row, key: str, first: str) -> str:
    other, gap = row["against"], row[key]
    how = verdict(row, key)
    if how == "unknown":
        return f"{first} and {other} share one finished seed, which is too few to compare them."
    interval = f"95 % interval {points(row[f'{key}_low'])} to {points(row[f'{key}_high'])}, {row['seeds']} seeds"
    if how == "unclear":
        return f"{first} and {other} cannot be told apart: the difference is {points(gap)} points ({interval})."
    where = "ahead of" if how == "ahead" else "behind"
    return f"{first} is {where} {other} by {percent(abs(gap))} points ({interval})."


def _counted(rows: Sequence[Row], key: str, first: str) -> str:
    how = Counter(verdict(row, key) for row in rows)
    words = {
        "ahead": f"{first} is ahead in {{}}",
        "behind": "behind in {}",
        "unclear": "the two cannot be told apart in {}",
        "unknown": "{} rest on one seed",
    }
    parts = [text.format(how[which]) for which, text in words.items() if how[which] or which in ("ahead", "unclear")]
    return f"Of {len(rows)} comparisons: {', '.join(parts)}."
