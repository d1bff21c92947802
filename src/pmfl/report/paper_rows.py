"""From the answers to a study to the rows that its figures draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmfl.report.gather import FloatArray, Rows, curve
from pmfl.report.series import Setting, settings, short_names, words
from pmfl.study.settings import look_up, plain
from pmfl.study.spec import RunSpec
from pmfl.study.statistics import bca
from pmfl.study.store import RunRow

if TYPE_CHECKING:
    from pmfl.study.answers import Answers


LETTERS = {
    "alpha": "α",
    "beta": "β",
    "cutoff": "C",
    "contrast_weight": "λ",
    "client_lr": "η_l",
    "server_lr": "η_g",
    "local_models": "N",
    "global_models": "H",
    "clients": "K",
    "iterations": "E",
    "mean": "E[p]",
}  # of the paper, by the last word of our keys


@dataclass(frozen=True)
class Placed:
    """A setting and where it stands: in which panel, in which series, and at which point of the axis."""

    setting: Setting
    panel: str
    label: str
    x: str

    @property
    def done(self) -> tuple[RunRow, ...]:
        """Its finished runs."""
        return self.setting.done


def placed(answers: Answers, *, series: Sequence[str] = ("method",), x: str = "") -> list[Placed]:
    """The settings of a study, laid out: ``x`` is the key along the axis, ``series`` makes a line, the rest panels.

    A series key also stands for all below it: ``method`` includes the swept parameters of methods.
    """
    found = settings(answers.study, answers.runs)
    keys = list(found[0].values) if found else []
    short = short_names(keys)
    varied = [key for key in keys if key != x and len({repr(setting.values[key]) for setting in found}) > 1]
    own = [key for key in varied if any(key == word or key.startswith(f"{word}.") for word in series)]
    rest = [key for key in varied if key not in own]
    return [
        Placed(
            setting,
            words(setting.values, rest, short),
            words(setting.values, own, short) or plain(setting.values["method"]),
            plain(setting.values[x]) if x else "",
        )
        for setting in found
        if not x or setting.values[x] is not None
    ]


def axes_of(answers: Answers, many: int) -> tuple[list[str], tuple[str, ...]]:
    """The swept keys to draw along axes, those with most numbers first, and what then tells series apart.

    Series are methods where there are several, else the other key with most values.
    """
    found = settings(answers.study, answers.runs)
    keys = list(found[0].values) if found else []
    known = {key: {repr(one.values[key]) for one in found} for key in keys}
    varied = {key: len(values) for key, values in known.items() if len(values) > 1}
    numeric = [key for key in varied if _is_number(answers.study.sweep.get(key, ()))]
    axes = sorted(numeric, key=lambda key: -varied[key])[:many]
    own = [key for key in varied if key.split(".")[0] == "method" and key not in axes]
    rest = sorted((key for key in varied if key not in axes), key=lambda key: -varied[key])
    return axes, ("method",) if own else tuple(rest[:1])


def axis_name(key: str) -> str:
    """What an axis is called: the last word of a dotted key, and the paper's letter for it.

    >>> axis_name("method.pmfl.cutoff"), axis_name("training.client_lr")
    ('cutoff C', 'client lr η_l')
    """
    word = key.rpartition(".")[2]
    return f"{word.replace('_', ' ')} {LETTERS.get(word, '')}".strip()


def number(run: RunRow, curve_name: str, measure: str) -> float | None:
    """What a run comes to, e.g. test/accuracy as top5_mean; None where it was not measured."""
    value = (run.metrics or {}).get(curve_name, {}).get(measure)
    return None if value is None or value != value else float(value)


def level_rows(
    found: Sequence[Placed],
    curve_name: str,
    measure: str,
    printed: Callable[[Setting, str], float | None] = lambda setting, curve_name: None,
) -> Rows:
    """Per setting: mean and 95 % interval over its seeds, and what the paper printed."""
    rows: Rows = []
    for one in found:
        numbers = [value for value in (number(run, curve_name, measure) for run in one.done) if value is not None]
        rows.append(
            {
                "panel": one.panel,
                "label": one.label,
                "x": one.x,
                **interval(numbers),
                "seeds": len(numbers),
                "printed": printed(one.setting, curve_name),
            }
        )
    return rows


def interval(numbers: Sequence[float]) -> dict[str, float | None]:
    """Mean, and the ends of its 95 % interval (BCa bootstrap) where there are two numbers or more."""
    if len(numbers) < 2:
        return {"mean": numbers[0] if numbers else None, "low": None, "high": None}
    low, high = bca(numbers)
    return {"mean": float(np.mean(numbers)), "low": low, "high": high}


def curve_rows(answers: Answers, found: Sequence[Placed], metric: str, split: str, *, points: int = 200) -> Rows:
    """By round: mean over seeds, lowest and highest. Only rounds that every drawn seed has reached count."""
    tables = by_run(answers.rounds, metric, split)
    rows: Rows = []
    for one in found:
        mine = [tables[run.run_id] for run in one.done if run.run_id in tables]
        for row in curve(one.label, mine, points):
            rows.append({"panel": one.panel, "x": row.pop("round"), **row})
    return rows


def by_run(table: pa.Table, metric: str, split: str = "") -> dict[str, pa.Table]:
    """The rows of one metric, run by run, by round."""
    mask = pc.equal(table["metric"], metric)
    if split:
        mask = pc.and_(mask, pc.equal(table["split"], split))
    kept = table.filter(mask).sort_by([("run_id", "ascending"), ("t", "ascending")])
    names = kept["run_id"].to_numpy(zero_copy_only=False)
    if not len(names):
        return {}
    starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])
    ends = np.r_[starts[1:], len(names)]
    return {str(names[a]): kept.slice(int(a), int(b - a)) for a, b in zip(starts, ends, strict=True)}


def of_clients(answers: Answers, found: Sequence[Placed], metric: str) -> dict[tuple[str, str], FloatArray]:
    """(panel, series) -> the final model's metric on each client's own data, the clients of all seeds together."""
    tables = by_run(answers.clients, metric)
    pooled: dict[tuple[str, str], FloatArray] = {}
    for one in found:
        values = [tables[run.run_id]["value"].to_numpy() for run in one.done if run.run_id in tables]
        if values:
            together = np.concatenate(values)
            pooled[one.panel, one.label] = together[~np.isnan(together)]
    return pooled


def unsteadiness(curve_values: Sequence[float] | FloatArray) -> float | None:
    """How far one evaluation lies from the next on average, over the second half of a curve.

    >>> unsteadiness([0.1, 0.2, 0.5, 0.7, 0.6, 0.8])
    0.15
    """
    late = np.asarray(curve_values, np.float64)[len(curve_values) // 2 :]
    return round(float(np.abs(np.diff(late)).mean()), 12) if len(late) > 1 else None


def grouped(rows: Rows, key: str = "panel") -> dict[str, Rows]:
    """Rows by one of their words, in the order in which it appears."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def in_order(words_: Iterable[str]) -> list[str]:
    """Each word once, in the order in which it first appears."""
    return list(dict.fromkeys(words_))


