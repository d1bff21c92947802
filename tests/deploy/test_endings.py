"""Errors that a new start would only repeat: left by the app, raised again by its supervisor, told by `status`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pmfl.deploy import guard, server_app, supervise_server
from pmfl.deploy.create import create
from pmfl.deploy.endings import Ended, forget, leaving, left, repeats
from pmfl.deploy.journal import read
from pmfl.deploy.overview import as_text, overview
from pmfl.deploy.processes import Stopped
from pmfl.deploy.settings import Deployment
from pmfl.deploy.supervise_server import Server
from pmfl.errors import DataMissing, Diverged, EngineError, MethodError, PmflError, RankLost, SpecError, StoreError
from tests.deploy.fake import deployment
from tests.deploy.test_supervisors import Straw, straw  # noqa: F401  a fixture

DIVERGED = Diverged(round=3, clients=[0, 2])


@pytest.mark.parametrize("error", [DIVERGED, SpecError("s"), MethodError("m"), EngineError("e"), DataMissing("d")])
def test_what_would_only_come_again_is_left_as_it_was(tmp_path: Path, error: PmflError) -> None:
    file = tmp_path / "ended.json"
    assert repeats(error)
    with pytest.raises(type(error)), leaving(file):
        raise error
    found = left(file)
    assert found is not None
    assert (str(found), found.code, found.exit_code) == (str(error), error.code, error.exit_code)
    with leaving(file):  # a start that goes well leaves nothing of the one before
        pass
    assert left(file) is None
    forget(file)


@pytest.mark.parametrize("error", [StoreError("the disk is full"), RankLost("gone"), KeyError("a bug")])
def test_what_may_mend_is_not(tmp_path: Path, error: Exception) -> None:
    file = tmp_path / "ended.json"
    with pytest.raises(type(error)), leaving(file):
        raise error
    assert left(file) is None


def test_a_disk_that_is_full_hides_no_error(tmp_path: Path) -> None:
    with pytest.raises(Diverged), leaving(tmp_path / "no folder" / "ended.json"):
        raise DIVERGED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"error": "half"}'])
def test_half_a_file_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "ended.json").write_text(content)
    assert left(tmp_path / "ended.json") is None


def test_the_app_leaves_why_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = deployment(tmp_path)
    made.folder.mkdir(exist_ok=True)
    context: Any = type("Context", (), {"run_config": {"pmfl-dir": str(tmp_path)}})
    grid: Any = None

    def diverge(*given: Any) -> None:
        raise DIVERGED

    monkeypatch.setattr(server_app, "serve", diverge)
    with pytest.raises(Diverged):
        server_app.main(grid, context)
    found = left(made.ended)
    assert found is not None
    assert found.exit_code == 4
    (tmp_path / "deploy.toml").write_text("[server]\nport = 'eight'")
    with pytest.raises(SpecError):
        server_app.main(grid, context)
    found = left(made.ended)
    assert found is not None
    assert "port" in found.message


def broken(root: Path, straw: type[Straw], error: PmflError, starts: int = 1) -> None:  # noqa: F811
    """A deployment whose app meets an error in its last start, and ends as Flower ends it: with 1."""
    create(root, 1, {"insecure": True}, [])
    straw.ends = {"app": [1] * 9}

    def end() -> None:
        if straw.begun.count("app") == starts:
            with pytest.raises(type(error)), leaving(root / "server" / "ended.json"):
                raise error

    straw.happens = {"app": end}


@pytest.mark.parametrize("starts", [1, 3])
def test_a_run_that_diverged_is_not_started_again(
    tmp_path: Path,
    straw: type[Straw],  # noqa: F811
    starts: int,
) -> None:
    broken(tmp_path, straw, DIVERGED, starts)
    with pytest.raises(Ended, match="diverged in round 3") as caught:
        Server(tmp_path, Stopped()).run()
    assert caught.value.exit_code == 4
    assert straw.begun.count("app") == starts
    known = read(tmp_path / "server")
    assert known["state"] == "failed"
    assert known["restarts"].get("app", 0) == starts - 1


@pytest.mark.parametrize(("error", "code"), [(DIVERGED, 4), (SpecError("wrong"), 2), (DataMissing("nowhere"), 3)])
def test_the_command_ends_with_the_apps_own_exit_code(
    tmp_path: Path,
    straw: type[Straw],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: PmflError,
    code: int,
) -> None:
    monkeypatch.setattr("pmfl.deploy.processes.die_with_parent", lambda parent: None)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    monkeypatch.setenv("PMFL_PARENT", "1")
    broken(tmp_path, straw, error)
    assert guard.main(["server", str(tmp_path)]) == code
    assert code in guard.REFUSED
    assert f"error[{error.code}]: {error.message}" in capsys.readouterr().err


def test_a_new_start_is_not_told_what_an_old_one_met(tmp_path: Path, straw: type[Straw]) -> None:  # noqa: F811
    broken(tmp_path, straw, DIVERGED)
    with pytest.raises(Ended):
        Server(tmp_path, Stopped()).run()
    straw.happens, straw.ends = {}, {"app": [0], "result": [0]}
    assert Server(tmp_path, Stopped()).run()


def test_a_study_without_its_data_is_refused_before_anything_starts(
    tmp_path: Path,
    straw: type[Straw],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(made: Deployment) -> None:
        raise Ended({"error": "no data", "hint": "fetch them", "code": "D100", "exit_code": 3})

    monkeypatch.setattr(supervise_server, "checked", refuse)
    create(tmp_path, 1, {"insecure": True}, [])
    with pytest.raises(Ended) as caught:
        Server(tmp_path, Stopped()).run()
    assert (caught.value.exit_code, straw.begun) == (3, [])


def test_status_says_that_it_diverged_once(tmp_path: Path, straw: type[Straw]) -> None:  # noqa: F811
    broken(tmp_path, straw, DIVERGED)
    with pytest.raises(Ended):
        Server(tmp_path, Stopped()).run()
    made = create(tmp_path, None, {}, [])
    made.status.write_text(json.dumps({"state": "diverged", "note": DIVERGED.message, "round": 3, "rounds": 9}))
    found = overview(tmp_path)
    assert found["state"] == "diverged"
    text = as_text(found)
    assert text.count("diverged in round 3") == 1
    assert "lower training.client_lr" in text
