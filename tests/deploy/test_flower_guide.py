"""`flwr run` of the example, by the guide's own commands: with Flower's own server, nodes and command line."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pmfl
from pmfl.deploy.processes import free_port, port_is_free
from pmfl.deploy.settings import Deployment
from pmfl.study.store import Store
from tests.deploy.field import until
from tests.deploy.replay import observed, replayed

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "deploy" / "flower.md"
ROUNDS = 2
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def blocks(kind: str) -> list[str]:
    """The guide's blocks of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)


@contextlib.contextmanager
def kept(command: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    """A line of the guide that stays, until the end of the test."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, shell=True, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_guides_commands_play_a_deployment(tmp_path: Path) -> None:
    """As they are written, but for ports and folders of this test, and fewer rounds."""
    port, trial, home, log = free_port(), tmp_path / "trial", tmp_path / "home", tmp_path / "log"
    home.mkdir()
    bins = tmp_path / "bin"
    bins.mkdir()
    (bins / "pmfl").write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from pmfl.cli import main; main()' \"$@\"\n")
    (bins / "pmfl").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(bins), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(Path(pmfl.__file__).parents[1]),
        "FLWR_HOME": str(home),
    }
    init, start, submit = (block.strip().splitlines() for block in blocks("sh"))
    exported, *lines = start
    assert exported.startswith("export ")
    environment |= dict(word.split("=") for word in exported.split()[1:])
    (config,) = blocks("toml")
    (home / "config.toml").write_text(config.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))

    def here(line: str) -> str:
        line = re.sub(r"--port 909\d", lambda _: f"--port {free_port()}", line.replace("/srv/trial", str(trial)))
        if line.startswith("flower-superlink"):
            return f"exec {line} --port {port}"
        return f"exec {line} --superlink 127.0.0.1:{port}" if line.startswith("flower-supernode") else line

    def run(line: str) -> None:
        done = subprocess.run(here(line), shell=True, env=environment, cwd=ROOT, capture_output=True, timeout=400)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode() + log.read_text()

    run(f"{init[0]} --set training.rounds={ROUNDS} --set evaluation.every={ROUNDS}")
    made = Deployment.open(trial)
    with contextlib.ExitStack() as ended:
        for line in lines:
            ended.enter_context(kept(here(line), environment, log))
        assert until(lambda: not port_is_free("127.0.0.1", port), 120.0) is not None, log.read_text()
        run(submit[0])
        assert until(lambda: told_state(made) == "done", 60.0) is not None, log.read_text()[-3000:]
    (row,) = Store(made.results).runs()
    assert (row.t, row.status) == (ROUNDS, "done")
    assert row.model_sha256 == replayed(made, observed(made)).sha256


def told_state(made: Deployment) -> str:
    """What `status` would say."""
    try:
        return str(json.loads(made.status.read_text("utf-8"))["state"])
    except (OSError, ValueError, KeyError):
        return ""
