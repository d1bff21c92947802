"""A registered node that has turned: python -m tests.deploy.enemy DIR CLIENT. Its answers are anything but a reply.

Flower's node is the real one, with the real key; only the app behind it answers each ask with the next of ``ANSWERS``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.deploy.processes import Child, Stopped
from pmfl.deploy.supervise_node import NodeSupervisor
from pmfl.engines.remote import SCALAR
from pmfl.engines.wire import decode, digest, encode

TIMES = 50  # how much larger than the model a body is
NUMBERS = ("loss/first", "accuracy/first", "loss/last", "accuracy/last", "samples")


def reply(data: bytes, client: int, vector: Callable[[Tensor], Tensor], **words: Any) -> bytes:
    """What an honest client would send, but for some of it."""
    w = decode(data, 1 << 32).tensors["w"]
    said = {"kind": "reply", "client": client, "ask": digest(data), "fresh": False, **words}
    return encode(said, {"vector": vector(w), **{SCALAR + name: torch.tensor(1.0) for name in NUMBERS}})


def turned(data: bytes) -> bytes:
    """One bit of a message, in the middle of its numbers."""
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def noise(data: bytes) -> bytes:
    """As long as the ask."""
    return Key.root(len(data)).numpy().bytes(len(data))


OLD: dict[str, bytes] = {}  # an honest reply to everything that was asked, in the order of asking


def replay(data: bytes, client: int) -> bytes:
    """An honest reply to what was asked first, long ago."""
    return next(iter(OLD.values()))


ANSWERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "50 times the model": lambda data, k: reply(data, k, lambda w: w.repeat(TIMES)),
    "50 times the model, of zeros": lambda data, k: bytes(TIMES * len(data)),
    "noise": lambda data, k: noise(data),
    "nothing": lambda data, k: b"",
    "the ask itself": lambda data, k: data,
    "a turned bit": lambda data, k: turned(reply(data, k, torch.zeros_like)),
    "another client": lambda data, k: reply(data, (k + 1) % 2, torch.zeros_like),
    "a reply of before": replay,
    "not finite": lambda data, k: reply(data, k, lambda w: w * float("nan")),
    "too long": lambda data, k: reply(data, k, lambda w: torch.full_like(w, 1e30)),
    "another shape": lambda data, k: reply(data, k, lambda w: w[:-1]),
}


class Turned(NodeSupervisor):
    """Starts the app below instead of ours."""

    def _child(self, name: str, port: str) -> Child:
        if name != "app":
            return super()._child(name, port)
        arguments = ["-m", "tests.deploy.enemy", "app", str(self.root), str(self.node.settings.client), port]
        child = Child(name, [*arguments, self.marker], self.node.folder / "logs" / "app.log", {"OMP_NUM_THREADS": "1"})
        self.journal.child(name, child.pid)
        return child


def app(arguments: list[str]) -> None:
    """The app: whatever it is asked, the next answer."""
    from flwr.app import Context, Message

    from pmfl.deploy import launch_client_app
    from pmfl.engines.flower import pack, unpack

    client, answers = int(arguments[1]), itertools.cycle(ANSWERS.items())
    log = Path(arguments[0]) / "nodes" / str(client) / "enemy.log"

    def attempt(app: object, message: Message, context: Context) -> tuple[Message, str]:
        name, answer = next(answers)
        asked = unpack(message.content)
        OLD.setdefault(digest(asked), reply(asked, client, torch.zeros_like))
        data = answer(asked, client)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{name}\t{len(data)}\n")
        return Message(pack(data), reply_to=message), ""

    launch_client_app.attempt = attempt
    launch_client_app.main(arguments)


def main(arguments: list[str]) -> None:
    """Its supervisor, or its app."""
    if arguments[0] == "app":
        app(arguments[1:])
    else:
        Turned(Path(arguments[0]), int(arguments[1]), Stopped().listen()).run()


if __name__ == "__main__":
    main(sys.argv[1:])