def facts(answers: Answers, runs: Sequence[RunRow] | None = None) -> str:
    """Data, scale and seeds of what is drawn, for the line below a figure's title."""
    drawn = list(answers.done if runs is None else runs)
    said = _shared([run.spec for run in drawn]) if drawn else ["no finished run"]
    said += _apart(answers)
    missing = len(answers.runs) - len(answers.done)
    if missing:
        said.append(f"{missing} of {len(answers.runs)} runs not done")
    return " · ".join(said)


def specs_facts(answers: Answers, specs: Sequence[RunSpec]) -> str:
    """The same of what is drawn without a run."""
    return " · ".join(_shared([spec.model_dump(mode="json") for spec in specs]) + _apart(answers))


def _apart(answers: Answers) -> list[str]:
    """In what it is not the study's own setting."""
    scale = [] if answers.scale == "full" else [f"scale {answers.scale}, not the paper’s"]
    return [*answers.departures, *scale]


def _shared(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    said = [", ".join(in_order(str(spec["data"]["dataset"]) for spec in specs))]
    for key, text in (("data.clients", "{} clients"), ("training.rounds", "T = {}")):
        found = sorted({int(look_up(spec, key)) for spec in specs})
        said.append(text.format(_several([f"{value:,}" for value in found])))
    return [*said, _seeds(sorted({int(spec["seed"]) for spec in specs}))]


def _is_number(swept: Sequence[Any]) -> bool:
    return bool(swept) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in swept)


def _several(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    follow = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]} to {seeds[-1]}" if follow else f"{len(seeds)} seeds"
