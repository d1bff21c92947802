"""Clients behind a Flower grid. Needs the extra `deploy`.

Written against Flower 1.41: errors that stand for a lost node are matched by the message they reply to, since they name
the server as their source; nodes are known by their public keys, since their numbers change; replies are pulled by a
thread of their own, since one whose upload broke off would make everybody wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from pmfl.engines.remote import Answer, Seat
from pmfl.engines.wire import Refused, decode, encode

RECORD, PART = "pmfl", "message"  # where in Flower's message ours lies
TRAIN, QUERY = "train", "query"  # what Flower calls the two kinds that we send
LOOK = 1.0  # seconds for which the list of nodes is believed
STALLED = 3.0  # seconds after which pulling is given to another thread
FEW = 1 << 16  # bytes of a message that says who somebody is
SHORTEST = 10.0  # seconds that a message lasts: Flower fails on one that has expired when it arrives
PATIENCE = 60.0  # seconds for a node to say who it is, before it is asked again

Binding = Callable[[int, str], bool]  # client and token -> whether this token may speak for this client


def pack(data: bytes) -> RecordDict:
    """A message of ours as the content of one of Flower's."""
    array = Array(dtype="uint8", shape=(len(data),), stype=RECORD, data=data)
    return RecordDict({RECORD: ArrayRecord({PART: array})})


def unpack(content: RecordDict) -> bytes:
    """The message of ours in one of Flower's; empty if there is none."""
    record = content.array_records.get(RECORD)
    return bytes(record[PART].data) if record is not None and PART in record else b""


class FlowerLink:
    """A grid as the engine sees it: who is there, what is sent to them, what comes back."""

    def __init__(self, grid: Grid, keys: Mapping[str, int], binding: Binding | None, pause: float = 0.1) -> None:
        self.grid, self.binding, self.pause = grid, binding, pause
        self.keys = {canonical(key): k for key, k in keys.items() if key}
        self.strangers = 0
        self._seats: dict[int, Seat] = {}
        self._looked = float("-inf")
        self._bound: dict[int, int] = {}  # node id -> client, of those that have said so themselves
        self._greeted: dict[int, float] = {}
        self._hellos: dict[str, int] = {}  # message -> node id
        self._open: set[str] = set()
        self._lock = threading.Lock()
        self._came: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._puller: threading.Thread | None = None
        self._pulled = 0.0  # when the puller last came back

    def present(self) -> Mapping[int, Seat]:
        """The clients whose nodes Flower believes to be online."""
        if time.monotonic() - self._looked > LOOK:
            seats = dict[int, Seat]()
            unknown = list[int]()
            for info in self.grid.get_nodes():
                k = self.keys.get(canonical(info.public_key), self._bound.get(info.node_id))
                if k is None:
                    unknown.append(info.node_id)
                elif k not in seats or seats[k].since < info.last_activated_at:
                    seats[k] = Seat(info.node_id, info.last_activated_at)
            self._greet(unknown)
            self._seats, self._looked = seats, time.monotonic()
        return self._seats

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        """Send one message to some clients: a ticket for each that was taken."""
        ids = self._push(data, [seat.address for seat in seats.values()], TRAIN, lasting)
        return {ticket: k for ticket, k in zip(ids, seats, strict=True) if ticket}

    def collect(self) -> Sequence[Answer]:
        """What has come since the last call."""
        self._pull()
        found = list[Answer]()
        while not self._came.empty():
            answer = self._came.get()
            if isinstance(answer, BaseException):
                raise answer
            if answer.ticket in self._hellos:
                self._meet(self._hellos.pop(answer.ticket), answer)
            else:
                found.append(answer)
        return found

    def _push(self, data: bytes, nodes: Sequence[int], kind: str, lasting: float) -> list[str]:
        if not nodes:
            return []
        ttl = max(lasting, SHORTEST)
        messages = [Message(pack(data), dst_node_id=node, message_type=kind, ttl=ttl) for node in nodes]
        ids = [str(found or "") for found in self.grid.push_messages(messages)] or [""] * len(nodes)
        with self._lock:
            self._open.update(filter(None, ids))
        return ids

    # pulling

    def _pull(self) -> None:
        """See to it that somebody is pulling."""
        alive = self._puller is not None and self._puller.is_alive()
        if not alive or time.monotonic() - self._pulled > STALLED:
            self._pulled = time.monotonic()
            self._puller = threading.Thread(target=self._keep_pulling, daemon=True)
            self._puller.start()

    def _keep_pulling(self) -> None:
        me = threading.current_thread()
        try:
            while self._puller is me:
                with self._lock:
                    ids = list(self._open)
                for message in self.grid.pull_messages(ids) if ids else ():
                    ticket = message.metadata.reply_to_message_id
                    with self._lock:
                        self._open.discard(ticket)
                    self._came.put(_answer(ticket, message))
                if self._puller is me:
                    self._pulled = time.monotonic()
                time.sleep(self.pause)
        except BaseException as error:  # to be raised where the engine waits
            self._came.put(error)

    # nodes without registered keys

    def _greet(self, nodes: Sequence[int]) -> None:
        """Ask nodes that nobody knows who they are; only where keys are not registered."""
        now = time.monotonic()
        new = [node for node in nodes if now - self._greeted.get(node, float("-inf")) > PATIENCE]
        if self.binding is None:
            self.strangers += len(new)
        else:
            ids = self._push(encode({"kind": "hello"}, {}), new, QUERY, PATIENCE)
            self._hellos.update({ticket: node for ticket, node in zip(ids, new, strict=True) if ticket})
            self._pull()
        self._greeted.update(dict.fromkeys(new, now))
        for answer in self.collect() if self._hellos else ():
            self._came.put(answer)

    def _meet(self, node: int, answer: Answer) -> None:
        try:
            words = decode(answer.data or b"", FEW).words
        except Refused:
            return
        k, token = words.get("client"), words.get("token")
        if type(k) is int and isinstance(token, str) and self.binding and self.binding(k, token):
            self._bound[node] = k
            self._looked = float("-inf")
        else:
            self.strangers += 1


def canonical(key: str | bytes) -> str:
    """A public key in one form, whether it came as OpenSSH or as PEM; empty if it is neither."""
    raw = key.encode() if isinstance(key, str) else bytes(key)
    try:
        found: Any = load_pem_public_key(raw) if raw.startswith(b"-----") else load_ssh_public_key(raw)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return str(found.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "ascii")


def _answer(ticket: str, message: Message) -> Answer:
    if message.has_error():
        return Answer(ticket, None, f"error {message.error.code}")
    return Answer(ticket, unpack(message.content))
