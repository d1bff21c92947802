"""What each rule must give back. Every check drives one kind of rule and looks at all of its results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from pmfl.core import tree
from pmfl.core.method import Method
from pmfl.core.types import Downlink, Seen, nobody
from pmfl.errors import MethodError
from pmfl.testing.compare import describe, listed, shapes
from pmfl.testing.promises import strict
from pmfl.testing.spy import CALLS, PARTS
from pmfl.testing.tiny import CROWDS, Crowd, Position, Tiny, TinyEngine

ROUNDS: tuple[Crowd, ...] = ("everyone", "one", "everyone")


def check_is_a_method(method: Method, tiny: Tiny) -> None:
    """A Method with a name, whose rules can be called."""
    if not isinstance(method, Method):
        raise MethodError(
            f"a {type(method).__name__} was given where a Method was expected",
            hint="give a pmfl.core.method.Method, or a function that returns one when called without arguments",
        )
    if not isinstance(method.name, str) or not method.name.strip():
        raise MethodError(f"its name is {method.name!r}", hint="Method(name=…) takes a word to file results under")
    for part, kind in PARTS.items():
        rule = getattr(method, part)
        if not isinstance(rule, kind):
            raise MethodError(f"{part} is a {type(rule).__name__}", hint=f"make it a {kind.__name__}")
        for place, call in CALLS.items():
            if place.startswith(f"{part}.") and not callable(getattr(rule, place.removeprefix(f"{part}."))):
                raise MethodError(f"{place} cannot be called", hint=f"make it a function {call}")
    for name in ("checks", "sends_changes"):
        if not isinstance(value := getattr(method.client, name), bool):
            raise MethodError(f"client.{name} is {value!r}", hint="True or False")


def check_downlink(method: Method, tiny: Tiny) -> None:
    """The server sends a model like its own, a rate and named tensors."""
    server = strict(method).server
    for world in in_both_precisions(tiny):
        w = world.first_model()
        server.send(server.init(w), w, world.now(0))


def check_uplink(method: Method, tiny: Tiny) -> None:
    """A client sends a finite vector like the model, and named scalars."""
    names: set[str] | None = None
    for world in [*in_both_precisions(tiny), tiny.but(iterations=1, batch_size=1), tiny.but(kind="linear")]:
        engine = TinyEngine(world, strict(method).client)
        sent = first_downlink(method, world)
        for t in range(2):
            for k in range(world.clients):
                uplink = engine.one(sent, k, t)
                engine.memories[k] = uplink.memory
                names = names or set(uplink.scalars)
                if names != set(uplink.scalars):
                    raise MethodError(
                        f"client {k} reports {listed(sorted(uplink.scalars))} in round {t}, and before that "
                        f"{listed(sorted(names))} was reported",
                        hint="report every scalar in every participation; NaN where there is nothing to say",
                    )


def check_selection(method: Method, tiny: Tiny) -> None:
    """Selection is a mask of clients, bool [K]."""
    select = strict(method).select
    state, last, replies = select.init(tiny.clients), nobody(tiny.clients), round_by_round(method, tiny)
    for t, who in enumerate(CROWDS * 2):
        _, state = select.apply(state, tiny.crowd(who, t), last, tiny.now(t))
        last = replies(who)


def check_weights(method: Method, tiny: Tiny) -> None:
    """Weights are [K]: finite and not negative where a client took part."""
    weigh = strict(method).weigh
    state, replies = weigh.init(tiny.clients), round_by_round(method, tiny)
    for t, who in enumerate(ROUNDS * 2):
        _, state = weigh.apply(state, replies(who), tiny.now(t))
        importance = weigh.importance(state)
        if importance is not None and importance.shape != (tiny.clients,):
            raise MethodError(
                f"weigh.importance returned {describe(importance)} for {tiny.clients} clients",
                hint="one number per client, or None",
            )


def check_server_step(method: Method, tiny: Tiny) -> None:
    """The server's new model is like its old one."""
    server = strict(method).server
    for world in in_both_precisions(tiny):
        w, replies = world.first_model(), round_by_round(method, world)
        state = server.init(w)
        for t, who in enumerate(ROUNDS):
            w, state = server.apply(state, w, torch.full_like(w, 0.01), replies(who), world.now(t))


def check_shown_model(method: Method, tiny: Tiny) -> None:
    """What is shown, evaluated and exported is like the model."""
    server = strict(method).server
    w, replies = tiny.first_model(), round_by_round(method, tiny)
    state = server.init(w)
    for t, who in enumerate(ROUNDS):
        server.show(state, w)
        w, state = method.server.apply(state, w, torch.full_like(w, 0.01), replies(who), tiny.now(t))
    server.show(state, w)


