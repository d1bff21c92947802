"""How a study's runs fall into panels, series and seeds: everything that is laid out follows this order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pmfl.study.answers import NOT_STARTED
from pmfl.study.grid import Study
from pmfl.study.settings import plain, setting_of
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow, Store


@dataclass(frozen=True)
class Setting:
    """All seeds of one combination of swept values."""

    values: Mapping[str, Any]  # swept key -> value, the method first; never the seed
    panel: str  # which chart it belongs to: what differs besides the method, in words
    label: str  # its name within the panel
    runs: tuple[RunRow, ...]

    @property
    def done(self) -> tuple[RunRow, ...]:
        """Its finished runs."""
        return tuple(run for run in self.runs if run.status == "done")

    @property
    def shown(self) -> tuple[RunRow, ...]:
        """The runs to draw: those that are done, or else those that have begun."""
        return self.done or tuple(run for run in self.runs if run.t)


def runs_of(store: Store, study: Study, specs: Sequence[RunSpec] | None = None) -> list[RunRow]:
    """What is known of each run of a study, in its order; runs nobody has asked for yet are there too.

    A run that was played by another version of the software, or by another engine, answers the same question and is
    taken where there is no better one.
    """
    from pmfl.study.play import row_of

    known = store.runs()
    by_run = {row.run_id: row for row in known}
    by_question = {row.question_id: row for row in known if row.status == "done"}
    found = []
    for spec in study.runs if specs is None else specs:
        mine = by_run.get(spec.run_id)
        if mine is None or mine.status != "done":
            mine = by_question.get(spec.question_id, mine)
        found.append(mine or replace(row_of(spec, study.id), status=NOT_STARTED))
    return found


def settings(study: Study, runs: Sequence[RunRow]) -> list[Setting]:
    """The runs by setting, in the order in which settings appear."""
    keys = ["method", *(key for key in study.sweep if key not in ("method", "seed"))]
    groups: dict[tuple[str, ...], list[RunRow]] = {}
    values: dict[tuple[str, ...], dict[str, Any]] = {}
    for run in runs:
        found = {key: setting_of(run.spec, key, study.sweep.get(key, ())) for key in keys}
        which = tuple(map(repr, found.values()))
        groups.setdefault(which, []).append(run)
        values[which] = found
    own = [key for key in keys if key.startswith("method")]
    rest = [key for key in keys if key not in own and len({repr(v[key]) for v in values.values()}) > 1]
    if len({repr([v[key] for key in own]) for v in values.values()}) == 1 and rest:
        own, rest = rest, []  # one method under several conditions: the conditions are what is compared
    short = short_names(keys)
    return [
        Setting(found, words(found, rest, short), words(found, own, short), tuple(groups[which]))
        for which, found in values.items()
    ]


def panels(found: Iterable[Setting]) -> dict[str, list[Setting]]:
    """The settings by panel."""
    by_panel: dict[str, list[Setting]] = {}
    for setting in found:
        by_panel.setdefault(setting.panel, []).append(setting)
    return by_panel


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last words of dotted keys that still tell them apart.

    >>> short_names(["data.partition.alpha", "training.rounds"])
    {'data.partition.alpha': 'alpha', 'training.rounds': 'rounds'}
    """
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: _spaced(key.removeprefix("method.")) if last.count(word) > 1 else _spaced(word)
        for key, word in zip(keys, last, strict=True)
    }


def words(values: Mapping[str, Any], keys: Sequence[str], short: Mapping[str, str]) -> str:
    """Some of a setting's values in words, with the names of those that are numbers."""
    said = []
    for key in keys:
        value = values[key]
        if key == "method" or isinstance(value, str):
            said.append(plain(value))
        elif value is not None:
            said.append(f"{short[key]} {plain(value)}")
    return " · ".join(said)


def _spaced(word: str) -> str:
    return word.replace(".", " ").replace("_", " ")
