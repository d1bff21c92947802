"""A node answers whatever it is sent, with its own samples, and keeps a record of what leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.deploy.node import Node
from pmfl.deploy.serve import LiveRun, plain, serve
from pmfl.deploy.settings import Deployment, NodeData, NodeFolder, NodeSettings
from pmfl.engines.remote import Terms
from pmfl.engines.wire import decode, encode
from pmfl.study.spec import run_spec
from tests.deploy.fake import Hand, Straight, deployment, node
from tests.toy import examples

RUN = {"kind": "ask", "run": "r", "t": 2, "acks": [-1, 1, -1]}


def why(made: Node, data: bytes) -> str:
    words = decode(made.answer(data), 1 << 20).words
    assert words["kind"] == "no"
    return str(words["why"])


@pytest.fixture
def made(tmp_path: Path) -> Deployment:
    return deployment(tmp_path / "dir", "mifa")


def ask(made: Deployment, **change: object) -> bytes:
    words = {**RUN, "spec": plain(made.spec), "data": {}, **change}
    return encode(words, {"w": torch.zeros(7), "lr": torch.tensor(0.1)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "dance"}, "a message of kind 'dance'"),
        ({"run": 3}, "no message for client 0"),
        ({"t": "2"}, "no message for client 0"),
        ({"acks": []}, "no message for client 0"),
        ({"acks": [3]}, "round 3 cannot have been counted in round 2"),
        ({"acks": [-2]}, "round -2 cannot"),
        ({"acks": [None]}, "round None cannot"),
        ({"spec": {"method": "nothing"}}, "there is no method `nothing`"),
        ({"spec": {"trainin": 3}}, "trainin"),
        ({"kind": "done", "acks": []}, "no message for client 0"),
        ({}, "not a model of"),
    ],
)
def test_what_is_not_an_ask_is_declined_with_a_reason(made: Deployment, change: dict, says: str) -> None:
    one = node(made, 0)
    assert says in why(one, ask(made, **change))
    assert says in one.folder.sent_log.read_text()
    assert not list(one.folder.memory.glob("*.safetensors"))


@examples(60)
@given(st.binary(max_size=60))
def test_garbage_is_answered_with_a_refusal(data: bytes) -> None:
    settings = NodeSettings(client=0, server="here", insecure=True, log_sent=False)
    assert "malformed" in why(Node(NodeFolder(Path("nowhere"), settings)), data)


def test_what_leaves_a_node_is_logged_and_a_lost_memory_is_reported(made: Deployment) -> None:
    nodes = {k: node(made, k) for k in range(3)}
    damaged: list[int] = []

    def spoil(data: bytes) -> bytes:
        words = decode(data, 1 << 26).words
        if words.get("t") == 4 and words["kind"] == "ask" and not damaged:
            (file,) = nodes[1].folder.memory.glob("3-*.safetensors")
            file.write_bytes(b"spoilt")
            damaged.append(1)
        return nodes[1].answer(data)

    serve(made, Straight({0: nodes[0].answer, 1: spoil, 2: nodes[2].answer}), clock=Hand())
    status = json.loads(made.status.read_text())
    assert [client["fresh"] for client in status["clients"]] == [0, 1, 0]
    lines = [json.loads(line) for line in nodes[1].folder.sent_log.read_text().splitlines()]
    assert [line["t"] for line in lines] == list(range(10))
    assert [line["counted"] for line in lines] == list(range(-1, 9))
    assert [line["fresh"] for line in lines] == [t == 4 for t in range(10)]
    assert lines[0]["sends"] == sorted(
        [
            "vector",
            *(f"scalar:{name}/{when}" for name in ("loss", "accuracy") for when in ("first", "last")),
            "scalar:samples",
        ]
    )
    assert [file.name[:2] for file in nodes[1].folder.memory.glob("*.safetensors")] == ["9-"]
    assert (status["state"], status["round"], status["seconds_left"]) == ("done", 10, 0.0)
    assert status["clients"][1]["participation"] == 1.0
    assert status["clients"][1]["latest"]["samples"] > 0


def own_samples(root: Path, labels: list[str], seed: int) -> Path:
    """A table as a node's operator may have it."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    file = root / f"samples-{seed}.csv"
    rows = [f"{a:.3f},{b:.3f},{labels[i % len(labels)]}" for i, (a, b) in enumerate(rng.normal(size=(40, 2)))]
    file.write_text("\n".join(["a,b,label", *rows]) + "\n")
    return file


def test_a_node_trains_on_its_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "cache"))
    study = {
        "method": "pmfl",
        "data": {"dataset": "patients", "path": str(own_samples(tmp_path, ["ill", "old", "well"], 1)), "clients": 2},
        "participation": {"pattern": "live"},
        "training": {"rounds": 2, "iterations": 2, "batch_size": 4, "model": {"name": "mlp", "hidden": 4}},
        "evaluation": {"deviation": True},
    }

    def settled(k: int, labels: list[str]) -> Node:
        data = NodeData(path=str(own_samples(tmp_path, labels, 2 + k)))
        folder = NodeFolder(tmp_path, NodeSettings(client=k, server="here", insecure=True, data=data))
        folder.write()
        return Node(folder)

    nodes = {0: settled(0, ["well", "ill"]), 1: settled(1, ["well", "unknown"])}
    link = Straight({k: one.answer for k, one in nodes.items()})
    run = LiveRun(run_spec(study), link=link, terms=Terms(deadline=1.0), clock=Hand())
    records = list(run)
    assert [record.took_part.tolist() for record in records] == [[0], [0]]
    assert run.engine.reasons == {"declined": 2}
    assert "unknown" in run.engine.complaints[1]
    assert "unknown" in nodes[1].folder.sent_log.read_text()
    part = nodes[0]._part
    assert part is not None
    population = part[1].population
    assert population.dataset.labels == run.world.dataset.labels == ("ill", "old", "well")
    assert population.dataset.mean == run.world.dataset.mean
    assert set(population.dataset.train.y.tolist()) == {0, 2}  # in the server's order
    assert len(population.owned[0]) == len(population.dataset.train)


def test_a_node_says_who_it_is_with_a_token_that_stays(made: Deployment) -> None:
    hello = encode({"kind": "hello"}, {})
    first, again = (decode(node(made, 2).answer(hello), 10_000).words for _ in range(2))
    assert first == again
    assert (first["client"], len(first["token"])) == (2, 32)
    token = node(made, 2).folder.folder / "token"
    assert token.stat().st_mode & 0o077 == 0
    assert decode(node(made, 1).answer(hello), 10_000).words["token"] != first["token"]


def test_a_full_disk_is_said_to_the_server(made: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node(made, 0)

    def full(t: int, memory: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one.keeping, "keep", full)
    said: list[str] = []

    def answer(data: bytes) -> bytes:
        reply = one.answer(data)
        said.append(str(decode(reply, 1 << 26).words.get("why")))
        return reply

    run = LiveRun(made.spec, link=Straight({0: answer, 1: node(made, 1).answer}), terms=Terms(1.0), clock=Hand())
    assert [record.took_part.tolist() for record in run] == [[1]] * 10
    assert said == ["[Errno 28] No space left on device"] * 10


def test_what_was_not_finished_is_swept(made: Deployment) -> None:
    one = node(made, 0)
    one.folder.memory.mkdir()
    (one.folder.memory / ".3.part").write_bytes(b"half")
    one.keeping.recall("r", 0, -1, ())
    assert [file.name for file in one.folder.memory.iterdir()] == ["asked.json"]
