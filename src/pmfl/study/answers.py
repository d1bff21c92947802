"""The answers to a study's questions, from wherever they lie: stores of results, and archives of earlier ones.

An answer is looked up by its question: another machine, engine or version of torch answers the same one. What is kept
of a run here is what an archive keeps of it, so that a table or a figure is the same from either:

rounds   run_id, t, metric, split, value: every evaluation; what was recorded in every round (split "local") as means
         over the rounds since the evaluation before
clients  run_id, t, client, metric, value: accuracy, loss and weight at the last evaluation, and in how many rounds
         each client took part (metric "participations")
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmfl.errors import PmflError
from pmfl.study import frames
from pmfl.study.grid import Study
from pmfl.study.play import row_of
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.store import RunRow, Store

NOT_STARTED = "not started"
_QUESTIONS: dict[str, str] = {}  # specification -> question, which takes a while to spell out
EVERY_ROUND = "local"  # the split of what is recorded in every round


class Source(Protocol):
    """Where answers may lie."""

    def runs(self) -> list[RunRow]:
        """What is known of each run."""
        ...

    def rounds(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of whole rounds, condensed."""
        ...

    def clients(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of each client, condensed."""
        ...


class StoreSource:
    """The finished runs of a folder of results."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def runs(self) -> list[RunRow]:
        """What is known of each run, finished or not."""
        return self.store.runs()

    def rounds(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of whole rounds, condensed."""
        every = {row.run_id: int(row.spec["evaluation"]["every"]) for row in self.store.runs()}
        tables = [_condensed(frames.rounds(self.store, [run_id]), every[run_id]) for run_id in run_ids]
        return pa.concat_tables(tables) if tables else frames.empty("rounds")

    def clients(self, run_ids: Sequence[str]) -> pa.Table:
        """What was measured of each client at the last evaluation, and how often it took part."""
        clients = {row.run_id: int(row.spec["data"]["clients"]) for row in self.store.runs()}
        tables = []
        for run_id in run_ids:
            found = frames.clients(self.store, [run_id])
            last = pc.max(found["t"]).as_py()
            tables += [
                found.filter(pc.equal(found["t"], pa.scalar(last, pa.int64()))),
                _participations(frames.participation(self.store, [run_id]), run_id, clients[run_id], last or 0),
            ]
        return pa.concat_tables(tables) if tables else frames.empty("clients")


@dataclass(frozen=True)
class Answers:
    """What is known of a study: one row per question, in its order, and the tables of those that are answered.

    ``runs`` are rows as a store knows them; ``status`` is "done" for the answered ones.
    """

    study: Study
    runs: tuple[RunRow, ...]
    sources: tuple[tuple[Source, tuple[str, ...]], ...] = ()  # where the answered ones lie, by run id
    scale: str = "full"
    departures: tuple[str, ...] = ()  # in what they are not the study's own setting, besides the scale

    @property
    def done(self) -> tuple[RunRow, ...]:
        """The answered ones."""
        return tuple(run for run in self.runs if run.status == "done")

    @cached_property
    def rounds(self) -> pa.Table:
        """run_id, t, metric, split, value."""
        return pa.concat_tables([frames.empty("rounds"), *(source.rounds(ids) for source, ids in self.sources)])

    @cached_property
    def clients(self) -> pa.Table:
        """run_id, t, client, metric, value."""
        return pa.concat_tables([frames.empty("clients"), *(source.clients(ids) for source, ids in self.sources)])


def gather(
    study: Study, sources: Iterable[Source], specs: Sequence[RunSpec] | None = None, scale: str = "full"
) -> Answers:
    """The answers to a study's questions: of several to one question the first source's, and finished ones only.

    >>> gather(Study("mine", sweep={"seed": [0, 1]}), []).done
    ()
    """
    asked = list(study.runs if specs is None else specs)
    needs = study.artefact.needs if study.artefact else "training"
    kind = "" if needs == "training" else f"{needs}-"
    wanted = {f"{kind}{spec.question_id}": spec for spec in asked}
    found: dict[str, RunRow] = {}
    places: list[tuple[Source, tuple[str, ...]]] = []
    for source in sources:
        here = []
        for row in source.runs():
            question = question_of(row)
            if question not in wanted or found.get(question, row).status == "done" != row.status:
                continue
            if question in found and found[question].status == "done":
                continue
            found[question] = replace(row, question_id=question)
            if row.status == "done":
                here.append(row.run_id)
        places.append((source, tuple(here)))
    runs = tuple(
        found.get(question) or replace(row_of(spec, study.id), status=NOT_STARTED) for question, spec in wanted.items()
    )
    return Answers(study, runs, tuple(places), scale)


def from_store(store: Store, study: Study) -> Answers:
    """The answers that one folder of results holds."""
    return gather(study, [StoreSource(store)])


def kind_of(run_id: str) -> str:
    """How a run came about: by training, or made from its world or by a clock, which is no answer to the same question.

    >>> kind_of("0123456789ab"), kind_of("world-0123456789ab")
    ('training', 'world')
    """
    kind, dash, _ = run_id.partition("-")
    return kind if dash and kind in ("world", "clock") else "training"


def question_of(row: RunRow) -> str:
    """The question a run answers, in today's words: what was not yet a setting then had its default.

    A run of somebody's own code answers only for the code it was played with, and keeps the name it was given.
    """
    spec = row.spec
    kind = kind_of(row.run_id)
    if kind != "training":
        return f"{kind}-{run_spec(dict(spec)).question_id}"
    names = [spec["data"]["dataset"], spec["method"]["name"], spec["training"]["model"]["name"]]
    names += [spec["data"]["partition"]["name"], spec["participation"]["pattern"]["name"]]
    if any(":" in name or name == "trace" for name in names):
        return row.question_id
    known = json.dumps(spec, sort_keys=True)
    if known not in _QUESTIONS:
        try:
            _QUESTIONS[known] = run_spec(dict(spec), f"run {row.run_id}").question_id
        except PmflError:
            return row.question_id  # asked in words that are no longer understood
    return _QUESTIONS[known]


def _condensed(table: pa.Table, every: int) -> pa.Table:
    """Evaluations as they are; what was recorded in every round as means over the rounds since the last evaluation."""
    always = pc.equal(table["split"], EVERY_ROUND)
    local, rest = table.filter(always), table.filter(pc.invert(always))
    if not len(local):
        return rest
    last = int(pc.max(local["t"]).as_py())
    window = np.minimum((local["t"].to_numpy() // every + 1) * every - 1, last)
    local = local.set_column(local.schema.get_field_index("t"), "t", pa.array(window, pa.int64()))
    means = local.group_by(["run_id", "t", "metric", "split"], use_threads=False).aggregate([("value", "mean")])
    means = means.rename_columns([name.removesuffix("_mean") for name in means.column_names])
    return pa.concat_tables([rest, means.select(table.column_names)])


def _participations(table: pa.Table, run_id: str, clients: int, t: int) -> pa.Table:
    times = np.bincount(table["client"].to_numpy(), minlength=clients).astype(np.float64)
    columns = [[run_id] * clients, np.full(clients, t), np.arange(clients), ["participations"] * clients, times]
    return pa.table(columns, schema=frames.empty("clients").schema)
