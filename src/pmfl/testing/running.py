"""A method runs everywhere: in lanes, in any order, in shards, and across interruptions."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pmfl.core import tree
from pmfl.core.client import by_transform, train_client
from pmfl.core.method import Method
from pmfl.core.types import Downlink, Uplink, Work, nobody
from pmfl.errors import MethodError, StoreError
from pmfl.testing.compare import difference
from pmfl.testing.contract import states_of
from pmfl.testing.tiny import Crowd, Kind, Position, Tiny, TinyEngine

ROUNDS: tuple[Crowd, ...] = ("everyone", "one", "everyone", "nobody", "one", "everyone")
SAME_NUMBERS = 1e-6  # float32, relative to the largest entry if that exceeds 1

REMEMBERS = "a rule remembers something outside of its state (a closure, a global, a cache): put it into the state"


def check_lanes(method: Method, tiny: Tiny) -> None:
    """Clients train under torch.vmap as they do one by one, to 1e-6."""
    kinds: tuple[Kind, ...] = ("dropout", "hidden")
    for kind in kinds:
        world = tiny.but(kind=kind)
        at = world.play(method, ["one", "one"])
        sent = method.server.send(at.server.server, at.server.w, world.now(2))
        engine = TinyEngine(world, method.client, dict(at.memories))
        alone = [engine.one(sent, k, 2) for k in range(world.clients)]
        together = _side_by_side(engine, sent)
        for k, expected in enumerate(alone):
            _expect_same_numbers(expected, tree.unstack(together, k), k)


def _side_by_side(engine: TinyEngine, sent: Downlink) -> Uplink:
    """Everyone's participation in round 2 at once, the downlink shared."""
    tiny, rule = engine.tiny, engine.rule
    works = [tiny.work(2, k, check=rule.checks) for k in range(tiny.clients)]
    memories = [engine.memory(sent, k) for k in range(tiny.clients)]

    def one(memory: Any, work: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(train_client(rule, tiny.model, sent, memory, Work(*work), by_transform))

    # Without held-out samples there is a None at the end, over which vmap cannot map.
    work = tuple(tree.stack(parts) for parts in zip(*works, strict=True) if parts[0] is not None)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return Uplink(*torch.vmap(one)(tree.stack(memories), work))
    except Exception as error:
        message = error.message if isinstance(error, MethodError) else f"{type(error).__name__}: {error}"
        raise MethodError(
            f"under torch.vmap: {message}",
            hint="within a client rule, use torch.where for `if`, and no .item(), float() or bool() of a tensor",
        ) from error


def _expect_same_numbers(alone: Uplink, lane: Uplink, k: int) -> None:
    found = dict(tree.leaves(lane))
    for path, expected in tree.leaves(alone):
        value = found[path]
        if not isinstance(expected, Tensor) or not isinstance(value, Tensor) or not expected.is_floating_point():
            continue
        scale = max(1.0, float(expected.abs().amax())) if expected.numel() else 1.0
        if not torch.allclose(value, expected, rtol=0.0, atol=SAME_NUMBERS * scale, equal_nan=True):
            raise MethodError(
                f"client {k} in a lane under torch.vmap: {path} differs from the client trained alone by "
                f"{float((value - expected).abs().amax()):.2g}",
                hint="within a client rule, let no value of one client reach another",
            )


def check_save_and_load(method: Method, tiny: Tiny) -> None:
    """States and memories come back from a file as they were."""
    at = tiny.play(method, ROUNDS[:3])
    kept = {**states_of(at), "client memory": {str(k): memory for k, memory in at.memories.items()}}
    found = difference(kept, states_and_memories(method, tiny, at), "saved")
    if found:
        raise MethodError(f"after saving and loading, {found}", hint="keep tensors and plain numbers in states")


def states_and_memories(method: Method, tiny: Tiny, at: Position) -> dict[str, Any]:
    """What is left of a position's states after a trip through a file."""
    blank = {**states_of(tiny.start(method)), "client memory": _blank_memories(method, tiny, at)}
    kept = {**states_of(at), "client memory": {str(k): memory for k, memory in at.memories.items()}}
    return dict(_through_a_file(kept, blank))


def _blank_memories(method: Method, tiny: Tiny, at: Position) -> dict[str, Any]:
    return {str(k): method.client.init(tiny.first_model()) for k in at.memories}


def _through_a_file(kept: Any, like: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="pmfl-check-") as folder:
        file = Path(folder) / "state.safetensors"
        try:
            tree.save_tree(file, kept)
            return tree.load_tree(file, like)
        except (OSError, StoreError, TypeError, ValueError, RuntimeError) as error:
            what = error.message if isinstance(error, StoreError) else str(error)
            raise MethodError(
                f"its state cannot be saved and loaded: {what.replace(str(file), 'the file')}",
                hint="keep dense tensors and numbers in states, under names that differ",
            ) from error


def check_resume(method: Method, tiny: Tiny) -> None:
    """A run saved at a random round and resumed gives the same bits."""
    half = int(tiny.key.fold("resume", method.name).numpy().integers(1, len(ROUNDS)))
    kept = tiny.play(method, ROUNDS[:half])
    expected = tiny.play(method, ROUNDS[half:], kept)
    fresh = tiny.build()
    loaded = states_and_memories(fresh, tiny, kept)
    server = kept.server._replace(
        w=_through_a_file((kept.server.w,), (tiny.first_model(),))[0],
        select=loaded["select state"],
        weigh=loaded["weigh state"],
        server=loaded["server state"],
        last=_through_a_file(kept.server.last, nobody(tiny.clients)),
    )
    memories = {int(k): memory for k, memory in loaded["client memory"].items()}
    # What a rule keeps outside of its state is not to survive by accident: another run comes in between.
    tiny.but(key=tiny.key.fold("another run")).play(fresh, ("one", "everyone"))
    found = difference(expected, tiny.play(fresh, ROUNDS[half:], Position(server, memories)), "run")
    if found:
        raise MethodError(f"saved after round {half - 1} and resumed, {found}", hint=REMEMBERS)


def check_order_of_clients(method: Method, tiny: Tiny) -> None:
    """Answers in another order, summed in shards, give the same bits."""
    rounds: tuple[Crowd, ...] = ("everyone", "one", "everyone", "everyone")
    forwards = tiny.play(tiny.build(), rounds)
    backwards = tiny.play(tiny.build(), rounds, backwards=True)
    found = difference(forwards.server, backwards.server, "run") or difference(
        dict(sorted(forwards.memories.items())), dict(sorted(backwards.memories.items())), "memory of client"
    )
    if found:
        raise MethodError(f"with clients in another order, {found}", hint=f"{REMEMBERS} or the client's memory")
