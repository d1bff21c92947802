"""A rank that is lost stops the run with one clear error; the same command, or torchrun, goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pmfl.errors import RankLost
from pmfl.study import crews
from pmfl.study.grid import load
from pmfl.study.jobs import run_all
from pmfl.study.store import Store

STUDY = """
[base]
data = { clients = 10 }
participation = { mean = 0.3, pattern = "markov" }
training = { rounds = 60 }
evaluation = { every = 20 }
[sweep]
method = ["pmfl", "mifa"]
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
PMFL = ["-m", "pmfl", "run", "study.toml", "--json"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("alone")
    (folder / "study.toml").write_text(STUDY)
    return models(finished(start([*PMFL, "--out", str(folder / "out")], folder)))


def start(words: list[str], folder: Path, **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PMFL_CHECKPOINT_SECONDS": "0", "TORCH_CPP_LOG_LEVEL": "ERROR", **more}
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert isinstance(found, dict)
    return found


def models(document: dict[str, Any]) -> dict[str, str]:
    return {run["run_id"]: run["model_sha256"] for run in document["runs"]}


def ranks_below(pid: int) -> list[int]:
    """The processes that are ranks: those without children, below one that was started here."""
    words = [word for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]
    below = [found for word in words for found in (ranks_below(int(word)) or [int(word)])]
    return [found for found in below if b"resource_tracker" not in Path(f"/proc/{found}/cmdline").read_bytes()]


def until_played(out: Path, rounds: int = 5) -> None:
    """Return when a run has a checkpoint after some rounds."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for index in out.glob("running/*/checkpoint.json"):
            if json.loads(index.read_text())["t"] >= rounds:
                return
        time.sleep(0.02)
    raise AssertionError("no checkpoint was written")


def test_a_rank_that_is_killed_stops_the_run(folder: Path, expected: dict[str, str]) -> None:
    command = [*PMFL, "--engine", "ranks:2", "--jobs", "1", "--out", "out"]
    process = start(command, folder)
    until_played(folder / "out")
    os.kill(ranks_below(process.pid)[1], signal.SIGKILL)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert process.returncode == 75
    assert "rank 1 of 2 was ended by SIGKILL" in stderr
    assert stderr.count("error[") == 1
    assert "hint: run the same command again" in stderr
    store = Store(folder / "out")
    assert "interrupted" in {row.status for row in store.runs()}
    store.close()
    document = finished(start(command, folder))
    assert models(document) == expected
    assert any(run["resumed"] for run in document["runs"])
    assert not (folder / "out" / "running").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ranks_that_are_asked_to_stop_write_a_checkpoint(
    folder: Path, expected: dict[str, str], how: signal.Signals
) -> None:
    command = [*PMFL, "--engine", "ranks:2", "--jobs", "1", "--out", "out"]
    process = start(command, folder)
    until_played(folder / "out")
    process.send_signal(how)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "nothing is lost" in stderr
    document = finished(start([*PMFL, "--out", "out"], folder))  # another engine goes on with it
    assert models(document) == expected
    assert any(run["resumed"] for run in document["runs"])


def test_a_rank_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]) -> None:
    monkeypatch.setattr(crews, "GRACE", 1.0)
    monkeypatch.setenv("PMFL_CHECKPOINT_SECONDS", "0")
    out, study = folder / "out", load("study.toml", ["engine.kind=ranks:2"])

    def hang() -> None:
        until_played(out)
        os.kill(ranks_below(os.getpid())[0], signal.SIGSTOP)
        began.append(time.monotonic())

    began: list[float] = []
    thread = threading.Thread(target=hang)
    thread.start()
    with pytest.raises(RankLost, match=r"rank 0 of 2 \(process \d+\) does not answer"):
        run_all(out, study.id, study.runs, jobs=1)
    thread.join()
    assert time.monotonic() - began[0] < 60
    rows = run_all(out, study.id, study.runs, jobs=1)
    assert {row.run_id: row.model_sha256 for row in rows} == expected


def test_torchrun_starts_lost_ranks_again(folder: Path, expected: dict[str, str]) -> None:
    command = [*TORCHRUN, "--max-restarts=1", "--monitor-interval=0.2", *PMFL, "--engine", "ranks", "--out", "out"]
    process = start(command, folder)
    until_played(folder / "out")
    os.kill(ranks_below(process.pid)[1], signal.SIGKILL)
    document = finished(process)
    assert models(document) == expected
    assert any(run["resumed"] for run in document["runs"])


def test_torchrun_that_is_asked_to_stop(folder: Path, expected: dict[str, str]) -> None:
    command = [*TORCHRUN, *PMFL, "--engine", "ranks", "--out", "out"]
    process = start(command, folder)
    until_played(folder / "out")
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "nothing is lost" in stderr
    store = Store(folder / "out")
    assert "interrupted" in {row.status for row in store.runs()}
    store.close()
    assert models(finished(start(command, folder))) == expected
