"""The processes of a deployment, called as functions: what they hand on, and how they end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.task_identity import TaskIdentity

from pmfl.deploy import (
    guard,
    launch_client_app,
    launch_server_app,
    launch_superlink,
    launch_supernode,
    result,
    supervise_node,
    supervise_server,
)
from pmfl.deploy.brisk import Brisk
from pmfl.deploy.create import create
from pmfl.deploy.gate import Gate
from pmfl.deploy.keys import write_secret
from pmfl.deploy.processes import Stopped
from pmfl.deploy.serve import serve
from pmfl.deploy.settings import NodeFolder
from pmfl.errors import SpecError
from tests.deploy.fake import Hand, Straight, deployment, node


class Enough(Exception):
    """Ends a loop that has no end."""


class Client:
    """Flower's client of its own interface, which is open as long as it is used."""

    is_open = False

    @classmethod
    def from_server_address(cls, **_: Any) -> contextlib.AbstractContextManager[Client]:
        return cls.opened()

    @staticmethod
    @contextlib.contextmanager
    def opened() -> Iterator[Client]:
        client = Client()
        client.is_open = True
        yield client
        client.is_open = False


@pytest.fixture(autouse=True)
def parents(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Whose death would end this process; nobody's here."""
    found: list[int] = []
    monkeypatch.setenv("PMFL_PARENT", "77")
    for module in (launch_client_app, launch_server_app, launch_superlink, launch_supernode):
        monkeypatch.setattr(module, "die_with_parent", found.append)
    monkeypatch.setattr("pmfl.deploy.processes.die_with_parent", found.append)
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_is_handed_over_whatever_the_app_does(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    context = Context(1, 2, {}, RecordDict(), {})
    message = Message(RecordDict({"c": ConfigRecord({"x": 1})}), dst_node_id=5, message_type="train")
    app, events = ClientApp(), list[object]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if fails:
            raise ValueError("no such thing")
        return Message(RecordDict({"c": ConfigRecord({"x": 2})}), reply_to=message)

    class Pulse:
        def __init__(self, beat: object) -> None:
            assert beat == "beat"

        def start(self) -> None:
            events.append("pulse")

        def stop(self) -> None:
            events.append("still")

    def pushed(client: Client, reply: Message, context: Context) -> None:
        assert client.is_open
        events.append(reply.error.reason if reply.has_error() else reply.content["c"]["x"])

    def ended(*, client: Client, context: Context, sub_status: str, details: str) -> None:
        assert client.is_open
        events.append((sub_status, details))

    monkeypatch.setattr(launch_client_app, "RuntimeHttpClient", Client)
    monkeypatch.setattr(launch_client_app, "HeartbeatSender", Pulse)
    monkeypatch.setattr(launch_client_app, "make_task_heartbeat_fn_http", lambda client: "beat")
    monkeypatch.setattr(launch_client_app, "pull_task_input", lambda client: (message, context, None, None))
    monkeypatch.setattr(launch_client_app, "push_message", pushed)
    monkeypatch.setattr(launch_client_app, "push_task_output", ended)
    launch_client_app.answer(app, "127.0.0.1:1", "token")
    why = "ValueError: no such thing"
    told: list[object] = [why, (SubStatus.FAILED, why)] if fails else [2, (SubStatus.COMPLETED, "")]
    assert events == ["pulse", *told, "still"]


def test_a_node_goes_on_after_a_message_that_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: list[int]
) -> None:
    create(tmp_path, 1, {"insecure": True}, [])
    waiting, answered = [None, "first", None, "second"], list[str]()

    def take(client: str, kind: TaskType) -> str | None:
        assert (client, kind) == (f"127.0.0.1:9 {tmp_path}/nodes/0/runtime.secret", TaskType.CLIENT_APP)
        if not waiting:
            raise Enough
        return waiting.pop(0)

    def answer(app: ClientApp, address: str, token: str) -> None:
        assert isinstance(app, ClientApp)
        answered.append(token)
        if token == "first":
            raise httpx.ReadError("gone")

    monkeypatch.setattr(launch_client_app, "runtime", lambda address, secret, _: f"{address} {secret}")
    monkeypatch.setattr(launch_client_app, "take_task", take)
    monkeypatch.setattr(launch_client_app, "answer", answer)
    monkeypatch.setattr(launch_client_app, "POLL", 0.0)
    with pytest.raises(Enough):
        launch_client_app.main([str(tmp_path), "0", "9"])
    assert answered == ["first", "second"]
    assert parents == [77]


@pytest.mark.parametrize("insecure", [True, False])
def test_the_server_waits_for_its_run_and_plays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: list[int], insecure: bool
) -> None:
    made = create(tmp_path, 1, {"insecure": insecure}, [])
    waiting, played = [None, "token"], list[Any]()

    class Interface:
        def close(self) -> None:
            played.append("closed")

    def open_runtime(address: str, secret: Path, certificates: bytes | None) -> Interface:
        assert (address, secret) == (made.here, made.folder / "runtime.secret")
        assert certificates == (None if insecure else made.ca.read_bytes())
        return Interface()

    made.folder.mkdir(exist_ok=True)
    made.submitted.touch()
    monkeypatch.setattr(launch_server_app, "runtime", open_runtime)
    monkeypatch.setattr(launch_server_app, "take_task", lambda client, kind: waiting.pop(0))
    monkeypatch.setattr(launch_server_app, "POLL", 0.0)
    monkeypatch.setattr(launch_server_app, "mirror_output_to_queue", lambda log: None)
    loop = SimpleNamespace(time=None)
    monkeypatch.setattr(launch_server_app, "http_grid", loop)
    monkeypatch.setattr(launch_server_app, "run_serverapp", lambda *given, **options: played.append((given, options)))
    launch_server_app.main([str(tmp_path)])
    closed, (given, options) = played
    assert closed == "closed"
    assert (given[0], given[2], given[3]) == (made.here, "token", insecure)
    assert options == {"runtime_dependency_install": False}
    assert isinstance(loop.time, Brisk)
    assert parents == [77]


