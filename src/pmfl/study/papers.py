"""The artefacts of the paper as studies: which there are, what is answered of them, and how the rest is answered."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pmfl.errors import SpecError, did_you_mean
from pmfl.study import archive
from pmfl.study.answers import Answers, Source, StoreSource, gather, kind_of
from pmfl.study.archive import Archive
from pmfl.study.grid import Study, built_in_studies, load, override_values
from pmfl.study.jobs import Watch, raise_failures, run_all
from pmfl.study.scales import FEWEST_ROUNDS, SCALES, SHARE, TINY_ROUNDS, Scale, scaled, specs
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow, Store

MADE = "made"  # the archive within a folder of results that keeps what was answered without training


@dataclass(frozen=True)
class Asked:
    """An artefact as it is asked for: at which scale, with how many seeds, on which data, with what else changed."""

    name: str
    scale: Scale = "full"
    seeds: int | None = None
    data: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def study(self) -> Study:
        """The study, with its sweep as the scale leaves it."""
        swapped = [f"data.dataset={self.data}"] if self.data else []
        study = load(self.name, [*swapped, *self.overrides])
        if not study.paper:
            raise SpecError(
                f"study {study.id} stands for no artefact of the paper: it has no section [paper]",
                hint=f"{did_you_mean(self.name, artefacts())}; `pmfl run {self.name}` plays it",
                code="S154",
            )
        # What is swept stays so, be it over one value, since claims speak of it.
        given = dict(map(_given, [*swapped, *self.overrides]))
        sweep = {key: study.sweep.get(key, given.get(key, [])) for key in load(self.name).sweep}
        kept = {key: values for key, values in {**sweep, **study.sweep}.items() if values}
        return scaled(replace(study, sweep=kept), self.scale, self.seeds)

    @property
    def command(self) -> str:
        """What makes it again."""
        words = ["pmfl paper", self.name]
        words += [f"--scale {self.scale}"] if self.scale != "full" else []
        words += [f"--seeds {self.seeds}"] if self.seeds else []
        words += [f"--data {self.data}"] if self.data else []
        return " ".join([*words, *(f"--set {override}" for override in self.overrides)])

    @property
    def stem(self) -> str:
        """What its files are called by: the study, and what is not as usual."""
        words = [self.name, self.data, self.scale if self.scale != "full" else "", *self.overrides]
        return "-".join(re.sub(r"[^\w.]+", "-", word.rpartition("rounds=")[2]).strip("-") for word in words if word)

    @property
    def departures(self) -> tuple[str, ...]:
        """In what it is not the setting that the study says, besides the scale and the data."""
        plain = replace(self, scale="full", seeds=None, overrides=()).study
        said = []
        for override in self.overrides:
            (key, given), text = _given(override), override.partition("=")[2]
            if all(value in plain.sweep.get(key, []) for value in given):
                continue  # a part of what the study varies
            if key == "training.rounds":
                usual = sorted({spec.training.rounds for spec in plain.runs})
                said.append(f"{text} rounds instead of {' or '.join(f'{n:,}' for n in usual)}")
            else:
                said.append(f"{key} = {text}")
        return tuple(said)


def _given(override: str) -> tuple[str, list[Any]]:
    key, _, text = override.partition("=")
    return key.strip(), override_values(text.strip())


class Once:
    """A source whose list of runs is read once; it does not change while a command looks at it."""

    def __init__(self, source: Source) -> None:
        self._source, self._runs = source, source.runs()

    def runs(self) -> list[RunRow]:
        """What was known when it was first read."""
        return self._runs

    def rounds(self, run_ids: Sequence[str]) -> pa.Table:
        """As the source has them."""
        return self._source.rounds(run_ids)

    def clients(self, run_ids: Sequence[str]) -> pa.Table:
        """As the source has them."""
        return self._source.clients(run_ids)


def artefacts() -> list[str]:
    """The studies that stand for an artefact of the paper, or go beyond it, tables and figures in the paper's order."""
    found = {name: load(name).artefact for name in built_in_studies()}
    known = {name: made for name, made in found.items() if made is not None}
    return sorted(known, key=lambda name: (known[name].order, name))


def sources(out: Sequence[Path], archives: Sequence[Path]) -> list[Source]:
    """Folders of results, those that exist, and archives."""
    stores = [StoreSource(Store(folder)) for folder in out if (folder / "store.sqlite").is_file()]
    kept = [Archive(folder / MADE) for folder in out if (folder / MADE).is_dir()]
    found: list[Source] = [*stores, *kept, *map(Archive, archives)]
    return [Once(source) for source in found]


