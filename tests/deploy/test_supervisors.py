"""Supervisors with children of straw: which of them end how, and what is done about it."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pmfl.deploy import guard, supervise_node, supervise_server
from pmfl.deploy.create import create
from pmfl.deploy.journal import read
from pmfl.deploy.processes import Backoff, Lock, Stopped
from pmfl.deploy.settings import Deployment
from pmfl.deploy.supervise_node import NodeSupervisor
from pmfl.deploy.supervise_server import Server
from pmfl.errors import EngineError

PARTS = ("app", "superlink", "result")
Ends = list[int | None]  # how children of one name end, one after the other; None: it stays


class Straw:
    """A child that has ended already, or stays until it is stopped."""

    begun: list[str]
    ends: dict[str, Ends]
    happens: dict[str, Callable[[], None]]

    def __init__(self, name: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name, self.pid, self.lived = name, 1000 + len(self.begun), 0.1
        self.begun.append(name)
        waiting = self.ends.get(name, [])
        self.code: int | None = waiting.pop(0) if waiting else None
        self.process = self
        self.happens.get(name, lambda: None)()

    @property
    def running(self) -> bool:
        return self.code is None

    def kill(self) -> None:
        self.code = -9

    def wait(self) -> None: ...

    def stop(self) -> None:
        self.code = -15 if self.code is None else self.code


class Tower:
    """A control interface that says yes."""

    def __init__(self, made: Deployment) -> None:
        self.started = 0

    def __enter__(self) -> "Tower":
        return self

    def __exit__(self, *error: object) -> None: ...

    def register(self) -> int:
        return 1

    def stop_all(self) -> list[int]:
        return []

    def start(self) -> int:
        return 5


@pytest.fixture
def straw(monkeypatch: pytest.MonkeyPatch) -> type[Straw]:
    Straw.begun, Straw.ends, Straw.happens = [], {}, {}
    for module in (supervise_server, supervise_node):
        monkeypatch.setattr(module, "Child", Straw)
        monkeypatch.setattr(module, "LOOK", 0.01)
        monkeypatch.setattr(module, "end_leftovers", lambda marker: [])
        monkeypatch.setattr(module, "Backoff", lambda **given: Backoff(first=0.001, most=0.001))
    monkeypatch.setattr(supervise_server, "wait_for_port", lambda host, port, stopped: None)
    monkeypatch.setattr(supervise_server, "Control", Tower)
    monkeypatch.setattr(supervise_server, "checked", lambda made: {"body_limit": 1})
    monkeypatch.setattr(Server, "_answers", lambda self: True)
    return Straw


def server(root: Path) -> Server:
    create(root, 1, {"insecure": True}, [])
    return Server(root, Stopped())


def events(root: Path) -> list[str]:
    return [json.loads(line)["what"] for line in (root / "server" / "events.log").read_text().splitlines()]


def test_a_run_without_trouble(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"app": [0], "result": [0]}
    assert server(tmp_path).run()
    assert straw.begun == ["app", "superlink", "result"]
    assert read(tmp_path / "server")["state"] == "finished"
    assert read(tmp_path / "server")["restarts"] == {}
    assert Lock(tmp_path / "server" / "supervisor.lock", "it").holder() is None


def test_an_app_that_is_killed_is_started_again_on_the_same_server(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"app": [-9, 1, 0], "result": [1]}
    assert server(tmp_path).run()
    assert straw.begun == ["app", "superlink", "app", "app", "result"]
    assert read(tmp_path / "server")["restarts"] == {"app": 2, "result": 1}
    assert "the result was not written" in events(tmp_path)


def test_a_server_that_is_killed_takes_its_app_with_it(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"app": [None, 0], "result": [0]}
    made = server(tmp_path)
    first: list[Any] = []

    def kill() -> None:
        assert made.superlink is not None
        made.superlink.process.kill()

    def kill_superlink() -> None:
        if not first:
            first.append(made)
            threading.Timer(0.05, kill).start()

    straw.happens = {"superlink": kill_superlink}
    assert made.run()
    assert straw.begun == ["app", "superlink", "app", "superlink", "result"]


def test_an_app_that_never_completes_a_round_is_given_up(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"app": [1] * 50}
    with pytest.raises(EngineError, match="ended 6 times without completing a round, last with exit code 1"):
        server(tmp_path).run()
    known = read(tmp_path / "server")
    assert known["state"] == "failed"
    assert straw.begun.count("app") == 6


def test_as_long_as_there_is_progress_nothing_is_given_up(tmp_path: Path, straw: type[Straw]) -> None:
    made = server(tmp_path)

    def a_round() -> None:
        made.made.status.write_text(json.dumps({"round": len(straw.begun)}))

    straw.happens = {"app": a_round}
    straw.ends = {"app": [*([1] * 20), 0], "result": [0]}
    assert made.run()


def test_a_server_that_does_not_start_gets_a_new_database_then_up(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"superlink": [1] * 50}
    made = server(tmp_path)
    made.made.database.parent.mkdir(parents=True, exist_ok=True)
    made.made.database.write_text("damaged")
    with pytest.raises(EngineError, match="ended 7 times before it answered"):
        made.run()
    assert not made.made.database.exists()
    assert (made.made.folder / "superlink.sqlite.damaged").read_text() == "damaged"


def test_a_server_that_does_not_answer_is_replaced(
    tmp_path: Path, straw: type[Straw], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise_server, "PULSE", 0.01)
    monkeypatch.setattr(supervise_server, "SILENT", 0.05)
    made = server(tmp_path)
    straw.ends = {"app": [None, 0], "result": [0]}
    monkeypatch.setattr(Server, "_answers", lambda self: not self.made.submitted.exists())
    assert made.run()
    assert "Flower's server does not answer" in events(tmp_path)
    assert straw.begun.count("superlink") == 2


def test_a_run_that_is_not_taken_is_submitted_to_a_new_server(
    tmp_path: Path, straw: type[Straw], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def start(self: Tower) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise EngineError("no")
        return 5

    monkeypatch.setattr(Tower, "start", start)
    straw.ends = {"app": [0], "result": [0]}
    assert server(tmp_path).run()
    assert straw.begun.count("superlink") == 3


def test_an_app_takes_its_run_when_that_was_submitted_and_not_before(
    tmp_path: Path, straw: type[Straw], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = server(tmp_path), list[Any]()
    made.made.folder.mkdir(exist_ok=True)
    made.made.submitted.touch()  # by an earlier start

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, made.made.submitted.exists()))

    straw.happens = {name: note(name) for name in PARTS}
    straw.ends = {"app": [None, 0], "superlink": [1, None], "result": [0]}
    start = Tower.start

    def submit(self: Tower) -> int:
        seen.append(("submits", made.made.submitted.exists()))
        assert made.app is not None
        threading.Timer(0.05, made.app.process.kill).start()
        return start(self)

    monkeypatch.setattr(Tower, "start", submit)
    assert made.run()
    assert seen[:4] == [("app", False), ("superlink", False), ("superlink", False), ("submits", False)]
    assert seen[4:] == [("app", False), ("submits", False), ("result", True)]


def test_asked_to_stop(tmp_path: Path, straw: type[Straw]) -> None:
    made = server(tmp_path)
    straw.happens = {"app": lambda: threading.Timer(0.05, made.stopped.set).start()}
    assert not made.run()
    assert read(tmp_path / "server")["state"] == "stopped"
    assert events(tmp_path)[-3:] == ["app ended", "superlink ended", "supervisor ended"] or "stopped" in events(
        tmp_path
    )


def test_whether_flowers_server_answers(tmp_path: Path) -> None:
    assert not server(tmp_path)._answers()
    create(tmp_path / "tls", 1, {"port": 9}, [])
    assert not Server(tmp_path / "tls", Stopped())._answers()


def test_yes_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "get", lambda url, verify, timeout: httpx.Response(200))
    assert server(tmp_path)._answers()


def test_a_nodes_pair_is_brought_back(tmp_path: Path, straw: type[Straw]) -> None:
    create(tmp_path, 1, {"insecure": True}, [])
    stopped = Stopped()
    made = NodeSupervisor(tmp_path, 0, stopped)
    straw.ends = {"supernode": [None, -9], "app": [-9, None]}

    def enough() -> None:
        if len(straw.begun) >= 6:
            threading.Timer(0.05, stopped.set).start()

    straw.happens = {"app": enough}
    made.run()
    assert straw.begun == ["supernode", "app"] * 3
    known = read(tmp_path / "nodes" / "0")
    assert (known["state"], known["restarts"], known["children"]) == ("stopped", {"app": 1, "supernode": 1}, {})


def test_what_a_supervisor_is_started_as(tmp_path: Path, straw: type[Straw]) -> None:
    straw.ends = {"app": [0], "result": [0]}
    create(tmp_path, 1, {"insecure": True}, [])
    assert guard.supervise(["server", str(tmp_path)], Stopped()) == guard.FINISHED
    over = Stopped()
    over.set()
    assert guard.supervise(["server", str(tmp_path)], over) == guard.STOPPED
    assert guard.supervise(["node", str(tmp_path), "0"], over) == guard.STOPPED
