from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pmfl.cli import main
from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.study.bench import contest, process, references, rounds, suite, workload
from pmfl.study.bench.ceiling import ceiling
from pmfl.study.bench.contest import Contender
from pmfl.study.bench.watch import PARTS
from pmfl.study.run import Run

SMALL: dict[str, Any] = {"clients": 4, "participants": 2, "iterations": 2, "batch": 4}


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "SAMPLES", 800)
    monkeypatch.setattr(workload, "TEST", 100)
    monkeypatch.setattr("pmfl.study.bench.ceiling.SECONDS", 0.01)
    monkeypatch.setattr("pmfl.study.bench.ceiling.SIDE", 64)


def test_a_round_is_timed_and_its_time_is_accounted_for() -> None:
    found = rounds.time_run(workload.workload("pmfl", **SMALL), rounds=2, workers=2)
    assert len(found["seconds"]["all"]) == 2
    assert found["seconds"]["min"] <= found["seconds"]["median"]
    assert tuple(found["shares"]) == PARTS
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=0.05)
    assert found["shares"]["history forwards"] > 0
    assert found["peak MB"] > 50
    assert 0 < found["of the convolution ceiling"] < 2
    assert found["machine"]["libraries"]["torch"] == torch.__version__
    json.dumps(found)


def test_a_method_without_history_spends_no_time_on_one() -> None:
    found = rounds.time_run(workload.workload(**SMALL), rounds=1, workers=1)
    assert found["shares"]["history forwards"] == 0
    assert found["shares"]["evaluation"] > 0


def test_lanes_are_timed_without_shares() -> None:
    section, workers = rounds.engine_of("lanes:2")
    found = rounds.time_run(workload.workload(**SMALL, engine=section), rounds=1, workers=workers)
    assert found["shares"] == {}
    assert found["engine"]["lanes"] == 2


def test_clients_start_with_the_memory_of_one_that_took_part_before() -> None:
    run = Run(workload.workload("pmfl", **SMALL))
    rounds.fill(run)
    filled = [int(run.engine.memories.get(k, lambda: None).history.filled) for k in range(4)]
    assert filled == [5, 5, 5, 5]
    run.close()


def test_the_workload_has_exactly_so_many_participants() -> None:
    pattern = workload.exactly(torch.zeros(10).numpy(), Key.root(0), participants=3)
    rows = [pattern.row((), t)[0] for t in range(4)]
    assert [int(row.sum()) for row in rows] == [3] * 4
    assert len({tuple(row.tolist()) for row in rows}) > 1
    with pytest.raises(SpecError, match="11 participants of 10"):
        workload.exactly(torch.zeros(10).numpy(), Key.root(0), participants=11)


def test_an_engine_may_be_on_a_device() -> None:
    assert rounds.engine_of("lanes:25@cuda:0") == ({"profile": "exact", "lanes": 25, "device": "cuda:0"}, 1)


@pytest.mark.parametrize("engine", ["ranks:2", "local:0", "local:x", "gpu", "local@cuda"])
def test_an_engine_that_cannot_be_timed_is_refused(engine: str) -> None:
    with pytest.raises(SpecError, match=engine):
        rounds.engine_of(engine)


def test_a_ceiling_is_a_rate() -> None:
    found = ceiling(2, batch=2)
    assert set(found) == {"convolution", "matrix product"}
    assert all(0 < rate < 1e5 for rate in found.values())


def test_a_device_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    assert set(ceiling(1, batch=2, device="meta")) == {"convolution", "matrix product"}
    assert waits


@pytest.mark.parametrize("which", sorted(references.REFERENCES))
def test_the_loops_to_compare_with_play_the_workload(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "CLIENTS", 4)
    monkeypatch.setattr(references, "PARTICIPANTS", 2)
    monkeypatch.setattr(references, "ITERATIONS", 2)
    monkeypatch.setattr(references, "BATCH", 4)
    monkeypatch.setattr(references, "workload", lambda engine: workload.workload(**SMALL, engine=engine))
    monkeypatch.setenv("PB_OUT", str(tmp_path / "out.json"))
    monkeypatch.setattr(sys, "argv", ["references", which, "--rounds", "2"])
    references.main()
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["rounds"]) == 2
    assert found["startup"] > 0


PEER = """
import json, os, sys
assert sys.argv[1:] == ["--rounds", "4"]
json.dump({"startup": 1.5, "rounds": [9.0, 9.0, float(os.environ["PACE"]), 2.0]}, open(os.environ["PB_OUT"], "w"))
"""


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    (tmp_path / "peer.py").write_text(PEER)
    command = f"command = '{sys.executable} {tmp_path}/peer.py'"
    (tmp_path / "peers.toml").write_text(
        f"[slow]\n{command}\nenv = {{ PACE = '4' }}\n[quick]\n{command}\nenv = {{ PACE = '2' }}\n"
        f"[wrong]\n{command}\n[absent]\ncommand = './no-such-program'\n"
    )
    return tmp_path / "peers.toml"