def answers(asked: Asked, places: Sequence[Source]) -> Answers:
    """What is known of an artefact, without running anything."""
    study, wanted = _planned(asked)
    return replace(gather(study, places, wanted, asked.scale), departures=asked.departures)


def answer(asked: Asked, out: Path, places: Sequence[Source], *, jobs: int = 0, watch: Watch | None = None) -> Answers:
    """Run what nobody has answered, in ``out``, and return all answers. Runs that diverge are left open."""
    study, wanted = _planned(asked)
    known = answers(asked, places)
    missing = [spec for spec, row in zip(wanted, known.runs, strict=True) if row.status != "done"]
    if not missing:
        return known
    if study.artefact and study.artefact.needs != "training":
        _make(study, missing, out)
        return answers(asked, [Archive(out / MADE), *places])
    raise_failures(run_all(out, study.id, missing, jobs=jobs, watch=watch), "failed")
    return answers(asked, [StoreSource(Store(out)), *places])


def views(name: str, places: Sequence[Source]) -> list[tuple[Asked, Answers]]:
    """The ways in which an artefact can be shown from what is answered, the paper's own setting first.

    On the paper's data or on what may stand in for them; at full length, at another scale, or over as many rounds as
    were played; with all seeds that were.
    """
    artefact = load(name).artefact
    needs = artefact.needs if artefact else "training"
    rows = [row for place in places for row in place.runs() if row.status == "done" and kind_of(row.run_id) == needs]
    found: list[tuple[Asked, Answers]] = []
    shown: list[set[str]] = []
    for data in ("", *(artefact.instead if artefact else ())):
        usual = Asked(name, data=data)
        here = {spec.data.dataset for spec in _planned(usual)[1]} | {"digits"}
        mine = [row for row in rows if row.spec["data"]["dataset"] in here]
        own = {spec.training.rounds for spec in _planned(usual)[1]}
        totals = {row.total for row in mine}
        tried = [replace(usual, scale=scale) for scale in SCALES if _lengths(own, scale) & totals]
        if needs == "training":
            more = sorted(totals - own, reverse=True)
            tried += [replace(usual, overrides=(f"training.rounds={t}",)) for t in more]
        for asked in tried if mine else ():
            known = _with_all_seeds(asked, places, mine)
            ids = {row.run_id for row in known[1].done}
            settings = {str({**row.spec, "seed": 0}) for row in known[1].done}
            # One setting alone, which another study was after, says nothing of this one.
            if (len(settings) > 1 or needs == "world") and not any(ids <= other for other in shown):
                shown.append(ids)
                found.append(known)
    return found


def _lengths(rounds: set[int], scale: Scale) -> set[int]:
    """How long runs are at a scale, as far as the rule says it."""
    if scale == "tiny":
        return {TINY_ROUNDS}
    return {max(min(n, FEWEST_ROUNDS), round(n * SHARE[scale])) for n in rounds}


def _with_all_seeds(asked: Asked, places: Sequence[Source], rows: Sequence[RunRow]) -> tuple[Asked, Answers]:
    """Those seeds that were played count, also where a study asks for fewer."""
    planned = len(_planned(asked)[0].sweep.get("seed", [0]))
    most = 1 + max(row.seed for row in rows)
    if most <= planned or asked.scale != "full":
        return asked, answers(asked, places)
    more = replace(asked, seeds=most)
    done = answers(more, places).done
    used = 1 + max((row.seed for row in done), default=-1)
    chosen = replace(asked, seeds=used) if used > planned else asked
    return chosen, answers(chosen, places)


@functools.lru_cache(maxsize=256)
def _planned(asked: Asked) -> tuple[Study, tuple[RunSpec, ...]]:
    """The study and its runs: to spell out hundreds of them takes a while."""
    study = asked.study
    return study, tuple(specs(study, asked.scale))


def _make(study: Study, missing: Sequence[RunSpec], out: Path) -> None:
    """Answer without training, and keep it: a clock shows something else each time."""
    from pmfl.study.clock import clock_numbers
    from pmfl.study.made import Made, world_numbers

    how = ("clock", clock_numbers) if study.artefact and study.artefact.needs == "clock" else ("world", world_numbers)
    archive.add(out / MADE, [Made(study.id, missing, *how)])
