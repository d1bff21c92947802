import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pmfl.cli.commands import app
from pmfl.deploy import guard as guards
from pmfl.deploy.processes import Lock, Stopped
from pmfl.deploy.settings import Deployment, NodeFolder
from pmfl.errors import EngineError, SpecError


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["deploy", *words], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return str(done.output)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be kept going, instead of keeping it going."""
    seen: dict[str, Any] = {"code": 0}

    def guard(supervisors: Any, leader: str, stopped: Stopped) -> int:
        seen.update(supervisors=supervisors, leader=leader)
        return int(seen["code"])

    monkeypatch.setattr(guards, "guard", guard)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    return seen


def test_init_says_what_to_do_next(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    said = run(
        "init", str(folder), "--nodes", "2", "--address", "fl.example.org", "--bind", "0.0.0.0", "--deadline", "5"
    )
    assert "2 clients, server fl.example.org:8000" in said
    assert f"a node's machine needs {folder / 'ca.pem'}" in said
    assert Deployment.open(folder).server.deadline == 5.0
    again = run("init", str(folder), "--set", "training.rounds=4", "--min-replies", "2")
    assert "2 clients" in again
    assert (Deployment.open(folder).spec.training.rounds, Deployment.open(folder).server.min_replies) == (4, 2)


def test_insecure_refuses_other_machines(tmp_path: Path) -> None:
    assert "a node's machine" not in run("init", str(tmp_path / "a"), "--insecure")
    with pytest.raises(SpecError, match="this machine only"):
        run("init", str(tmp_path / "b"), "--insecure", "--bind", "0.0.0.0")


def test_server_and_node_are_kept_going(tmp_path: Path, kept: dict[str, Any]) -> None:
    folder = str(tmp_path)
    with pytest.raises(SpecError, match="there is no"):
        run("server", folder)
    run("init", folder)
    assert "done: the model is in" in run("server", folder)
    assert kept["supervisors"] == {"server": ["server", folder]}
    kept["code"] = guards.STOPPED
    assert "stopped; the same command continues" in run("node", folder, "--client", "1", "--data", folder)
    assert kept["supervisors"] == {"node": ["node", folder, "1"]}
    assert NodeFolder.open(tmp_path, 1).settings.data.path == folder
    kept["code"] = 3
    run("server", folder, code=3)


def test_up_starts_everything_once(tmp_path: Path, kept: dict[str, Any]) -> None:
    folder = str(tmp_path / "d")
    run("up", folder, "--nodes", "2", "--port", "8125")
    assert (sorted(kept["supervisors"]), kept["leader"]) == (["node 0", "node 1", "server"], "server")
    lock = Lock(tmp_path / "d" / "up.lock", "it")
    assert lock.holder() == os.getpid()  # until the command's process ends
    with pytest.raises(EngineError, match="running already"):
        run("up", folder)


def test_status_and_stop(tmp_path: Path) -> None:
    run("init", str(tmp_path))
    assert "not started, no round yet" in run("status", str(tmp_path))
    assert json.loads(run("status", str(tmp_path), "--json"))["state"] == "not started"
    assert "nothing was running" in run("stop", str(tmp_path))
    with pytest.raises(SpecError, match=r"there is no .*deploy\.toml"):
        run("stop", str(tmp_path / "none"))


def test_without_flower_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match="deployments need Flower"):
        run("init", str(tmp_path))
