"""The artefacts of the paper as studies: which there are, what is answered of them, and how the rest is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pmfl.errors import SpecError, did_you_mean
from pmfl.study.answers import Answers, Source, StoreSource, gather
from pmfl.study.archive import Archive
from pmfl.study.grid import Study, built_in_studies, load
from pmfl.study.jobs import Watch, raise_failures, run_all
from pmfl.study.scales import Scale, scaled, specs
from pmfl.study.store import Store


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
        return scaled(study, self.scale, self.seeds)


def artefacts() -> list[str]:
    """The studies that stand for an artefact of the paper, or go beyond it, tables and figures in the paper's order."""
    found = {name: load(name).artefact for name in built_in_studies()}
    known = {name: made for name, made in found.items() if made is not None}
    return sorted(known, key=lambda name: (known[name].order, name))


def sources(out: Sequence[Path], archives: Sequence[Path]) -> list[Source]:
    """Folders of results, those that exist, and archives."""
    stores = [StoreSource(Store(folder)) for folder in out if (folder / "store.sqlite").is_file()]
    return [*stores, *map(Archive, archives)]


def answers(asked: Asked, places: Sequence[Source]) -> Answers:
    """What is known of an artefact, without running anything."""
    study = asked.study
    return gather(study, places, specs(study, asked.scale), asked.scale)


def answer(asked: Asked, out: Path, places: Sequence[Source], *, jobs: int = 0, watch: Watch | None = None) -> Answers:
    """Run what nobody has answered, in ``out``, and return all answers. Runs that diverge are left open."""
    study = asked.study
    wanted = specs(study, asked.scale)
    known = gather(study, places, wanted, asked.scale)
    answered = {row.question_id for row in known.done}
    missing = [spec for spec in wanted if spec.question_id not in answered]
    if not missing:
        return known
    raise_failures(run_all(out, study.id, missing, jobs=jobs, watch=watch), "failed")
    return gather(study, [StoreSource(Store(out)), *places], wanted, asked.scale)
