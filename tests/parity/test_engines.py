"""The same bits on every engine, however many ranks, and however often a run was interrupted on the way."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from pmfl.methods import BUILT_IN
from pmfl.study import frames
from pmfl.study.books import Books
from pmfl.study.crews import Team, start_crew
from pmfl.study.jobs import run_all
from pmfl.study.play import play_run, play_together, row_of
from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.store import Store

METHODS = sorted(BUILT_IN)
ROUNDS = 8


def spec(method: str, rounds: int = ROUNDS, **engine: Any) -> RunSpec:
    return run_spec(
        {
            "method": method,
            "data": {"clients": 11},
            "participation": {"pattern": "markov", "mean": 0.4},
            "training": {
                "rounds": rounds,
                "iterations": 2,
                "batch_size": 4,
                "model": {"name": "mlp", "hidden": 8},
            },
            "evaluation": {"every": 3, "train_every": 6, "deviation": True},
            "engine": engine,
        }
    )


def specs(**engine: Any) -> list[RunSpec]:
    wide = [spec(method, **{**engine, "lanes": 4}) for method in ("pmfl", "fedppo", "mifa")]
    return [*(spec(method, **engine) for method in METHODS), *wide]


def answers(out: Path) -> dict[str, Any]:
    """All that finished runs say: their models, their curves, numbers of clients, and who took part."""
    store = Store(out)
    rows = store.runs()
    assert {row.status for row in rows} == {"done"}
    tables = (frames.rounds, frames.clients, frames.participation)
    found = {
        row.run_id: [row.model_sha256, *(table(store, [row.run_id]).to_pydict() for table in tables)] for row in rows
    }
    store.close()
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("local") / "out"
    play(out, specs())
    return answers(out)


def play(out: Path, asked: list[RunSpec], stop_after: int = 10**6) -> list[str]:
    store = Store(out, create=True)
    ends = []
    for one in asked:
        store.add(row_of(one, "study"))
        ends.append(str(play_run(store, one, after(stop_after))))
    store.close()
    return ends


def after(rounds: int) -> Any:
    """Stop after some rounds."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= rounds - 1


@pytest.mark.parametrize("method", METHODS)
def test_two_workers_give_the_bits_of_one(expected: dict[str, Any], method: str) -> None:
    run = Run(spec(method), workers=2)
    list(run)
    run.close()
    assert model_sha256(run.w) == expected[spec(method).run_id][0]


@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_give_the_bits_of_one_process(tmp_path: Path, expected: dict[str, Any], ranks: int) -> None:
    run_all(tmp_path, "study", specs(kind=f"ranks:{ranks}"), jobs=1)
    found = answers(tmp_path)
    assert found == expected
    assert len(found) == len(METHODS) + 3


@pytest.mark.slow
def test_interrupted_here_and_resumed_there(tmp_path: Path, expected: dict[str, Any]) -> None:
    asked = specs()
    assert set(play(tmp_path, asked, stop_after=2)) == {"interrupted"}
    in_a_crew(2, tmp_path, specs(memory="mmap", memory_gb=1e-6), stop_after=2)
    in_a_crew(3, tmp_path, asked, stop_after=2)
    store = Store(tmp_path)
    assert {(row.t, row.status, row.resumed) for row in store.runs()} == {(6, "interrupted", 2)}
    store.close()
    assert set(play(tmp_path, asked)) == {"done"}
    assert answers(tmp_path) == expected


def in_a_crew(ranks: int, out: Path, asked: list[RunSpec], stop_after: int) -> None:
    team: Team = start_crew(ranks, play_some, (out, asked, stop_after))
    for worker in team.workers:
        worker.join(120)
    assert [worker.exitcode for worker in team.workers] == [0] * ranks


def play_some(join: Any, out: Path, asked: list[RunSpec], stop_after: int) -> None:
    warnings.simplefilter("ignore")  # coverage warns at the end of a process, which would be its exit code
    crew = join("cpu")
    books = Books(out, Store(out) if crew.leads else None, crew)
    for one in asked:
        # Only one rank is told to stop, and not the one that leads.
        stop = after(stop_after) if crew.rank == crew.world - 1 else (lambda: False)
        assert play_together(books, one, stop) == "interrupted"
    crew.leave()


@pytest.mark.parametrize("method", ["fedavg", "pmfl"])
def test_eight_lanes_stay_with_one(method: str) -> None:
    models = []
    for lanes in (1, 8):
        run = Run(spec(method, rounds=50, lanes=lanes))
        list(run)
        run.close()
        models.append(run.w)
    assert float((models[0] - models[1]).abs().max()) <= 1e-5
