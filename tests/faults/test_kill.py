"""Kill it anywhere: it resumes to the same bits, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pmfl.core.keys import Key

STUDY = """
[base]
data = { clients = 10 }
participation = { mean = 0.3, pattern = "markov" }
training = { rounds = 60 }
evaluation = { every = 20 }
[sweep]
method = ["pmfl", "mifa", "fedppo"]
seed = [0, 1]
"""
MOMENTS = 20


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from pmfl.cli import main; main()", "run", "study.toml", "--out", out, "--json"]
    return subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PMFL_CHECKPOINT_SECONDS": "0"},
    )


def finish(folder: Path, out: str) -> dict[str, Any]:
    stdout, stderr = (process := start(folder, out)).communicate(timeout=240)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert isinstance(found, dict)
    return found


def models(document: dict[str, Any]) -> dict[str, str]:
    return {run["run_id"]: run["model_sha256"] for run in document["runs"]}


def leftovers(out: Path) -> list[str]:
    """Files that a finished study has no use for."""
    wanted = {"store.sqlite", "store.sqlite-wal", "store.sqlite-shm", "study.html", "mine.html"}
    return [
        str(file) for file in out.rglob("*") if file.is_file() and "runs" not in file.parts and file.name not in wanted
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], float]:
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(STUDY)
    began = time.monotonic()
    document = finish(folder, "calm")
    return folder, document, time.monotonic() - began


@pytest.mark.slow
def test_twice_gives_the_same_bits(undisturbed: tuple[Path, dict[str, Any], float]) -> None:
    folder, document, _ = undisturbed
    assert len(models(document)) == 6
    assert all(len(value) == 64 for value in models(document).values())
    assert models(finish(folder, "again")) == models(document)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["SIGKILL", "Ctrl-C", "SIGTERM"])
def test_killed_at_random_moments(undisturbed: tuple[Path, dict[str, Any], float], how: signal.Signals) -> None:
    folder, document, seconds = undisturbed
    out = f"shot-{how.name}"
    rng = Key.root(how).fold("moments").numpy()
    killed = 0
    for moment in rng.uniform(0.3, 1.0, MOMENTS if how == signal.SIGKILL else 5) * seconds:
        process = start(folder, out)
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(how)
            killed += 1
        _, stderr = process.communicate(timeout=60)
        if how != signal.SIGKILL and process.returncode != 0:
            assert process.returncode == 130, stderr
            assert "pmfl run study.toml" in stderr or "interrupted" in stderr
    assert killed > 0
    found = finish(folder, out)
    assert models(found) == models(document)
    assert all(run["rounds"] == 60 for run in found["runs"])
    assert leftovers(folder / out) == []
    assert not (folder / out / "running").exists()


@pytest.mark.slow
def test_workers_die_with_their_parent(undisturbed: tuple[Path, dict[str, Any], float]) -> None:
    folder, _, _ = undisturbed
    process = start(folder, "orphans")
    deadline = time.monotonic() + 60
    while not list((folder / "orphans").glob("running/*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def children(pid: int) -> list[int]:
    return [int(word) for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
