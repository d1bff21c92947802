"""What the answers to a study amount to: numbers per setting beside the printed ones, verdicts, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pmfl.study.answers import Answers
from pmfl.study.claims import Contest, Found, Table, check, printed_agreement
from pmfl.study.expression import OVER_SEEDS, Measure
from pmfl.study.measures import Recorded
from pmfl.study.sections import Artefact
from pmfl.study.settings import plain
from pmfl.study.statistics import Ranked, bca, friedman
from pmfl.study.store import RunRow

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A measure of a setting: mean and 95 % interval over seeds, and what the paper printed."""

    measure: Measure
    seeds: int
    mean: float | None
    low: float | None
    high: float | None
    printed: float | None = None


@dataclass(frozen=True)
class Line:
    """A setting of a study and its numbers."""

    values: Mapping[str, Any]  # swept key -> value
    done: int
    planned: int
    diverged: int
    cells: tuple[Cell, ...]


class Evidence:
    """All that is said of a study, from its answers."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.study = answers, answers.study
        self.artefact = answers.study.artefact or Artefact(artefact="beyond the paper", shows=answers.study.title)

    @cached_property
    def recorded(self) -> Recorded:
        """The tables of the answers, by run and metric."""
        specs = {row.run_id: row.spec for row in self.answers.done}
        return Recorded(self.answers.rounds, self.answers.clients, specs)

    @cached_property
    def table(self) -> Table:
        """The runs by what they were set to."""
        return Table(self.answers)

    @cached_property
    def found(self) -> list[Found]:
        """The verdict on each claim."""
        return [check(claim, self.table, self.recorded) for claim in self.study.checks]

    @cached_property
    def lines(self) -> list[Line]:
        """One per setting, in the order of the study."""
        groups: dict[tuple[str, ...], list[RunRow]] = {}
        values: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for row, known in self.table.rows:
            which = tuple(map(repr, known.values()))
            groups.setdefault(which, []).append(row)
            values[which] = known
        return [self._line(values[which], rows) for which, rows in groups.items()]

    @cached_property
    def ranks(self) -> tuple[list[str], Ranked] | None:
        """Methods ranked over the settings in which all of them have answers, by the measure the paper prints."""
        which = next((m for m in self.artefact.measured if m.name == self.artefact.measure and "test/" in m.of), None)
        names = [plain(name) for name in self.table.sweep.get("method", ())]
        if which is None or len(names) < 2 or any(key.startswith("method.") for key in self.study.sweep):
            return None
        blocks: dict[tuple[str, ...], dict[str, float]] = {}
        for line in self.lines:
            mean = next(cell.mean for cell in line.cells if cell.measure == which)
            block = tuple(repr(value) for key, value in line.values.items() if key != "method")
            if mean is not None:
                blocks.setdefault(block, {})[line.values["method"]] = mean
        known = [name for name in names if any(name in block for block in blocks.values())]
        full = [[block[name] for name in known] for block in blocks.values() if set(block) >= set(known)]
        ranked = friedman(full)
        return None if ranked is None else (known, ranked)

    def printed_of(self, values: Mapping[str, Any], curve: str) -> float | None:
        """What the paper prints for a setting, as a share."""
        printed = self.artefact.printed
        for cell in printed.cells if printed else ():
            if cell.curve == curve and all(plain(values.get(key)) == plain(value) for key, value in cell.where.items()):
                return cell.value
        return None

    def agreement(self, found: Found) -> tuple[int, int]:
        """In how many comparisons of a claim the paper's own numbers agree with it, of how many it prints."""
        return printed_agreement(found, self.artefact)

    def counts(self) -> dict[str, int]:
        """How many claims hold, do not, are undecided or were not run."""
        words = ("holds", "does not hold", "undecided", "not run")
        return {word: sum(one.verdict == word for one in self.found) for word in words}

    def _line(self, values: Mapping[str, Any], rows: Sequence[RunRow]) -> Line:
        done = [row for row in rows if row.status == "done"]
        cells = []
        for measure in self.artefact.measured:
            numbers = [x for row in done if (x := self.recorded.measured(measure, row.run_id)) is not None]
            printed = self.printed_of(values, measure.of) if measure.name == self.artefact.measure else None
            cells.append(_cell(measure, numbers, printed))
        diverged = sum(row.status == "diverged" for row in rows)
        return Line(values, len(done), len(rows), diverged, tuple(cells))


def contest_rows(found: Sequence[Found]) -> list[Row]:
    """Every comparison of every claim as plain values: what was compared, where, and what came out."""
    return [_contest_row(one, contest) for one in found for contest in one.contests]


def _contest_row(one: Found, contest: Contest) -> Row:
    part = contest.parts[0] if contest.parts else None
    judged = contest.judged[0] if contest.judged else None
    return {
        "claim": one.claim.id,
        "where": ", ".join(f"{key.rpartition('.')[2]}={plain(value)}" for key, value in contest.context.items()),
        "left": contest.left,
        "relation": one.expression.relation,
        "right": contest.right,
        "seeds": len(contest.seeds),
        "planned": contest.planned,
        "left_mean": float(np.mean(contest.values)) if contest.values else None,
        "right_mean": float(np.mean(contest.others)) if contest.others else None,
        "margin": part.mean if part else None,
        "low": _known(part.low) if part else None,
        "high": _known(part.high) if part else None,
        "effect": _known(part.effect) if part else None,
        "p_holm": max((j.p for j in contest.judged), default=None) if judged else None,
        "test": judged.test if judged else None,
        "verdict": contest.verdict,
        "needed": judged.needed if judged else None,
    }


def _cell(measure: Measure, numbers: Sequence[float], printed: float | None) -> Cell:
    if not numbers:
        return Cell(measure, 0, None, None, None, printed)
    if measure.name in OVER_SEEDS:
        return Cell(measure, len(numbers), max(numbers) - min(numbers), None, None, printed)
    low, high = bca(numbers)
    return Cell(measure, len(numbers), float(np.mean(numbers)), _known(low), _known(high), printed)


def _known(value: float) -> float | None:
    return None if value != value or value in (float("inf"), float("-inf")) else value
