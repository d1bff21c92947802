"""The tables of an artefact of the paper: our numbers beside the printed ones, and a verdict on each claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmfl.report.series import short_names
from pmfl.report.tables import Column, Row, as_text, points, to_csv, to_latex, to_markdown, to_rich
from pmfl.study.claims import Found
from pmfl.study.evidence import Cell, Evidence, Line, contest_rows
from pmfl.study.expression import Measure
from pmfl.study.scales import WORDS
from pmfl.study.settings import plain
from pmfl.study.statistics import Verdict
from pmfl.study.store import storing

NAMES = {"top5_mean": "best 5", "last10_mean": "last 10", "late_mean": "second half", "range_of_final": "range"}
READING = (
    "Ours: mean over seeds and 95 % interval (BCa bootstrap); best 5 and last 10: mean of so many evaluations of a run."
)
TESTED = (
    "Differences are taken seed by seed; p is of the exact permutation test where seeds suffice for it, else of "
    "Student's, with Holm's correction over the comparisons of the claim; d is the mean over the standard deviation."
)


def setting_rows(evidence: Evidence) -> list[Row]:
    """One row per setting: what was swept, seeds, and for each measure mean, low, high and the printed number."""
    return [_setting_row(line) for line in evidence.lines]


def setting_columns(evidence: Evidence) -> list[Column]:
    """How ``setting_rows`` are laid out; what is the same in all of them is left out."""
    rows = setting_rows(evidence)
    keys = [key for key in evidence.table.keys if key == "method" or len({plain(row[key]) for row in rows}) > 1]
    short = short_names(keys)
    found = [Column(short[key], _of(key, plain), is_number=False) for key in keys]
    found.append(Column("seeds", _seeds))
    for measure in evidence.artefact.measured:
        name, group = str(measure), _title(measure)
        found.append(Column("ours", _interval(name, measure), group=group))
        if any(row[f"{name} printed"] is not None for row in rows):
            found.append(Column("paper", _of(f"{name} printed", _shown(measure)), group=group))
            if _on_its_data(evidence):
                found.append(Column("differ", _of(f"{name} difference", points), group=group))
    return found


def claim_rows(evidence: Evidence) -> list[Row]:
    """One row per claim: the sentence, how it is checked, what came out, and on what it rests."""
    return [_claim_row(evidence, one) for one in evidence.found]


def claim_columns() -> list[Column]:
    """How ``claim_rows`` are laid out."""
    words = ("says", "verdict", "rests on", "paper's own numbers", "remark")
    return [Column("claim", _of("claim", str), is_number=False)] + [
        Column(word, _of(word, plain), is_number=False) for word in words
    ]


def contest_columns() -> list[Column]:
    """How the single comparisons of ``contest_rows`` are laid out."""
    layout: list[Column] = [
        Column(word, _of(word, plain), is_number=False) for word in ("claim", "where", "left", "relation", "right")
    ]
    layout.append(Column("seeds", _of("seeds", plain)))
    layout += [Column(word, _of(word, _digits)) for word in ("left_mean", "right_mean", "margin", "low", "high")]
    layout += [Column("d", _of("effect", _digits)), Column("p", _of("p_holm", _digits))]
    return [*layout, Column("verdict", _of("verdict", str), is_number=False), Column("needed", _of("needed", plain))]


def verdict_words(found: Found) -> str:
    """A verdict in words: with seeds where it is open, and with what is missing where not all was run.

    An undecided claim says how many seeds would decide it, if effects are as large as they look.
    """
    low, high = found.seeds
    seeds = f"{low} seed{'s' if low != 1 else ''}" if low == high else f"{low} to {high} seeds"
    if found.verdict == "undecided":
        needed = found.needed
        more = f"; about {needed} would decide" if needed else "; more than 1,000 would be needed" if high > 1 else ""
        return f"undecided at {seeds}{more}"
    if found.verdict == "holds" and len(found.run) < len(found.contests):
        return f"holds so far ({len(found.run)} of {len(found.contests)} comparisons run)"
    return found.verdict


def rests_on(found: Found) -> str:
    """What a verdict rests on: how many comparisons came out how, over how many seeds."""
    if not found.run:
        return "nothing was run"
    words: tuple[Verdict, ...] = ("holds", "does not hold", "undecided")
    said = ", ".join(f"{found.count(word)} {word}" for word in words if found.count(word))
    low, high = found.seeds
    seeds = f"{low}" if low == high else f"{low} to {high}"
    return f"{len(found.run)} of {len(found.contests)} comparisons, {seeds} seeds: {said}"


def head(evidence: Evidence) -> list[str]:
    """What an artefact is, and at which scale and on which data it was made: the first lines of every output."""
    made = evidence.artefact
    data = sorted({run.spec["data"]["dataset"] for run in evidence.answers.runs})
    rounds = sorted({run.total for run in evidence.answers.runs})
    apart = evidence.answers.departures
    scale = WORDS[evidence.answers.scale]
    if apart:
        scale = f"not the paper's setting: {'; '.join(apart)}" + (
            "" if evidence.answers.scale == "full" else f"; {scale}"
        )
    said = [f"{made.artefact}: {made.shows}", scale]
    on = f"data {', '.join(data)}; {' to '.join(f'{n:,}' for n in dict.fromkeys([rounds[0], rounds[-1]]))} rounds"
    if made.data and not _on_its_data(evidence):
        on += f" (the paper's data: {', '.join(made.data)}; printed numbers are of those)"
    done = len(evidence.answers.done)
    return [*said, f"{on}; {done} of {len(evidence.answers.runs)} runs answered"]


def ranks_words(evidence: Evidence) -> str:
    """Mean ranks of the methods over settings, and how far apart they must lie to count."""
    if evidence.ranks is None:
        return ""
    names, found = evidence.ranks
    order = sorted(zip(found.ranks, names, strict=True))
    said = ", ".join(f"{name} {rank:.2f}" for rank, name in order)
    return (
        f"Mean ranks over {found.blocks} settings (1 is best): {said}. Friedman p = {found.p:.2g}; ranks closer than "
        f"{found.critical:.2f} cannot be told apart (Nemenyi, 5 %)."
    )


def to_terminal(evidence: Evidence) -> str:
    """All of an artefact as text for a terminal."""
    lines = [*head(evidence), ""]
    lines.append(as_text(to_rich(setting_rows(evidence), layout=setting_columns(evidence)), READING))
    if ranks := ranks_words(evidence):
        lines += ["", ranks]
    for one in evidence.found:
        agree, printed = evidence.agreement(one)
        lines += ["", f"{verdict_words(one).upper()}: {one.claim.says}", f"  [{one.claim.id}] {rests_on(one)}"]
        if printed:
            lines.append(f"  the paper's own numbers agree in {agree} of {printed} comparisons")
        if one.claim.remark:
            lines.append(f"  {one.claim.remark}")
    return "\n".join([*lines, "", TESTED] if evidence.found else lines)


def as_markdown(evidence: Evidence) -> str:
    """The same as Markdown."""
    parts = [
        "\n".join(f"- {line}" for line in head(evidence)),
        to_markdown(setting_rows(evidence), setting_columns(evidence)),
    ]
    parts += [READING, ranks_words(evidence)]
    if evidence.found:
        parts += [to_markdown(claim_rows(evidence), claim_columns()), TESTED]
        parts.append(to_markdown(contest_rows(evidence.found), contest_columns()))
    return f"# {evidence.study.title}\n\n" + "\n\n".join(part.strip() for part in parts if part) + "\n"


def write_tables(evidence: Evidence, to: Path, stem: str = "") -> list[Path]:
    """Write an artefact's tables as text, Markdown, LaTeX and CSV; file names begin with the study's, or as given."""
    name, rows = stem or evidence.study.id, setting_rows(evidence)
    texts = {
        f"{name}.txt": to_terminal(evidence) + "\n",
        f"{name}.md": as_markdown(evidence),
        f"{name}.tex": f"% {'; '.join(head(evidence))}\n" + to_latex(rows, setting_columns(evidence)),
        f"{name}.csv": to_csv([{**row, "scale": evidence.answers.scale} for row in rows]),
    }
    if evidence.found:
        texts[f"{name}-claims.csv"] = to_csv(claim_rows(evidence))
        texts[f"{name}-comparisons.csv"] = to_csv(contest_rows(evidence.found))
    with storing(to):
        to.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (to / file).write_text(text, "utf-8")
    return [to / file for file in texts]


def _setting_row(line: Line) -> Row:
    row: Row = {**line.values, "seeds": line.done, "planned": line.planned, "diverged": line.diverged}
    for cell in line.cells:
        name = str(cell.measure)
        row |= {name: cell.mean, f"{name} low": cell.low, f"{name} high": cell.high, f"{name} printed": cell.printed}
        row[f"{name} difference"] = _gap(cell)
    return row


def _claim_row(evidence: Evidence, one: Found) -> Row:
    agree, printed = evidence.agreement(one)
    return {
        "study": evidence.study.id,
        "claim": one.claim.id,
        "says": one.claim.says,
        "check": one.claim.check,
        "verdict": verdict_words(one),
        "rests on": rests_on(one),
        "needed": one.needed,
        "paper's own numbers": f"agree in {agree} of {printed}" if printed else None,
        "remark": " ".join(one.claim.remark.split()) or None,
        "scale": evidence.answers.scale,
    }


def _on_its_data(evidence: Evidence) -> bool:
    """Whether the printed numbers are of the data that ours are of."""
    return {run.spec["data"]["dataset"] for run in evidence.answers.runs} <= set(evidence.artefact.data)


def _gap(cell: Cell) -> float | None:
    return None if cell.mean is None or cell.printed is None else cell.mean - cell.printed


def _title(measure: Measure) -> str:
    split, _, curve = measure.of.partition("/")
    what = split if curve == "accuracy" else f"{split} {curve}".strip()
    limit = f" {measure.limit[0]} {measure.limit[1]:g}" if measure.limit else ""
    return f"{what}{limit}, {NAMES.get(measure.name, measure.name)}"


def _shown(measure: Measure) -> Callable[[float | None], str]:
    in_percent = (measure.of.endswith("accuracy") and measure.name != "correlation") or measure.name == "share"

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.2f}" if in_percent else f"{value:.4g}"

    return shown


def _interval(name: str, measure: Measure) -> Callable[[Row], str]:
    shown = _shown(measure)

    def cell(row: Row) -> str:
        low, high = row[f"{name} low"], row[f"{name} high"]
        return shown(row[name]) + (f" ({shown(low)} to {shown(high)})" if low is not None else "")

    return cell


def _digits(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _seeds(row: Row) -> str:
    said = str(row["seeds"]) if row["seeds"] == row["planned"] else f"{row['seeds']} of {row['planned']}"
    return said + (f", {row['diverged']} diverged" if row["diverged"] else "")


def _of(key: str, shown: Callable[[Any], str]) -> Callable[[Row], str]:
    return lambda row: shown(row[key])
