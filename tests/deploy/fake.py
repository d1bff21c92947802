"""A network in this process: nodes are functions, time is a number, and messages go wrong when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pmfl.deploy.node import Node
from pmfl.deploy.settings import ClientEntry, Deployment, NodeFolder, NodeSettings, ServerSettings
from pmfl.engines.remote import Answer, Seat


class Hand:
    """A clock that goes on only when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds


class Straight:
    """Delivers at once, to whoever is there."""

    def __init__(self, nodes: Mapping[int, Callable[[bytes], bytes]]) -> None:
        self.nodes = dict(nodes)
        self.arrived: list[Answer] = []
        self.serial = 0

    def present(self) -> Mapping[int, Seat]:
        return {k: Seat(k, "") for k in self.nodes}

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        tickets = {}
        for k in seats:
            self.serial += 1
            tickets[str(self.serial)] = k
            self.arrived.append(Answer(str(self.serial), self.nodes[k](data)))
        return tickets

    def collect(self) -> Sequence[Answer]:
        arrived, self.arrived = self.arrived, []
        return arrived


STUDY = {
    "training": {"rounds": 10, "iterations": 3, "batch_size": 8, "model": {"name": "mlp", "hidden": 8}},
    "evaluation": {"every": 5},
}


def deployment(root: Path, method: object = "pmfl", clients: int = 3, **server: object) -> Deployment:
    entries = tuple(ClientEntry(id=k, name=f"site {k}") for k in range(clients))
    given = {"deadline": 5.0, "min_replies": clients, "insecure": True, **server}
    made = Deployment(root, {"method": method, **STUDY}, ServerSettings.model_validate(given), entries)
    made.write()
    return made


def node(made: Deployment, k: int) -> Node:
    folder = NodeFolder(made.root, NodeSettings(client=k, server=made.superlink, insecure=True))
    folder.write()
    return Node(folder)
