"""Claims checked on answers: which settings are compared, seed by seed, and what the seeds can tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pmfl.errors import SpecError, did_you_mean
from pmfl.study import frames
from pmfl.study.answers import Answers, gather
from pmfl.study.expression import OVER_SEEDS, Condition, Expression, Selector
from pmfl.study.grid import Study
from pmfl.study.measures import Recorded
from pmfl.study.sections import Artefact, Claim, PrintedCell
from pmfl.study.settings import plain, setting_of
from pmfl.study.spec import RunSpec
from pmfl.study.statistics import Judged, Paired, Verdict, judge, paired
from pmfl.study.store import RunRow

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Contest:
    """One setting against another, or against a number, under the same conditions."""

    context: Settings
    left: str
    right: str
    seeds: tuple[int, ...]  # that count
    planned: int
    values: tuple[float, ...]  # of the left side, by seed
    others: tuple[float, ...]  # of the right side; empty where it is a number
    left_values: Settings  # what each side is set to
    right_values: Settings
    parts: tuple[Paired, ...] = ()  # what must be above zero: one, or both ends of a range
    judged: tuple[Judged, ...] = ()
    decided: Verdict | None = None  # where it is not a matter of chance

    @property
    def verdict(self) -> Verdict:
        """Of its parts, which must all hold."""
        if self.decided is not None:
            return self.decided
        return _all([one.verdict for one in self.judged])


@dataclass(frozen=True)
class Found:
    """A claim and what was found of it."""

    claim: Claim
    expression: Expression
    contests: tuple[Contest, ...]

    @property
    def run(self) -> tuple[Contest, ...]:
        """Those with answers on both sides."""
        return tuple(contest for contest in self.contests if contest.seeds)

    @property
    def verdict(self) -> Verdict:
        """It holds if every comparison that was run does; one that goes the other way refutes it."""
        return _all([contest.verdict for contest in self.run])

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of a comparison that was run."""
        counts = [len(contest.seeds) for contest in self.run] or [0]
        return min(counts), max(counts)

    @property
    def needed(self) -> int | None:
        """Seeds that would decide what is undecided, if effects are as large as they look; None beyond 1,000."""
        open_ = [one for contest in self.run for one in contest.judged if one.verdict == "undecided"]
        if not open_ or any(one.needed is None for one in open_):
            return None
        return max(one.needed or 0 for one in open_)

    def count(self, verdict: Verdict) -> int:
        """How many comparisons came out so."""
        return sum(contest.verdict == verdict for contest in self.run)


def check(claim: Claim, table: Table, known: Recorded) -> Found:
    """What the answers say of one claim."""
    expression, table.place = claim.expression, f"study {table.study.id}: claim {claim.id}"
    contests = [
        contest
        for context in table.contexts(expression)
        for left in expression.left
        for right in expression.right or (None,)
        if (contest := _contest(expression, table, known, context, left, right)) is not None
    ]
    judged = iter(judge([part for contest in contests for part in contest.parts]))
    return Found(
        claim, expression, tuple(replace(one, judged=tuple(next(judged) for _ in one.parts)) for one in contests)
    )


class Table:
    """The runs of a study by what they were set to, and the keys of its sweep by their last words."""

    def __init__(self, answers: Answers) -> None:
        self.study = study = answers.study
        self.place = f"study {study.id}"
        self.sweep = {key: [_scalar(value) for value in values] for key, values in study.sweep.items() if key != "seed"}
        self.keys = list(dict.fromkeys(["method", *self.sweep]))
        self.rows = [(row, settings_of(row.spec, study)) for row in answers.runs]
        self._where: dict[tuple[str, str], set[int]] = {}
        for i, (_, known) in enumerate(self.rows):
            for key, value in known.items():
                self._where.setdefault((key, plain(value)), set()).add(i)

    def key(self, word: str) -> str:
        """The swept key that a word stands for."""
        found = [key for key in self.keys if key == word or key.endswith(f".{word}")]
        if len(found) != 1:
            what = "could be any of " + ", ".join(found) if found else "is not swept by the study"
            raise SpecError(f"{self.place}: `{word}` {what}", hint=did_you_mean(word, self.keys), code="S151")
        return found[0]

    def contexts(self, expression: Expression) -> list[dict[str, Any]]:
        """Every combination of the keys after ``for each``, under the conditions after ``where``."""
        keys = [self.key(word) for word in expression.each]
        found = [dict(zip(keys, values, strict=True)) for values in itertools.product(*(self.sweep[k] for k in keys))]
        wanted = {self.key(condition.key): condition.values for condition in expression.where}
        fixed = {key: values[0] for key, values in wanted.items() if len(values) == 1}
        return [
            fixed | context
            for context in found
            if all(_any_is(context[key], values) for key, values in wanted.items() if key in context)
        ]

    def select(self, selector: Selector, context: Settings, where: Sequence[Condition]) -> list[RunRow]:
        """The runs of one setting, a seed each; none where the study does not have it (at this scale)."""
        wanted: dict[str, tuple[Any, ...]] = {self.key(condition.key): condition.values for condition in where}
        wanted |= {key: (value,) for key, value in context.items()}
        wanted |= {self.key(condition.key): condition.values for condition in selector.where}
        if selector.method:
            wanted["method"] = (selector.method,)
        places = set(range(len(self.rows)))
        for key, values in wanted.items():
            places &= set().union(*(self._where.get((key, plain(value)), set()) for value in values))
        found = [self.rows[i] for i in sorted(places)]
        kinds = {tuple((key, repr(value)) for key, value in known.items()) for _, known in found}
        if len(kinds) > 1:
            free = [key for key in self.keys if len({repr(known.get(key)) for _, known in found}) > 1]
            raise SpecError(
                f"{self.place}: `{selector}` stands for {len(kinds)} settings, which differ in {', '.join(free)}",
                hint=f"name it in brackets, after `where`, or after `for each`: {', '.join(free)}",
                code="S152",
            )
        return [row for row, _ in found]


