"""What the local engine makes of the participation that a deployment has observed: the same model, to the last bit."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pmfl.deploy.settings import Deployment, NodeFolder
from pmfl.study import frames
from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.store import Store


class Replayed(NamedTuple):
    """A run, simulated."""

    sha256: str
    weights: list[float]  # the method's importance of each client


def observed(made: Deployment) -> dict[int, list[int]]:
    """Who took part in each round, by the server's record."""
    table = frames.participation(Store(made.results), [made.spec.run_id])
    found = defaultdict[int, list[int]](list)
    for k, t in zip(table["client"].to_pylist(), table["t"].to_pylist(), strict=True):
        found[t].append(k)
    return dict(found)


def sent(file: Path) -> list[dict[str, Any]]:
    """The replies that left a node, by its own record; a line that a kill has cut short is none."""
    found = []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "sends" in entry:
            found.append(entry)
    return found


def forgotten(made: Deployment) -> set[tuple[int, int]]:
    """Client and round of every reply that began with a new memory because the old one was lost."""
    found = set[tuple[int, int]]()
    for client in made.clients:
        said = defaultdict[int, set[bool]](set)
        for entry in sent(NodeFolder.open(made.root, client.id).sent_log):
            said[entry["t"]].add(entry["fresh"])
        unclear = [t for t, both in said.items() if len(both) > 1]
        assert not unclear, f"client {client.id} has answered round {unclear} with its memory and without"
        found |= {(client.id, t) for t, fresh in said.items() if fresh == {True}}
    return found


def replayed(
    made: Deployment, took_part: Mapping[int, Sequence[int]], lost: Set[tuple[int, int]] = frozenset()
) -> Replayed:
    """Simulate the deployment's study with these clients in each round; memories are lost where they were."""
    run = Run(made.spec)

    def there(state: Any, t: int) -> tuple[torch.Tensor, Any]:
        here = torch.zeros(len(made.clients), dtype=torch.bool)
        here[list(took_part.get(t, ()))] = True
        for k, when in lost:
            if when == t and k in run.engine.memories:
                run.engine.memories.take(k, lambda: None)
        return here, state

    run.world = run.world._replace(pattern=replace(run.world.pattern, row=there))
    for _ in run:
        pass
    run.close()
    importance = run.method.weigh.importance(run.state.server.weigh)
    return Replayed(model_sha256(run.w), [] if importance is None else importance.tolist())
