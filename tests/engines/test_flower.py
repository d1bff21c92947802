"""The link on Flower's grid, with a grid of our own in its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.task_identity import TaskIdentity

from pmfl.engines import flower
from pmfl.engines.flower import FlowerLink, canonical, pack, unpack
from pmfl.engines.remote import Answer, Seat
from pmfl.engines.wire import decode, encode

KEYS = [ec.generate_private_key(ec.SECP384R1()).public_key() for _ in range(2)]
OPENSSH = [str(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH), "ascii") for key in KEYS]
PEM = [key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in KEYS]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's processes know which run they belong to."""
    for name, number in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, number)


def info(node: int, key: bytes = b"", since: str = "1") -> SimpleNamespace:
    return SimpleNamespace(node_id=node, public_key=key, last_activated_at=since)


class Grid:
    """Answers what it is told to."""

    def __init__(self, nodes: list[SimpleNamespace], answer: Callable[[Message], Any]) -> None:
        self.nodes, self.answer = nodes, answer
        self.pushed: list[Message] = []
        self.waiting: dict[str, Message] = {}
        self.stall = 0.0

    def get_nodes(self) -> list[SimpleNamespace]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.pushed.append(message)
            ids.append(f"m{len(self.pushed)}")
            self.waiting[ids[-1]] = message
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        ready = [(i, self.waiting.pop(i)) for i in ids if i in self.waiting]
        if ready:
            stall, self.stall = self.stall, 0.0
            time.sleep(stall)
        return [reply(i, self.answer(message)) for i, message in ready]


def reply(ticket: str, content: bytes | Error | Exception) -> Message:
    if isinstance(content, Exception):
        raise content
    metadata = Metadata(1, "x", 1, 1, ticket, "", time.time(), 60.0, "train")
    if isinstance(content, Error):
        return make_message(metadata, error=content)
    return make_message(metadata, content=pack(content))


def link(grid: Grid, binding: flower.Binding | None = None) -> FlowerLink:
    keys = {OPENSSH[0]: 0, OPENSSH[1]: 1}
    return FlowerLink(grid, keys if binding is None else {}, binding, pause=0.01)  # type: ignore[arg-type]


def collected(one: FlowerLink, n: int) -> list[Answer]:
    found: list[Answer] = []
    end = time.monotonic() + 20
    while len(found) < n and time.monotonic() < end:
        found += one.collect()
        time.sleep(0.01)
    return found


def test_a_message_is_bytes_in_flowers_form() -> None:
    assert unpack(pack(b"abc")) == b"abc"
    assert unpack(RecordDict()) == b""


def test_keys_are_compared_whatever_their_form() -> None:
    assert canonical(OPENSSH[0]) == canonical(PEM[0]) == canonical(OPENSSH[0] + " somebody@somewhere")
    assert canonical(PEM[0]) != canonical(PEM[1])
    assert canonical("nonsense") == canonical(b"") == canonical(b"-----BEGIN nothing") == ""


def test_clients_are_known_by_their_keys_and_strangers_are_nobody() -> None:
    grid = Grid([info(70, PEM[1]), info(71, PEM[0], "1"), info(72, PEM[0], "2"), info(73, b"other")], lambda m: b"")
    one = link(grid)
    assert one.present() == {1: Seat(70, "1"), 0: Seat(72, "2")}
    assert (one.strangers, grid.pushed) == (1, [])
    grid.nodes = []
    assert len(one.present()) == 2  # believed for a moment
    one._looked = 0
    assert one.present() == {}


def test_replies_and_errors_are_matched_by_the_message_they_answer() -> None:
    def answer(message: Message) -> Any:
        return unpack(message.content) + b"!" if message.metadata.dst_node_id == 70 else Error(3, "gone")

    grid = Grid([], answer)
    one = link(grid)
    tickets = one.post(b"ask", {1: Seat(70, ""), 0: Seat(71, "")}, 30.0)
    assert tickets == {"m1": 1, "m2": 0}
    assert {message.metadata.ttl for message in grid.pushed} == {30.0}
    assert sorted(collected(one, 2)) == [Answer("m1", b"ask!"), Answer("m2", None, "error 3")]
    assert one.post(b"ask", {}, 30.0) == {}


def test_one_reply_that_hangs_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "STALLED", 0.2)
    grid = Grid([], lambda message: b"late" if message.metadata.dst_node_id == 1 else b"soon")
    one = link(grid)
    grid.stall = 2.0
    one.post(b"", {0: Seat(1, "")}, 30.0)
    one.collect()
    time.sleep(0.5)
    one.post(b"", {1: Seat(2, "")}, 30.0)
    assert collected(one, 1) == [Answer("m2", b"soon")]
    assert collected(one, 1) == [Answer("m1", b"late")]


def test_what_goes_wrong_while_pulling_is_raised_where_the_engine_waits() -> None:
    one = link(Grid([], lambda message: ConnectionError("no server")))
    one.post(b"", {0: Seat(1, "")}, 30.0)
    with pytest.raises(ConnectionError, match="no server"):
        collected(one, 1)


def test_without_keys_a_node_is_asked_who_it_is_and_the_first_word_counts() -> None:
    def answer(message: Message) -> Any:
        node = message.metadata.dst_node_id
        if decode(unpack(message.content), 10_000).words["kind"] != "hello":
            return b"reply"
        return b"rubbish" if node == 9 else encode({"kind": "hello", "client": node % 2, "token": f"of {node}"}, {})

    known: dict[int, str] = {}
    grid = Grid([info(4), info(5), info(6), info(9)], answer)
    one = link(grid, lambda k, token: known.setdefault(k, token) == token)
    end = time.monotonic() + 20
    while len(one.present()) < 2 and time.monotonic() < end:
        one.collect()
        one._looked = 0
    seats = {k: seat.address for k, seat in one.present().items()}
    assert seats in ({0: 4, 1: 5}, {0: 6, 1: 5})  # whichever of the two that say 0 was heard first
    assert one.strangers == 1
    assert [message.metadata.message_type for message in grid.pushed] == ["query"] * 4
    one.post(encode({"kind": "ask"}, {}), one.present(), 30.0)
    assert [answer.data for answer in collected(one, 2)] == [b"reply"] * 2
