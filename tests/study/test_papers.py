"""Artefacts as they are asked for: what is said of them, and what is found of them in results."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmfl.errors import SpecError
from pmfl.study import papers
from pmfl.study.answers import StoreSource
from pmfl.study.archive import add
from pmfl.study.grid import Study
from pmfl.study.papers import Asked
from pmfl.study.scales import specs
from pmfl.study.store import Store
from tests.report.stores import made_store


def test_what_is_not_the_papers_setting_is_said() -> None:
    assert Asked("table1").departures == ()
    assert Asked("table1", overrides=("participation.pattern=bernoulli",)).departures == ()
    asked = Asked("table5", data="svhn", overrides=("training.rounds=300", "data.clients=50"))
    assert asked.departures == ("300 rounds instead of 1,000", "data.clients = 50")
    assert asked.command == "pmfl paper table5 --data svhn --set training.rounds=300 --set data.clients=50"
    assert asked.stem == "table5-svhn-300-data.clients-50"
    assert Asked("table5", "half", seeds=2).command == "pmfl paper table5 --scale half --seeds 2"


def test_what_is_swept_stays_swept_over_one_value() -> None:
    study = Asked("table1", data="svhn", overrides=("participation.pattern=bernoulli",)).study
    assert study.sweep["data.dataset"] == ["svhn"]
    assert study.sweep["participation.pattern"] == ["bernoulli"]
    assert {spec.training.rounds for spec in study.runs} == {1000}


def test_only_artefacts_can_be_asked_for() -> None:
    with pytest.raises(SpecError, match="stands for no artefact"):
        Asked("smoke").study  # noqa: B018


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table V's runs of four seeds on SVHN, over 60 rounds, made up."""
    out = tmp_path_factory.mktemp("views") / "out"
    asked = Asked("table5", data="svhn", seeds=4, overrides=("training.rounds=60",))
    study = asked.study
    chosen = [spec for spec in specs(study, "full") if spec.data.partition.params["alpha"] == 0.1]
    chosen = [spec for spec in chosen if spec.participation.beta == 0.1]

    class Chosen(Study):
        runs = chosen

    made_store(out, Chosen(study.id))
    return out


def test_other_lengths_other_data_and_more_seeds_are_found(results: Path, tmp_path: Path) -> None:
    add(tmp_path / "kept", [StoreSource(Store(results))])
    for places in (papers.sources([results], []), papers.sources([], [tmp_path / "kept"])):
        ((asked, known),) = papers.views("table5", places)
        assert asked == Asked("table5", seeds=4, data="svhn", overrides=("training.rounds=60",))
        assert len(known.done) == 16
        assert known.departures == ("60 rounds instead of 1,000",)
        assert papers.views("table2", places) == [], "one setting of another study's is no evidence"
    ((_, deviation),) = papers.views("deviation", places)
    assert {run.method for run in deviation.done} == {"pmfl", "pmfl-mct"}


def test_nothing_is_played_where_all_is_known(results: Path) -> None:
    overrides = ("training.rounds=60", "data.partition.alpha=0.1", "participation.beta=0.1")
    asked = Asked("table5", seeds=4, data="svhn", overrides=overrides)
    found = papers.answer(asked, Path("nowhere"), papers.sources([results], []))
    assert len(found.done) == len(found.runs) == 16


def test_what_needs_no_training_is_made_and_kept(tmp_path: Path) -> None:
    asked = Asked("clients", seeds=2)
    found = papers.answer(asked, tmp_path, papers.sources([tmp_path], []))
    assert len(found.done) == 2
    assert (tmp_path / "made" / "rounds.parquet").is_file()
    again = papers.answers(asked, papers.sources([tmp_path], []))
    assert again.rounds.equals(found.rounds)
    assert [how.name for how, _ in papers.views("clients", papers.sources([tmp_path], []))] == ["clients"]
    assert papers.views("table3", papers.sources([tmp_path], [])) == []
