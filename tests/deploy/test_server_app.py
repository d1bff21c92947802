"""The glue to Flower, and what a server says, resumes and refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, Metadata
from flwr.app.message import make_message
from flwr.supercore.task_identity import TaskIdentity

from pmfl.deploy import client_app, server_app
from pmfl.deploy.serve import serve
from pmfl.deploy.settings import ClientEntry, Deployment
from pmfl.engines.flower import pack, unpack
from pmfl.engines.remote import Answer, Seat
from pmfl.engines.wire import decode, encode
from pmfl.errors import Diverged, EngineError, StoreError
from pmfl.study.play import claimed
from pmfl.study.store import Store
from tests.deploy.fake import Hand, Straight, deployment, node
from tests.deploy.test_serve import simulated


def test_without_keys_the_first_token_of_a_client_stays(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    bind = server_app.bindings(made)
    assert [bind(0, "a"), bind(0, "b"), bind(1, "b"), bind(0, "a"), bind(9, "a"), bind(-1, "a")] == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert not server_app.bindings(made)(0, "b")  # also after the server was started again
    keyed = Deployment(tmp_path / "keyed", made.study, made.server, (ClientEntry(id=0, name="a", key="ssh x"),))
    assert not server_app.bindings(keyed)(0, "a")


def test_flowers_apps_pass_messages_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = deployment(tmp_path)
    node(made, 1)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    metadata = Metadata(1, "m", 1, 1, "", "", 0.0, 1e12, "query")
    message = make_message(metadata, content=pack(encode({"kind": "hello"}, {})))
    context: Any = SimpleNamespace(node_config={"pmfl-dir": str(tmp_path), "client": 1})
    reply: Message = client_app.query(message, context)
    assert decode(unpack(reply.content), 1000).words["client"] == 1
    assert client_app.train(message, context).content is not None

    played: list[Any] = []
    monkeypatch.setattr(server_app, "serve", lambda *given: played.append(given))
    server_app.main(SimpleNamespace(), SimpleNamespace(run_config={"pmfl-dir": str(tmp_path)}))  # type: ignore[arg-type]
    assert played[0][0] == Deployment.open(tmp_path)
    assert played[0][1].binding is not None


class Crash(Exception):
    """The power went."""


class Dying(Straight):
    """The server dies with its n-th ask."""

    def __init__(self, nodes: Any, n: int) -> None:
        super().__init__(nodes)
        self.left = n

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        self.left -= 1
        if self.left < 0:
            raise Crash
        return super().post(data, seats, lasting)


@pytest.mark.parametrize("method", ["mifa"])
def test_a_server_that_dies_goes_on_to_the_same_bits(tmp_path: Path, method: str) -> None:
    made = deployment(tmp_path, method)
    nodes = {k: node(made, k) for k in range(3)}
    answers = {k: one.answer for k, one in nodes.items()}
    for n in (0, 3, 4):
        with pytest.raises(Crash):
            serve(made, Dying(answers, n), clock=Hand())
    status = json.loads(made.status.read_text())
    assert (status["round"], status["rounds"], status["state"]) == (7, 10, "running")
    assert [client["last_round"] for client in status["clients"]] == [6, 6, 6]
    summary = serve(made, Straight(answers), clock=Hand())
    assert summary["model_sha256"] == simulated(method)
    row = Store(made.results).run(summary["run_id"])
    assert row.resumed == 2
    assert [nodes[0].keeping.counted(f"{run}") for run in _runs(nodes[0].folder.sent_log)] == [9]


def _runs(log: Path) -> list[str]:
    return sorted({json.loads(line)["run"] for line in log.read_text().splitlines()})


class Broken(Straight):
    """Every reply is infinite."""

    def collect(self) -> Sequence[Answer]:
        found = []
        for answer in super().collect():
            words, tensors = decode(answer.data or b"", 1 << 26)
            found.append(answer._replace(data=encode(words, {**tensors, "vector": tensors["vector"] / 0})))
        return found


def test_a_run_that_diverges_says_so_and_ends(tmp_path: Path) -> None:
    made = deployment(tmp_path, "fedavg")
    with pytest.raises(Diverged):
        serve(made, Broken({k: node(made, k).answer for k in range(3)}), clock=Hand())
    status = json.loads(made.status.read_text())
    assert (status["state"], status["refused"]) == ("diverged", {"not finite": 9})
    assert "diverged in round 0" in status["note"]
    assert "not finite" in status["clients"][0]["complaint"]
    assert Store(made.results).runs()[0].status == "diverged"


def test_two_servers_do_not_play_one_deployment(tmp_path: Path) -> None:
    made = deployment(tmp_path)
    store = Store(made.results, create=True)
    with claimed(store, made.spec.run_id), pytest.raises(StoreError, match="another process"):
        serve(made, Straight({}), clock=Hand())


def test_status_says_weights_and_whom_a_round_waits_for(tmp_path: Path) -> None:
    made = deployment(tmp_path, "fedau")
    serve(made, Straight({k: node(made, k).answer for k in range(3)}), clock=Hand())
    status = json.loads(made.status.read_text())
    assert [client["weight"] for client in status["clients"]] == [1.0] * 3
    assert [client["name"] for client in status["clients"]] == ["site 0", "site 1", "site 2"]
    assert status["waiting_for"] == []
    assert status["metrics"]["test/accuracy"] > 0


@pytest.mark.parametrize(
    ("study", "server", "says"),
    [({"engine": {"lanes": 4}}, {}, "lanes = 4"), ({}, {"min_replies": 4}, "min_replies = 4, and there are 3")],
)
def test_what_machines_cannot_do_is_refused(tmp_path: Path, study: Any, server: Any, says: str) -> None:
    made = deployment(tmp_path, **server)
    with pytest.raises(EngineError, match=says):
        serve(replace(made, study={**made.study, **study}), Straight({}), clock=Hand())
