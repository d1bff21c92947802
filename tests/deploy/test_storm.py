"""A storm in one process: in every round three of ten nodes die, before they train or with a reply that nobody hears.

The code of server and nodes is the real one, and so are the files; the network is a function. `tests/deploy/storm.py`
does the same to real processes.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pmfl.core.keys import Key
from pmfl.deploy.node import Node, prepared
from pmfl.deploy.serve import serve
from pmfl.deploy.settings import Deployment, NodeFolder
from pmfl.engines.remote import Answer, Seat
from pmfl.engines.wire import decode
from pmfl.study.store import Store
from tests.deploy.fake import Hand, Straight, deployment, node
from tests.deploy.replay import observed, replayed

NODES, STRUCK, ROUNDS = 10, 3, 100
SETTLED = 40  # rounds after which whatever is made once has been made
GROWTH = 10  # objects a round that this process may hold more afterwards: tickets are remembered for 100 rounds


class Storm(Straight):
    """Nodes die in the round that they are asked to take part in, and are there again when the next has begun."""

    def __init__(self, made: Deployment) -> None:
        part = prepared(node(made, 0).folder, made.spec, {})
        self.born = lambda k: Node(NodeFolder.open(made.root, k), prepare=lambda *_: part).answer
        for k in range(NODES):
            node(made, k)  # its folder
        super().__init__({k: self.born(k) for k in range(NODES)})
        self.made, self.round, self.births = made, -1, [0] * NODES
        self.away = set[int]()
        self.held = dict[int, int]()

    def present(self) -> Mapping[int, Seat]:
        return {k: Seat(k, str(self.births[k])) for k in range(NODES) if k not in self.away}

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        if (t := decode(data, 1 << 26).words["t"]) != self.round:
            self.round, self.away = t, set()
            if t in (SETTLED, ROUNDS - 1):
                gc.collect()
                self.held[t] = len(gc.get_objects())
            draw = Key.root(7).fold(t).numpy()
            for k in draw.choice(NODES, STRUCK, replace=False).tolist():
                if draw.integers(2):
                    self.nodes[k](data)  # it has trained and kept what it made, and its reply is lost
                self.nodes[k] = self.born(k)
                self.births[k] += 1
                self.away.add(k)
        tickets = super().post(data, {k: seat for k, seat in seats.items() if k not in self.away}, lasting)
        lost = [k for k in seats if k in self.away]
        self.arrived += [Answer(f"lost {self.serial} {k}", None, "gone") for k in lost]
        return {**tickets, **{f"lost {self.serial} {k}": k for k in lost}}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pmfl", "fedau"])
def test_a_storm_of_100_rounds_leaves_the_rules_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # no power is cut here, and disks are slow
    made = deployment(tmp_path, method, NODES, deadline=5.0, min_replies=1)
    study = {**made.study, "training": {**made.study["training"], "rounds": ROUNDS}, "evaluation": {"every": ROUNDS}}
    made = Deployment(made.root, study, made.server, made.clients)
    made.write()
    link = Storm(made)
    summary = serve(made, link, clock=Hand())
    took_part = observed(made)
    assert {len(took_part[t]) for t in range(ROUNDS)} == {4, 5, 6, 7}  # those of the round before come back meanwhile
    again = replayed(made, took_part)
    status = json.loads(made.status.read_text("utf-8"))
    assert [client["weight"] for client in status["clients"]] == again.weights
    assert len(set(again.weights)) > 1
    assert Store(made.results).run(summary["run_id"]).model_sha256 == again.sha256
    assert sum(client["replies"] for client in status["clients"]) == sum(map(len, took_part.values()))
    # Killed after they had trained, they come back with their history.
    assert sum(client["fresh"] for client in status["clients"]) == 0
    assert sum(client["lost"] for client in status["clients"]) >= ROUNDS
    grown = link.held[ROUNDS - 1] - link.held[SETTLED]
    assert grown < GROWTH * (ROUNDS - 1 - SETTLED), f"{grown} objects more after {ROUNDS - 1 - SETTLED} rounds"