def test_programs_take_turns_and_are_ranked(peers: Path) -> None:
    told: list[str] = []
    contenders = contest.read_peers(peers)
    rows = contest.standings(contest.contest(contenders, rounds=4, repeats=2, tell=told.append), "quick")
    by_name = {row["program"]: row for row in rows}
    assert [row["program"] for row in rows[:2]] == ["quick", "slow"]
    assert by_name["slow"]["seconds"] == 3.0
    assert by_name["slow"]["ratio"] == 1.5
    assert by_name["quick"]["repeats"] == 2
    assert by_name["quick"]["first round"] == 9.0
    assert "KeyError: 'PACE'" in by_name["wrong"]["error"]
    assert "cannot be started" in by_name["absent"]["error"]
    assert [line.split()[1][:-1] for line in told] == ["slow", "quick", "wrong", "absent"] * 2
    assert "| slow | 3.000 | 3.000–3.000 | 1.50 | 1.5 | 9.00 |" in suite.standing(by_name["slow"])
    assert "exit code" in suite.standing(by_name["wrong"])


def test_a_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "PATIENCE", 0.2)
    forever = Contender("forever", [sys.executable, "-c", "import time; time.sleep(60)"])
    assert "took more than" in contest.play(forever, 1)["error"]


@pytest.mark.parametrize("text", ["[a]\nrun = 'x'", "a = 1", "["])
def test_a_file_of_programs_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "peers.toml").write_text(text)
    with pytest.raises(SpecError, match=r"peers\.toml"):
        contest.read_peers(tmp_path / "peers.toml")


def test_our_own_programs_are_both_profiles_by_threads_and_by_processes_and_two_loops() -> None:
    assert [(one.name, one.command[-1]) for one in contest.ours(("exact", "fast"))] == [
        ("pmfl exact", "exact"),
        ("pmfl fast", "fast"),
        (f"pmfl exact, {rounds.cores()} ranks", "exact-ranks"),
        (f"pmfl fast, {rounds.cores()} ranks", "fast-ranks"),
        ("tuned loop", "tuned"),
        ("naive loop", "naive"),
    ]


def pmfl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["pmfl", "bench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().out


SHORT = ("--clients", "4", "--participants", "2", "--iterations", "2", "--batch", "4", "--rounds", "1")


def test_the_command_says_it_in_words_and_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = pmfl(monkeypatch, capsys, "round", *SHORT, "--engine", "local:1")
    assert code == 0
    assert "1 workers" in out
    assert "everything else" in out
    code, out = pmfl(monkeypatch, capsys, "round", *SHORT, "--json", "--profile", "fast")
    assert code == 0
    assert json.loads(out)["engine"]["profile"] == "fast"


def test_everything_is_measured_by_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], peers: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("pmfl.study.bench.contest.ours", lambda profiles: [])
    monkeypatch.setattr(suite, "ours", lambda profiles: [])
    monkeypatch.setattr(suite, "METHODS", ("fedavg", "mifa"))
    monkeypatch.setattr(suite, "ITERATIONS", (1,))
    monkeypatch.setattr(
        suite,
        "_alone",
        lambda method: rounds.time_run(workload.workload(method, **SMALL), rounds=1, workers=1),
    )
    small = workload.workload
    monkeypatch.setattr(suite, "workload", lambda method, clients, **rest: small(method, **{**SMALL, **rest}))
    words = ("--rounds", "4", "--repeats", "1", "--peers", str(peers))
    code, out = pmfl(monkeypatch, capsys, "all", *words, "--to", str(tmp_path / "benchmarks"))
    assert code == 0
    data, page = map(Path, out.split())
    assert json.loads(data.read_text())["profiles in turns"]["pmfl fast"]["median"] > 0
    text = page.read_text()
    assert "| slow | 3.000" in text
    assert "| mifa |" in text
    assert "| pmfl, E = 1 |" in text
    code, out = pmfl(monkeypatch, capsys, "compare", *words, "--json")
    assert [row["program"] for row in json.loads(out)][:2] == ["quick", "slow"]
    code, out = pmfl(monkeypatch, capsys, "compare", *words)
    assert out.startswith("| program |")


def test_one_process_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def play(words: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0, '{"method": "pmfl"}', "")

    monkeypatch.setattr(subprocess, "run", play)
    assert suite._alone("pmfl") == {"method": "pmfl"}
    assert asked[0][-5:] == ["bench", "round", "--method", "pmfl", "--json"]


def test_where_a_system_tells_nothing_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "PROC", tmp_path)
    assert process.age() != process.age()  # not a number
    assert process.resident(1) == 0
    assert isinstance(process.machine()["cpu"], str)
    assert process._version("no-such-package") == ""


def test_the_commit_is_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "__file__", str(tmp_path / "src" / "process.py"))
    git = tmp_path / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "refs/heads/main").write_text("0123456789abcdef\n")
    assert process._commit() == "0123456789ab"
    (git / "HEAD").write_text("fedcba9876543210\n")
    assert process._commit() == "fedcba987654"
    (git / "HEAD").write_text("ref: refs/heads/gone\n")
    assert process._commit() == ""