def check_state_trees(method: Method, tiny: Tiny) -> None:
    """States and memories keep structure, shapes and dtypes."""
    w = tiny.first_model()
    before = {place: state_shapes(place, state) for place, state in states_of(tiny.start(method)).items()}
    memory = state_shapes("client memory", method.client.init(w), only_tensors=True)
    at = tiny.start(method)
    for who in ROUNDS:
        at = tiny.play(method, [who], at)
        for place, state in states_of(at).items():
            _expect_same_shapes(place, before[place], state_shapes(place, state), at.server.t - 1)
        for held in at.memories.values():
            after = state_shapes("client memory", held, only_tensors=True)
            _expect_same_shapes("client memory", memory, after, at.server.t - 1)


def check_participation(method: Method, tiny: Tiny) -> None:
    """Rounds with nobody, one client and everyone work in any order."""
    careful = strict(method)
    _play_mixtures(careful, tiny, tiny.start(careful), ())
    for world, what in ((tiny.but(total=1), "a run of one round"), (tiny.but(clients=1), "a single client")):
        _in_words(what, lambda world=world: world.play(careful, ["everyone"]))  # type: ignore[misc]


def _play_mixtures(method: Method, tiny: Tiny, at: Position, past: tuple[Crowd, ...]) -> None:
    if len(past) == 3:
        return
    for who in CROWDS:
        story = (*past, who)
        what = f"round {len(past)} with {who}" + (f" after {', '.join(past)}" if past else "")
        after = _in_words(what, lambda who=who: tiny.play(method, [who], at))  # type: ignore[misc]
        _play_mixtures(method, tiny, after, story)


def _in_words(what: str, task: Callable[[], Position]) -> Position:
    try:
        return task()
    except MethodError as error:
        raise MethodError(f"{what}: {error.message}", hint=error.hint, code=error.code) from error


def in_both_precisions(tiny: Tiny) -> list[Tiny]:
    """The same world in float32 and in float64."""
    return [tiny.but(dtype=dtype) for dtype in (torch.float32, torch.float64)]


def first_downlink(method: Method, tiny: Tiny) -> Downlink:
    """What clients receive in round 0."""
    w = tiny.first_model()
    return method.server.send(method.server.init(w), w, tiny.now(0))


def round_by_round(method: Method, tiny: Tiny) -> Callable[[Crowd], Seen]:
    """True answers of clients, round after round, with the model held still."""
    engine, sent, rounds = TinyEngine(tiny, method.client), first_downlink(method, tiny), count()

    def answers(who: Crowd) -> Seen:
        t = next(rounds)
        return engine.train(sent, tiny.crowd(who, t), tiny.now(t)).seen

    return answers


def states_of(at: Position) -> dict[str, Any]:
    """The three states a server keeps."""
    server = at.server
    return {"select state": server.select, "weigh state": server.weigh, "server state": server.server}


def state_shapes(place: str, state: Any, *, only_tensors: bool = False) -> dict[str, str]:
    """The leaves of a state, after refusing whatever cannot be saved, compared and sent."""
    found = shapes(state, place)
    _expect_nests(place, state)
    for path, leaf in tree.leaves(state):
        where = f"{place}.{path}" if path else place
        if isinstance(leaf, Tensor):
            if leaf.requires_grad:
                raise MethodError(
                    f"{where} carries its gradient graph along, which grows with every round",
                    hint="keep value.detach()",
                )
        elif only_tensors or type(leaf) not in (bool, int, float, type(None)):
            hint = "keep torch.tensor(value): lanes of clients are stacked" if only_tensors else "keep a plain number"
            raise MethodError(f"{where} is a {type(leaf).__name__}", hint=hint)
    return found


def _expect_nests(place: str, state: Any) -> None:
    if isinstance(state, tuple):
        parts = zip(getattr(state, "_fields", range(len(state))), state, strict=True)
    elif isinstance(state, dict):
        parts = zip(state, state.values(), strict=True)
    elif isinstance(state, Tensor | bool | int | float | None):
        return
    else:
        raise MethodError(
            f"{place} is a {type(state).__name__}",
            hint="a state is made of tensors, numbers, bools and None, in tuples, NamedTuples and dicts",
        )
    for name, part in parts:
        _expect_nests(f"{place}.{name}", part)


def _expect_same_shapes(place: str, before: dict[str, str], after: dict[str, str], t: int) -> None:
    for path in [*before, *after]:
        was, became = before.get(path, "absent"), after.get(path, "absent")
        if was != became:
            raise MethodError(
                f"{path} is {was} from init, and {became} after round {t}",
                hint=f"`init` of the {place.split()[0]} rule makes the state in its final structure, shapes and dtypes",
            )
