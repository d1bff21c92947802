"""Shoot at a running command at random moments, and see what is left.

A moment is counted in processor time of the command and its workers: where it falls in their life does not depend on
what else the machine does. Shots are spread over start-up and over the rounds that are left, so that a study is hit
many times before it is done.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmfl.core.keys import Key

TICK = os.sysconf("SC_CLK_TCK")
KEPT = {"store.sqlite", "store.sqlite-wal", "store.sqlite-shm"}  # what a finished study has besides runs and a page
FULL = """
[base]
data = { clients = 10 }
participation = { mean = 0.3, pattern = "markov" }
training = { rounds = 600 }
evaluation = { every = 20 }
[sweep]
method = ["pmfl", "mifa", "fedppo"]
seed = [0, 1]
"""
SHORT = FULL.replace("rounds = 600", "rounds = 20").replace("every = 20", "every = 10").replace("[0, 1]", "[0]")


@dataclass(frozen=True)
class Calm:
    """What an undisturbed life of the command is like."""

    folder: Path  # with study.toml in it
    document: dict[str, Any]  # what it prints
    startup: float  # processor seconds before the first round
    whole: float  # processor seconds in all

    @property
    def models(self) -> dict[str, str]:
        """The hash of every run's model."""
        return models(self.document)


@dataclass
class Outcome:
    """What came of shooting at one study until it was finished."""

    how: signal.Signals
    shots: int = 0  # that met a living process
    met: dict[str, int] = field(default_factory=dict)  # what it was doing
    wrong: list[str] = field(default_factory=list)
    equal: int = 0  # runs whose model has the hash that it has undisturbed


def start(folder: Path, out: str) -> subprocess.Popen[str]:
    """The command, on its way; checkpoints after every round, so that a shot may meet one."""
    command = [sys.executable, "-c", "from pmfl.cli import main; main()", "run", "study.toml", "--out", out, "--json"]
    return subprocess.Popen(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PMFL_CHECKPOINT_SECONDS": "0", "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # as a terminal's command is a group of its own, which Ctrl-C goes to
    )


def finish(folder: Path, out: str) -> dict[str, Any]:
    """Let the command end by itself; what it prints."""
    stdout, stderr = (process := start(folder, out)).communicate(timeout=280)
    assert process.returncode == 0, stderr
    found = json.loads(stdout)
    assert isinstance(found, dict)
    return found


def calm(folder: Path, study: str = FULL) -> Calm:
    """Live once without being shot at."""
    (folder / "study.toml").write_text(study, "utf-8")
    process = start(folder, "calm")
    startup = whole = 0.0
    while process.poll() is None:
        whole = max(whole, cpu_seconds(process.pid))
        if not startup and list((folder / "calm").glob("running/*")):
            startup = whole
        time.sleep(0.01)
    stdout, stderr = process.communicate(timeout=280)
    assert process.returncode == 0, stderr
    return Calm(folder, json.loads(stdout), startup, whole)


def shoot(calm: Calm, how: signal.Signals, shots: int, out: str, seed: int = 0) -> Outcome:
    """Shoot at random moments, starting again each time; then let it end, and compare with the calm life."""
    outcome = Outcome(how)
    rng = Key.root(seed).fold(how.name).numpy()
    reach = calm.startup + 2 * (calm.whole - calm.startup) / shots
    for _ in range(2 * shots):  # some find that the command has ended before
        if outcome.shots == shots:
            break
        process = start(calm.folder, out)
        doing = _wait(process, rng.uniform(0, reach), deaf=how != signal.SIGKILL)
        if doing:
            if how == signal.SIGINT:
                os.killpg(process.pid, how)
            else:
                process.send_signal(how)
            outcome.shots += 1
            outcome.met[doing] = outcome.met.get(doing, 0) + 1
        _, stderr = process.communicate(timeout=120)
        outcome.wrong += _farewell(how, process.returncode, stderr)
    found = finish(calm.folder, out)
    outcome.equal = len(models(found).items() & calm.models.items())
    if models(found) != calm.models:
        outcome.wrong.append(f"models {models(found)}, undisturbed {calm.models}")
    if [run["rounds"] for run in found["runs"]] != [run["rounds"] for run in calm.document["runs"]]:
        outcome.wrong.append("a run has lost rounds")
    outcome.wrong += [f"left behind: {file}" for file in leftovers(calm.folder / out)]
    return outcome


def models(document: dict[str, Any]) -> dict[str, str]:
    """The hash of every run's model."""
    return {run["run_id"]: run["model_sha256"] for run in document["runs"]}


def leftovers(out: Path) -> list[str]:
    """Files and folders that a finished study has no use for."""
    sealed = {"rounds.parquet", "clients.parquet", "participation.parquet", "spec.toml", "final.safetensors"}
    sealed |= {"summary.json", "MANIFEST.json"}
    found = []
    for path in sorted(out.rglob("*")):
        place = path.relative_to(out)
        if path.is_dir():
            fine = place == Path("runs") or (place.parts[0] == "runs" and len(place.parts) == 2)
        elif place.parts[0] == "runs":
            fine = path.name in sealed and len(place.parts) == 3
        else:
            fine = path.name in KEPT or path.name == "study.html"
        if not fine:
            found.append(str(place))
    return found


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def alive(pid: int) -> bool:
    """Whether a process is there and not just waiting to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of all that it has started."""
    total = 0
    for one in (pid, *descendants(pid)):
        try:
            words = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, words[11:15]))  # user and system time, of itself and of children that ended
    return total / TICK


def _wait(process: subprocess.Popen[str], moment: float, *, deaf: bool) -> str:
    """Wait for a moment; what the command is doing then, or nothing if it has ended before.

    Before the interpreter has come to our first line it follows its own rules; a signal meant for us waits for that.
    """
    while process.poll() is None:
        if cpu_seconds(process.pid) >= moment and not (deaf and not _listens(process.pid)):
            plays = any(True for child in descendants(process.pid) for _ in descendants(child))
            return "playing" if plays else "starting or ending"
        time.sleep(0.005)
    return ""


def _listens(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _farewell(how: signal.Signals, code: int, stderr: str) -> list[str]:
    """What is wrong with the way in which the command ended."""
    if "Traceback" in stderr or "Exception ignored" in stderr:
        return [f"{how.name}: {stderr}"]
    if code == 0 or (how == signal.SIGKILL and code == -how):
        return []
    if code == 130 and "interrupted" in stderr and "pmfl run study.toml" in stderr.replace("-c run", "pmfl run"):
        return []
    return [f"{how.name}: exit code {code}: {stderr}"]
