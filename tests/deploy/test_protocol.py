"""The two sides of a deployment under every fault a network and a machine can have: do they still agree?

A run of real server and node code, with real files, over a network that does what a list of events tells it: deliver,
drop, repeat and delay messages, replace them by garbage or by older ones, kill a node at any step, kill the server at
any step, take clients away and bring them back. When the events are over the network is good, and the run must end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from pmfl.deploy.keeping import Keeping
from pmfl.deploy.node import Node, Part
from pmfl.deploy.serve import LiveRun
from pmfl.deploy.settings import NodeFolder, NodeSettings
from pmfl.engines.remote import Answer, RemoteEngine, Seat, Terms
from pmfl.engines.wire import decode
from pmfl.study import run as run_module
from pmfl.study.names import resolve
from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.world import World, build_world
from pmfl.world.datasets import from_arrays
from tests.toy import examples

CLIENTS, ROUNDS = 3, 6
METHODS = ["pmfl", "mifa", "fedvarp"]


def spec(method: str, pattern: str = "live") -> RunSpec:
    return run_spec(
        {
            "method": {"name": method, "local_models": 2} if method == "pmfl" else method,
            "data": {"clients": CLIENTS, "partition": "iid"},
            "participation": {"pattern": pattern},
            "training": {"rounds": ROUNDS, "iterations": 2, "batch_size": 2, "model": {"name": "mlp", "hidden": 2}},
            "evaluation": {"every": ROUNDS},
        }
    )


def small_world() -> World:
    rng = np.random.Generator(np.random.Philox(key=1))
    x, y = rng.normal(size=(24, 3)).astype(np.float32), np.arange(24) % 3
    return build_world(spec("fedavg"), Key.root(0), dataset=from_arrays(x, y, x[:6], y[:6], labels=("a", "b", "c")))


class Crash(Exception):
    """The power went."""


class Chaos:
    """A network and the machines behind it. Every look at it lets one event happen."""

    def __init__(self, root: Path, events: Sequence[tuple[str, int]], world: World, method: str) -> None:
        self.damages = any(what == "memory is damaged" for what, _ in events)
        self.root, self.events, self.world, self.method = root, list(events), world, method
        self.seconds = 0.0
        self.serial, self.births = 0, [0] * CLIENTS
        self.away: set[int] = set()
        self.asks: list[tuple[str, int, bytes]] = []  # ticket, client, message: on their way to a node
        self.replies: list[Answer] = []  # on their way to the server
        self.arrived: list[Answer] = []
        self.said: list[bytes] = []  # everything that a node has ever sent
        self.dies_at = ""  # the step at which the server dies next
        self.nodes = [self._born(k) for k in range(CLIENTS)]

    # what the engine sees

    def present(self) -> Mapping[int, Seat]:
        return {k: Seat(k, str(self.births[k])) for k in range(CLIENTS) if k not in self.away}

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        self.die("before post")
        tickets = {}
        for k in seats:
            self.serial += 1
            tickets[str(self.serial)] = k
            self.asks.append((str(self.serial), k, data))
        self.die("after post")
        return tickets

    def collect(self) -> Sequence[Answer]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        if self.events:
            self.happen(*self.events.pop(0))
        else:  # from here on the network is good
            self.away.clear()
            while self.asks:
                self.deliver(0)
            self.arrived += self.replies
            self.replies.clear()

    # what happens

    def die(self, step: str) -> None:
        if self.dies_at == step:
            self.dies_at = ""
            raise Crash

    def happen(self, what: str, i: int) -> None:
        if what == "server dies":
            raise Crash
        if what in ("before post", "after post", "before save", "after save"):
            self.dies_at = what
        elif what == "leave":
            self.away.add(i % CLIENTS)
        elif what == "come":
            self.away.discard(i % CLIENTS)
        elif what == "memory is damaged":
            for file in self.nodes[i % CLIENTS].keeping.folder.glob("*.safetensors"):
                file.write_bytes(file.read_bytes()[:-1])
        elif what == "node dies":
            self.nodes[i % CLIENTS] = self._born(i % CLIENTS)
        elif self.asks and what in (
            "deliver",
            "deliver twice",
            "lose ask",
            "spoil ask",
            "error",
            "dies in recall",
            "dies in keep",
            "dies after keep",
        ):
            self.ask_event(what, i % len(self.asks), i)
        elif self.replies and what in ("bring", "bring twice", "lose reply", "spoil", "replay"):
            self.reply_event(what, i % len(self.replies), i)

    def ask_event(self, what: str, i: int, how: int) -> None:
        if what == "deliver twice":
            self.asks.append(self.asks[i])
        if what in ("deliver", "deliver twice"):
            self.deliver(i)
        elif what == "lose ask":
            self.asks.pop(i)
        elif what == "spoil ask":
            ticket, k, data = self.asks.pop(i)
            reply = self.nodes[k].answer(spoilt(data, how))
            assert decode(reply, 1 << 20).words["kind"] == "no", "a node believed an ask that was damaged"
            self.replies.append(Answer(ticket, reply))
        elif what == "error":
            self.replies.append(Answer(self.asks.pop(i)[0], None, "error"))
        else:
            _, k, data = self.asks.pop(i)
            self.nodes[k].keeping.dies = what  # type: ignore[attr-defined]
            with contextlib.suppress(Crash):  # a stale ask never comes so far
                self.nodes[k].answer(data)
            self.nodes[k] = self._born(k)

    def reply_event(self, what: str, i: int, how: int) -> None:
        if what == "bring twice":
            self.replies.append(self.replies[i])
        answer = self.replies.pop(i)
        if what == "spoil" and answer.data:
            answer = answer._replace(data=spoilt(answer.data, how))
        if what == "replay" and self.said:
            answer = answer._replace(data=self.said[how % len(self.said)])
        if what != "lose reply":
            self.arrived.append(answer)

    def deliver(self, i: int) -> None:
        ticket, k, data = self.asks.pop(i)
        reply = self.nodes[k].answer(data)
        self.said.append(reply)
        self.replies.append(Answer(ticket, reply))

    def _born(self, k: int) -> Node:
        """A node's process: what it knew is gone, what is on disk is not."""
        self.births[k] += 1
        settings = NodeSettings(client=k, server="here", insecure=True, log_sent=False)
        made = Node(NodeFolder(self.root, settings), prepare=lambda *_: self.part())
        made.keeping = Mortal(made.keeping.folder)
        return made

    def part(self) -> Part:
        method = resolve("method", self.method)(**spec(self.method).method.params)
        return Part(method, self.world.model, self.world.population)