def settings_of(spec: Mapping[str, Any] | RunSpec, study: Study) -> dict[str, Any]:
    """What a run was set to, of what its study sweeps, besides the seed."""
    plain_spec = spec.model_dump(mode="json") if isinstance(spec, RunSpec) else spec
    keys = ["method", *(key for key in study.sweep if key not in ("method", "seed"))]
    return {key: setting_of(plain_spec, key, study.sweep.get(key, ())) for key in keys}


def verify(study: Study) -> None:
    """Raise ``SpecError`` unless every claim speaks of settings that the study has, one each."""
    table = Table(gather(study, []))
    for claim in study.checks:
        asked = claim.expression
        found = check(claim, table, Recorded(frames.empty("rounds"), frames.empty("clients")))
        pairs = len(table.contexts(asked)) * len(asked.left) * max(len(asked.right), 1)
        if not pairs or len(found.contests) < pairs:
            raise SpecError(
                f"{table.place}: it compares settings that the study does not have",
                hint="compare its values with those of [sweep]",
                code="S153",
            )


def _contest(
    expression: Expression, table: Table, known: Recorded, context: Settings, left: Selector, right: Selector | None
) -> Contest | None:
    sides = [table.select(one, context, expression.where) for one in (left, right) if one is not None]
    if not all(sides):
        return None
    measured = [
        {
            row.seed: value
            for row in side
            if row.status == "done" and (value := known.measured(expression.measure, row.run_id)) is not None
        }
        for side in sides
    ]
    seeds = sorted(set.intersection(*(set(side) for side in measured)))
    values = [tuple(side[seed] for seed in seeds) for side in measured]
    others = values[1] if right is not None else ()
    set_to = [settings_of(side[0].spec, table.study) for side in sides]
    words = str(left), _right_words(expression, right)
    contest = Contest(context, *words, tuple(seeds), len(sides[0]), values[0], others, set_to[0], set_to[-1])
    if not seeds:
        return contest
    if expression.measure.name in OVER_SEEDS:
        return _over_seeds(expression, contest)
    return replace(contest, parts=_parts(expression, contest))


def _parts(expression: Expression, contest: Contest) -> tuple[Paired, ...]:
    """What must be above zero for the comparison to hold, over seeds."""
    ours, n = contest.values, len(contest.seeds)
    low = contest.others or (expression.low,) * n
    high = contest.others or (expression.high,) * n
    shift = expression.margin
    if expression.relation == ">":
        return (paired(ours, [x + shift for x in low]),)
    if expression.relation == "<":
        return (paired([x - shift for x in low], ours),)
    return paired(ours, [x - shift for x in low]), paired([x + shift for x in high], ours)


def _over_seeds(expression: Expression, contest: Contest) -> Contest:
    """A range can only grow with more seeds: too wide is final, narrow enough is so once all seeds are there."""
    spread = max(contest.values) - min(contest.values)
    narrow = spread < expression.high if expression.relation == "<" else spread > expression.low
    settled = len(contest.seeds) == contest.planned
    decided: Verdict = "holds" if narrow and settled else "undecided"
    if not narrow and (settled or expression.relation == "<"):
        decided = "does not hold"
    return replace(contest, values=(spread,), decided=decided)


def _right_words(expression: Expression, right: Selector | None) -> str:
    if right is None:
        ends = [expression.low - expression.margin, expression.high + expression.margin]
        return f"{ends[0]:g}" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g}"
    shift = f"{abs(expression.margin):g}" if expression.margin else ""
    joint = " ± " if expression.relation == "=" else " + " if expression.relation == ">" else " − "
    return f"{right}{joint if shift else ''}{shift}"


def _all(verdicts: Sequence[Verdict]) -> Verdict:
    worse: tuple[Verdict, ...] = ("does not hold", "undecided", "not run")
    for verdict in worse:
        if verdict in verdicts:
            return verdict
    return "holds" if verdicts else "not run"


def _any_is(value: Any, wanted: Sequence[Any]) -> bool:
    return plain(value) in map(plain, wanted)


def _scalar(value: Any) -> Any:
    """A swept value as ``setting_of`` says it."""
    if not isinstance(value, Mapping):
        return value
    own = {word: v for word, v in value.items() if word != "name"}
    return " ".join([value["name"], *(f"{word}={plain(v)}" for word, v in own.items())])


def printed_agreement(found: Found, artefact: Artefact) -> tuple[int, int]:
    """In how many comparisons the paper's own numbers agree with a claim, of how many it prints both sides of."""
    asked, cells = found.expression, artefact.printed.cells if artefact.printed else []
    if asked.measure.name != artefact.measure:
        return 0, 0
    agree = total = 0
    for contest in found.contests:
        ours, theirs = (_printed(cells, asked.measure.of, side) for side in (contest.left_values, contest.right_values))
        low, high = (theirs, theirs) if asked.right else (asked.low, asked.high)
        if ours is None or low is None or high is None:
            continue
        total += 1
        up, down = ours - low, high - ours
        agree += {
            ">": up > asked.margin,
            "<": down > asked.margin,
            "=": up > -asked.margin and down > -asked.margin,
            "in": up > 0 and down > 0,
        }[asked.relation]
    return agree, total


def _printed(cells: Sequence[PrintedCell], curve: str, values: Settings) -> float | None:
    for cell in cells:
        if cell.curve == curve and all(plain(values.get(key)) == plain(value) for key, value in cell.where.items()):
            return cell.value
    return None