def test_the_server_takes_no_run_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, 1, {"insecure": True}, [])
    looks = list[float]()

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise Enough

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(launch_server_app, "take_task", lambda client, kind: pytest.fail("it was another's"))
    with pytest.raises(Enough):
        launch_server_app.main([str(tmp_path)])


@pytest.mark.parametrize(("over", "code"), [(True, guard.FINISHED), (False, guard.STOPPED)])
def test_a_supervisor_of_the_server_ends_with_its_run(
    monkeypatch: pytest.MonkeyPatch, parents: list[int], over: bool, code: int
) -> None:
    class Server:
        def __init__(self, root: Path, stopped: object) -> None:
            assert root == Path("here")

        def run(self) -> bool:
            return over

    monkeypatch.setattr(supervise_server, "Server", Server)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    assert guard.main(["server", "here"]) == code
    assert parents == [77]


def test_a_supervisor_of_a_node_ends_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Supervisor:
        def __init__(self, root: Path, client: int, stopped: object) -> None:
            assert (root, client) == (Path("here"), 3)

        def run(self) -> None:
            pass

    monkeypatch.setattr(supervise_node, "NodeSupervisor", Supervisor)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    assert guard.main(["node", "here", "3"]) == guard.STOPPED


def test_a_supervisor_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(root: Path, stopped: object) -> None:
        raise SpecError("nothing is here", hint="make it", code="S199")

    monkeypatch.setattr(supervise_server, "Server", refuse)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    assert guard.main(["server", str(tmp_path)]) == SpecError.exit_code
    assert "error[S199]: nothing is here" in capsys.readouterr().err


def test_the_result_is_written_by_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = create(tmp_path, 1, {"insecure": True}, [])
    monkeypatch.setattr(result, "write_result", lambda given: [given.root / "model", given.root / "card"])
    result.main([str(made.root)])
    assert capsys.readouterr().out.split() == [str(tmp_path / "model"), str(tmp_path / "card")]


def test_flowers_server_is_started_with_its_flags_and_behind_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: list[int]
) -> None:
    made = create(tmp_path, 1, {}, [])
    write_secret(made.folder / "control.secret")
    monkeypatch.setenv("PMFL_BODY_LIMIT", "1000")
    served, started = list[Any](), list[list[str]]()
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.append(app))
    monkeypatch.setattr(sys, "argv", ["before"])

    def superlink() -> None:
        started.append(sys.argv)
        uvicorn.run(app="Flower's")

    monkeypatch.setattr(launch_superlink, "flower_superlink", superlink)
    launch_superlink.main([str(tmp_path)])
    assert started == [["flower-superlink", *launch_superlink.flags(made)]]
    (gate,) = served
    assert isinstance(gate, Gate)
    assert str(gate.app) == "Flower's"
    assert parents == [77]


@pytest.mark.parametrize("fails", [False, True])
def test_flowers_node_ends_with_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: list[int], fails: bool
) -> None:
    """Also when it ends with an error: its threads would keep the process there, serving nobody."""
    create(tmp_path, 1, {}, [])
    told = list[Any]()

    class Over(BaseException):
        """Instead of the end of this process."""

    def end(code: int) -> None:
        told.append(code)
        raise Over

    def supernode() -> None:
        told.append(sys.argv)
        if fails:
            raise RuntimeError("no server")

    monkeypatch.setattr(launch_supernode, "adjust", lambda node: told.append(node.settings.client))
    monkeypatch.setattr(launch_supernode, "flower_supernode", supernode)
    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["before"])
    with pytest.raises(Over):
        launch_supernode.main([str(tmp_path), "0", "9100"])
    node = NodeFolder.open(tmp_path, 0)
    assert told == [0, ["flower-supernode", *launch_supernode.flags(node, 9100)], 1]
    assert parents == [77]


def test_without_the_packages_for_onnx_model_and_card_are_written_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deployment(tmp_path)
    serve(made, Straight({k: node(made, k).answer for k in range(3)}), clock=Hand())
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert [file.name for file in result.write_result(made)] == ["model.safetensors", "MODEL_CARD.md"]
    assert "left out: pip install 'pmfl[export]'" in (made.result / "MODEL_CARD.md").read_text()

    def refuse(results: Path, run_id: str, file: Path) -> Path:
        raise SpecError("another error", code="S999")

    monkeypatch.setattr(result, "export_model", refuse)
    with pytest.raises(SpecError, match="another error"):
        result.write_result(made)