def spoilt(data: bytes, how: int) -> bytes:
    """A message of which one bit has turned, anywhere."""
    place, bit = how * 7919 % len(data), how % 8
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


class Mortal(Keeping):
    """Memory on a disk whose machine dies when it is told to."""

    dies = ""

    def recall(self, run: str, t: int, counted: int, first: Any) -> Any:
        found = super().recall(run, t, counted, first)
        self._die("dies in recall")
        return found

    def _remember(self, run: str, t: int, counted: int) -> None:
        super()._remember(run, t, counted)
        self._die("dies in keep")  # the index is written, and nothing swept yet

    def keep(self, t: int, memory: Any) -> None:
        super().keep(t, memory)
        self._die("dies after keep")

    def _die(self, step: str) -> None:
        if self.dies == step:
            raise Crash


class MortalRun(LiveRun):
    """A server that dies around a save when it is told to."""

    chaos: Chaos

    def save(self) -> None:
        self.chaos.die("before save")
        super().save()
        self.chaos.die("after save")


class Played(NamedTuple):
    run: LiveRun
    history: dict[int, list[int]]
    deaths: int


def play(chaos: Chaos, method: str) -> Played:
    """The run, started again after every death of the server, with both sides compared each time."""
    history, deaths = dict[int, list[int]](), 0
    while True:
        terms = Terms(deadline=1.0, min_replies=1)
        try:
            run = MortalRun(spec(method), link=chaos, terms=terms, folder=chaos.root / "server", clock=chaos)
            run.chaos = chaos
            history = {t: who for t, who in history.items() if t < run.t}
            agree(chaos, run, history)
            for record in run:
                history[record.t] = record.took_part.tolist()
                run.save()
            agree(chaos, run, history)
            return Played(run, history, deaths)
        except Crash:
            deaths += 1
            chaos.arrived.clear()  # a new server knows no old tickets; asks that are under way stay so


def agree(chaos: Chaos, run: LiveRun, history: Mapping[int, list[int]]) -> None:
    """What the server has saved and what lies on the nodes' disks are one history."""
    tally = run.engine.tally
    for k in range(CLIENTS):
        mine = [t for t, who in history.items() if k in who]
        assert int(tally.replies[k]) == len(mine), "a reply was counted twice, or lost"
        assert int(tally.counted[k]) == max(mine, default=-1)
        assert chaos.damages or int(tally.fresh[k]) == 0, "a memory was lost"
        if mine and not chaos.damages:
            assert list(chaos.nodes[k].keeping.folder.glob(f"{mine[-1]}-*.safetensors")), "the counted memory is gone"
    sound = all(readable(chaos, k, int(tally.counted[k])) for k in range(CLIENTS))
    if run.spec.method.name in ("mifa", "fedvarp") and sound:
        rows = [row(chaos, run, k, int(tally.counted[k])) for k in range(CLIENTS)]
        mean = torch.stack(rows).double().mean(0)
        assert torch.allclose(run.state.server.server.double(), mean, atol=1e-6), (
            "the server's mean is not the clients'"
        )


