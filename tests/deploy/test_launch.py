"""What our processes set in Flower, and what they do when Flower says no."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore import heartbeat
from flwr.supercore.constant import TaskType
from flwr.supercore.retry import RetryInvoker, constant, http_retry
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.fleet_http_client import FleetHttpClient

from pmfl.deploy import launch_check, launch_superlink, launch_supernode
from pmfl.deploy.brisk import Brisk
from pmfl.deploy.control import Control, app_files
from pmfl.deploy.create import create
from pmfl.deploy.endings import Ended
from pmfl.deploy.gate import Gate
from pmfl.deploy.keys import write_secret
from pmfl.deploy.launch_check import checked, look, preflight
from pmfl.deploy.launch_client_app import attempt
from pmfl.deploy.launch_server_app import runtime, take_task
from pmfl.deploy.launch_supernode import persistent, taking_over
from pmfl.deploy.settings import NodeFolder
from pmfl.errors import EngineError


def test_flags_of_the_server(tmp_path: Path) -> None:
    safe = launch_superlink.flags(create(tmp_path / "a", 1, {"port": 8123, "bind": "0.0.0.0"}, []))
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(safe)
    assert "--insecure" not in safe
    assert safe[:4] == ["--host", "0.0.0.0", "--port", "8123"]
    insecure = launch_superlink.flags(create(tmp_path / "b", 1, {"insecure": True}, []))
    assert "--insecure" in insecure
    assert "--enable-supernode-auth" not in insecure


def test_flags_of_a_node(tmp_path: Path) -> None:
    create(tmp_path / "a", 2, {}, [])
    node = NodeFolder.open(tmp_path / "a", 1)
    safe = launch_supernode.flags(node, 9100)
    assert safe[safe.index("--node-config") + 1] == f'pmfl-dir="{tmp_path / "a"}" client=1'
    assert safe[safe.index("--auth-supernode-private-key") + 1] == str(node.key)
    create(tmp_path / "b", 1, {"insecure": True}, [])
    assert "--insecure" in launch_supernode.flags(NodeFolder.open(tmp_path / "b", 0), 9100)


def test_flowers_server_is_served_behind_the_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create(tmp_path, 2, {}, [])
    write_secret(made.folder / "control.secret")
    monkeypatch.setenv("PMFL_BODY_LIMIT", "1234")
    seen: list[Any] = []
    serve = launch_superlink.gated(lambda app, **options: seen.extend([app, options]), made)
    serve(app="Flower's", host="127.0.0.1", access_log=True)
    gate, options = seen
    assert isinstance(gate, Gate)
    assert gate.keys is not None
    assert (gate.limit, len(gate.keys)) == (1234, 2)
    assert str(gate.app) == "Flower's"
    assert options["access_log"] is False
    assert options["host"] == "127.0.0.1"


def refused(code: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://x")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request))


class Fleet:
    """The server, which takes a node for its former self until told otherwise."""

    def __init__(self, *left: int) -> None:
        self.there, self.left = True, list(left)

    def activate(self, client: Any, request: Any) -> Any:
        if self.there:
            raise refused(412)
        return Thing(node_id=99)

    def DeactivateNode(self, request: Any) -> None:
        assert request.node_id == 42
        self.there = False


def test_a_node_takes_the_place_of_its_former_self(tmp_path: Path) -> None:
    fleet, session = Fleet(), tmp_path / "session"
    session.write_text("42")
    enter = taking_over(fleet.activate, session)
    assert enter(fleet, None).node_id == 99
    assert session.read_text() == "99"


def test_without_knowing_its_former_self_it_asks_until_that_has_been_forgotten(tmp_path: Path) -> None:
    fleet, asked = Fleet(), list[float]()

    def activate(client: Any, request: Any) -> Any:
        asked.append(time.monotonic())
        fleet.there = len(asked) < 3
        return fleet.activate(client, request)

    taking_over(activate, tmp_path / "session", pause=0.01)(fleet, None)
    assert len(asked) == 3


def test_another_refusal_is_one(tmp_path: Path) -> None:
    def activate(client: Any, request: Any) -> Any:
        raise refused(401)

    with pytest.raises(httpx.HTTPStatusError):
        taking_over(activate, tmp_path / "session")(None, None)


def test_only_a_wrong_certificate_ends_the_tries() -> None:
    invoker = persistent(http_retry.make_simple_http_retry_invoker)()
    assert invoker.should_giveup is not None
    assert not invoker.should_giveup(httpx.ConnectError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"))
    assert not invoker.should_giveup(httpx.ConnectError("refused"))
    assert invoker.should_giveup(httpx.ConnectError("certificate verify failed"))
    assert invoker.should_giveup(refused(500))
    plain = persistent(lambda: RetryInvoker(lambda: constant(1.0), ValueError, None, None))()
    assert plain.should_giveup is not None
    assert not plain.should_giveup(ValueError())


def test_what_is_set_in_flowers_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These names must be there: another Flower may have others."""
    loop: Any = start_client_internal
    connection: Any = fleet_http_connection
    beats: Any = heartbeat
    fleet: Any = FleetHttpClient
    tries: Any = http_retry
    for where, names in (
        (loop, ("time", "_pull_and_store_message", "_push_messages")),
        (connection, ("HEARTBEAT_DEFAULT_INTERVAL", "make_simple_http_retry_invoker")),
        (beats, ("HEARTBEAT_DEFAULT_INTERVAL",)),
        (tries, ("MAX_RETRY_DELAY",)),
        (fleet, ("ActivateNode",)),
    ):
        for name in names:
            monkeypatch.setattr(where, name, getattr(where, name))
    create(tmp_path, 1, {}, [])
    launch_supernode.adjust(NodeFolder.open(tmp_path, 0))
    assert (connection.HEARTBEAT_DEFAULT_INTERVAL, beats.HEARTBEAT_DEFAULT_INTERVAL) == (10, 10)
    assert tries.MAX_RETRY_DELAY == 2
    assert isinstance(loop.time, Brisk)
    assert loop._push_messages.__self__ is loop._pull_and_store_message.__self__