def readable(chaos: Chaos, k: int, counted: int) -> bool:
    """Whether the memory that counts is whole; one that was damaged lies there until it is found out, or is gone."""
    files = chaos.nodes[k].keeping.folder.glob(f"{counted}-*.safetensors")
    return counted < 0 or any(hashlib.sha256(file.read_bytes()).hexdigest() in file.name for file in files)


def row(chaos: Chaos, run: LiveRun, k: int, counted: int) -> torch.Tensor:
    """What client k last sent, as its own disk has it."""
    first = run.method.client.init(run.w)
    if counted < 0:
        return first.y  # type: ignore[no-any-return]
    from pmfl.core.tree import load_tree

    (file,) = chaos.nodes[k].keeping.folder.glob(f"{counted}-*.safetensors")
    return load_tree(file, first).y  # type: ignore[no-any-return]


def undisturbed(world: World, method: str, history: Mapping[int, list[int]]) -> str:
    """The model of the local engine when the same clients take part in the same rounds."""
    run = Run(spec(method))

    def there(state: Any, t: int) -> tuple[torch.Tensor, Any]:
        here = torch.zeros(CLIENTS, dtype=torch.bool)
        here[history[t]] = True
        return here, state

    run.world = run.world._replace(pattern=world.pattern.__class__(world.pattern.start, there, world.pattern.rates))
    for _ in run:
        pass
    run.close()
    return model_sha256(run.w)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One small world for every start of every server."""
    made = small_world()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "build_world", lambda *_, **__: made)
        patch.setattr(os, "fsync", lambda handle: None)  # no power is cut here, and disks are slow
        yield made


LIKELY = ["deliver", "bring"]
EVENTS = [
    *LIKELY * 4,
    "deliver twice",
    "lose ask",
    "spoil ask",
    "error",
    "bring twice",
    "lose reply",
    "spoil",
    "replay",
    "leave",
    "come",
    "node dies",
    "dies in recall",
    "dies in keep",
    "dies after keep",
    "server dies",
    "before post",
    "after post",
    "before save",
    "after save",
]
stories = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1000)), max_size=150)


@pytest.mark.parametrize("what", ["spoil", "spoil ask"])
def test_one_turned_bit_after_the_other_is_refused_and_counted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    reasons, count = list[str](), RemoteEngine._count

    def counted(engine: RemoteEngine, reason: str) -> str:
        reasons.append(reason)
        return count(engine, reason)

    monkeypatch.setattr(RemoteEngine, "_count", counted)
    events = [(event, how) for how in range(0, 1000, 17) for event in ("deliver", what)]
    run, history, _ = play(Chaos(tmp_path, events, world, "pmfl"), "pmfl")
    assert Counter(reasons)["damaged" if what == "spoil" else "declined"] >= 5
    assert int(run.engine.tally.refused.sum()) == len(reasons)
    assert model_sha256(run.w) == undisturbed(world, "pmfl", history)


@pytest.mark.parametrize("death", ["dies in recall", "dies in keep"])
@pytest.mark.parametrize("method", METHODS)
def test_a_node_that_dies_over_an_ask_which_it_had_answered_keeps_its_memory(
    world: World, tmp_path: Path, method: str, death: str
) -> None:
    """Found by a storm: its first answer is counted while the same ask is on its way to it again."""
    events = [("deliver twice", 0), ("bring", 0), (death, 2), *[("deliver", 0), ("bring", 0)] * 8]
    chaos = Chaos(tmp_path, events, world, method)
    run, history, _ = play(chaos, method)
    assert int(run.engine.tally.fresh.sum()) == 0
    assert model_sha256(run.w) == undisturbed(world, method, history)


@pytest.mark.parametrize("method", ["mifa", "fedvarp"])
def test_lost_memories_leave_nothing_behind_on_the_server(world: World, method: str) -> None:
    @examples(15)
    @given(
        st.lists(st.tuples(st.sampled_from([*EVENTS, *["memory is damaged"] * 6]), st.integers(0, 1000)), max_size=100)
    )
    def held(events: list[tuple[str, int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            chaos = Chaos(Path(folder), events, world, method)
            assert play(chaos, method).run.t == ROUNDS

    held()


@pytest.mark.parametrize("method", METHODS)
def test_both_sides_agree_whatever_happens(world: World, method: str) -> None:
    @examples(15)
    @given(stories)
    def held(events: list[tuple[str, int]]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            chaos = Chaos(Path(folder), events, world, method)
            run, history, _ = play(chaos, method)
            assert run.t == ROUNDS
            assert sorted(history) == list(range(ROUNDS))
            assert model_sha256(run.w) == undisturbed(world, method, history)

    held()