def test_a_process_ends_whatever_its_threads_are_at() -> None:
    code = (
        "import threading, time; from pmfl.deploy.launch_supernode import end_with; "
        "threading.Thread(target=time.sleep, args=(60,)).start(); print('said'); end_with(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (3, "said\n")


def test_brisk_sleeps_are_short_and_time_is_time() -> None:
    began = time.monotonic()
    Brisk().sleep(30)
    assert time.monotonic() - began < 5
    assert abs(Brisk().time() - time.time()) < 5


def test_a_study_is_looked_at_before_anything_is_started(tmp_path: Path) -> None:
    create(tmp_path, 1, {}, [])
    found = look(tmp_path)
    assert found["body_limit"] == 16 * 2**20
    assert 10_000 < found["model_bytes"] < 100_000
    assert preflight(tmp_path) == found


def test_a_study_that_has_passed_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[Path]()

    def noted(root: Path) -> dict[str, Any]:
        looks.append(root)
        return {"body_limit": 16 * 2**20}

    monkeypatch.setattr(launch_check, "preflight", noted)
    first = checked(create(tmp_path, 1, {}, []))
    assert checked(create(tmp_path, 1, {}, [])) == first
    assert len(looks) == 1
    for server, study in (({}, ["training.rounds=3"]), ({"body_limit": 20}, [])):
        checked(create(tmp_path, 1, server, study))
    assert len(looks) == 3
    (tmp_path / "server" / "checked.json").write_text("{")
    assert checked(create(tmp_path, 1, {}, []))["body_limit"] == first["body_limit"]
    assert len(looks) == 4


def test_a_study_that_cannot_be_played_is_said_with_its_own_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(tmp_path, 1, {}, ["data.dataset=nothing-of-that-name"])
    with pytest.raises(Ended, match="nothing-of-that-name") as caught:
        preflight(tmp_path)
    assert caught.value.exit_code == 2
    launch_check.main([str(tmp_path)])
    assert "nothing-of-that-name" in capsys.readouterr().out


def test_a_look_that_crashes_shows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="could not be looked at"):
        preflight(tmp_path)


def test_an_app_that_fails_gives_an_error_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    app = ClientApp()

    @app.query()
    def broken(message: Message, context: Context) -> Message:
        raise ZeroDivisionError("by zero")

    message = Message(RecordDict({"c": ConfigRecord({})}), dst_node_id=1, message_type="query")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    reply, details = attempt(app, message, context)
    assert reply.has_error()
    assert details == "ZeroDivisionError: by zero"


def test_no_task_where_nobody_answers(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret")
    assert take_task(runtime("127.0.0.1:9", tmp_path / "secret", None), TaskType.CLIENT_APP) is None


def test_the_app_is_packed_with_what_flower_wants() -> None:
    assert {"pyproject.toml", "LICENSE"} <= set(app_files())
    example = Path(__file__).parents[2] / "examples" / "flower"
    assert {name: (example / name).read_bytes() for name in app_files()} == app_files()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's packing
def test_what_flowers_server_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create(tmp_path, 1, {}, [])
    write_secret(made.folder / "control.secret")
    answers: dict[str, Any] = {"ListRuns": Thing(run_dict={3: Thing(status=Thing(status="running"))})}

    def asked(self: Any, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        found = answers.get(rpc_method.rpartition("/")[2])
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("flwr.supercore.protobuf.client.ProtobufClient._unary_unary", asked)
    with Control(made) as control:
        assert control.register() == 1
        assert control.stop_all() == [3]
        answers["StopRun"] = refused(409)
        assert control.stop_all() == [3]
        answers["StopRun"] = refused(500)
        with pytest.raises(EngineError, match="run 3 was not ended"):
            control.stop_all()
        answers["RegisterNode"] = refused(400)
        with pytest.raises(EngineError, match="client 0's key was not taken"):
            control.register()
        answers["StartRun"] = refused(400)
        with pytest.raises(EngineError, match="the app was not taken"):
            control.start()
        answers["StartRun"] = Thing(run_id=5)
        assert control.start() == 5


def test_a_process_whose_parent_has_gone_ends_at_once() -> None:
    code = "from pmfl.deploy.processes import die_with_parent; die_with_parent(1 << 22); print('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert os.getppid() != 1 << 22
    assert signal.SIGKILL
