"""Methods that are wrong in one way each, with the one check that has to find it and the words it has to use."""

from __future__ import annotations

import random  # noqa: TID251 - what a method must not do
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pmfl.core.method import (
    Method,
    SelectRule,
    ServerRule,
    WeighRule,
    classification,
    participant_mean,
    plain_client,
    send_model,
    send_update,
)
from pmfl.core.types import Batch, Downlink, Local, Model, Round, Scalar, Scalars, Seen, Uplink, Vector

Anything = Any


class Wrong(NamedTuple):
    """A factory of a wrong method, the check that must fail, and a pattern of what it must say."""

    make: Callable[..., Anything]
    check: str
    says: str


WRONG: list[Wrong] = []


def wrong(check: str, says: str) -> Callable[[Callable[..., Anything]], Callable[..., Anything]]:
    def register(make: Callable[..., Anything]) -> Callable[..., Anything]:
        WRONG.append(Wrong(make, check, says))
        return make

    return register


def server(apply: Callable[..., Anything], init: Callable[[Vector], Anything] = lambda w: (), **rest: Any) -> Method:
    return Method(name="wrong", server=ServerRule(init=init, apply=apply, **rest))


def plus_step(state: Any, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Any]:
    return w + step, state


def client(**rules: Any) -> Method:
    return Method(name="wrong", client=replace(plain_client, **rules))


def weigh(apply: Callable[..., Anything], init: Callable[[int], Anything] = lambda clients: (), **rest: Any) -> Method:
    return Method(name="wrong", weigh=WeighRule(init=init, apply=apply, **rest))


def equal_weights(seen: Seen) -> Tensor:
    return participant_mean.apply((), seen, None)[0]  # type: ignore[arg-type]


# Not a method at all.


@wrong("check_is_a_method", "a dict was given where a Method was expected")
def a_dict() -> Any:
    return {"name": "fedx"}


@wrong("check_is_a_method", "its name is ' '")
def nameless() -> Method:
    return Method(name=" ")


@wrong("check_is_a_method", r"making the method raised TypeError: .* missing 1 required .*'strength'")
def needs_an_argument(strength: float) -> Method:
    return Method(name="wrong")


@wrong("check_is_a_method", "weigh is a function")
def a_function_for_a_rule() -> Method:
    return Method(name="wrong", weigh=lambda seen: seen.took_part)  # type: ignore[arg-type]


@wrong("check_is_a_method", "client.loss cannot be called")
def no_loss() -> Method:
    return client(loss=None)


@wrong("check_is_a_method", "client.checks is 'yes'")
def checks_in_words() -> Method:
    return client(checks="yes")


@wrong("check_is_a_method", "client.sends_changes is 1")
def changes_as_a_number() -> Method:
    return client(sends_changes=1)


# Results of the wrong shape, type or size.


@wrong("check_downlink", r"server.send: w is float32 \[10\]")
def sends_a_part() -> Method:
    return server(plus_step, send=lambda state, w, now: send_model(state, w[:10], now))


@wrong("check_downlink", "server.send: lr is float")
def sends_a_plain_number() -> Method:
    return server(plus_step, send=lambda state, w, now: Downlink(w, now.client_lr, {}))


@wrong("check_downlink", "server.send returned a tuple")
def sends_a_pair() -> Method:
    return server(plus_step, send=lambda state, w, now: (w, torch.tensor(now.client_lr)))


@wrong("check_downlink", "server.send: extra is not a dict of tensors")
def sends_words() -> Method:
    return server(plus_step, send=lambda state, w, now: send_model(state, w, now)._replace(extra={"mode": "fast"}))  # type: ignore[dict-item]


@wrong("check_uplink", r"client.reply: vector is float32 \[51\].*")
def always_in_float32() -> Method:
    def reply(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
        return send_update(model, local, delta, check)._replace(vector=delta.float())

    return client(reply=reply)


@wrong("check_uplink", r"client.reply: scalar 'drift' is float32 \[51\]")
def reports_a_vector() -> Method:
    def reply(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
        return Uplink(delta, local.memory, {"drift": delta.abs()}, delta)

    return client(reply=reply)


@wrong("check_uplink", "client.reply: vector is not finite at 0, 1, 2, 3, 4, …")
def divides_by_zero() -> Method:
    def reply(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
        return Uplink(delta / (local.e * 0), local.memory, {}, delta)

    return client(reply=reply)


@wrong("check_uplink", "client 0 reports .*again.* in round 1, and before that .* was reported")
def reports_now_and_then() -> Method:
    def reply(model: Model, local: Local[Tensor], delta: Vector, check: Batch | None) -> Uplink:
        scalars = {"again": torch.tensor(1.0)} if local.memory > 0 else {}
        return Uplink(delta, local.memory + 1, scalars, delta)

    return client(init=lambda w: torch.tensor(0), reply=reply)


@wrong("check_uplink", "client.reply returned a tuple")
def replies_with_a_pair() -> Method:
    return client(reply=lambda model, local, delta, check: (delta, local.memory))


@wrong("check_uplink", "client.loss: scalar 'penalty' carries its gradient graph")
def reports_with_its_graph() -> Method:
    def loss(model: Model, local: Local[Any], batch: Batch) -> tuple[Scalar, Scalars]:
        value, scalars = classification(model, local, batch)
        penalty = local.w.square().sum() / 1000
        return value + penalty, {**scalars, "penalty": penalty}

    return client(loss=loss)


@wrong("check_uplink", "client.loss the loss does not depend on local.w")
def loss_of_the_received_model() -> Method:
    def loss(model: Model, local: Local[Any], batch: Batch) -> tuple[Scalar, Scalars]:
        return classification(model, local._replace(w=local.sent.w), batch)

    return client(loss=loss)


@wrong("check_uplink", "client.loss: scalars is a Tensor")
def loss_with_a_number() -> Method:
    def loss(model: Model, local: Local[Any], batch: Batch) -> Any:
        value, scalars = classification(model, local, batch)
        return value, scalars["accuracy"]

    return client(loss=loss)


@wrong("check_selection", r"select.apply: chosen is int64 \[\d\] for 3 clients")
def selects_ids() -> Method:
    rule: SelectRule[Any] = SelectRule(
        init=lambda clients: (),
        apply=lambda state, available, last, now: (available.nonzero().flatten(), state),
    )
    return Method(name="wrong", select=rule)


@wrong("check_weights", r"weigh.apply: weights of clients that took part are negative: -0.333333 \(client 1\)")
def negative_weights() -> Method:
    def apply(state: Any, seen: Seen, now: Round) -> tuple[Tensor, Any]:
        signs = torch.tensor([1.0, -1.0]).repeat(now.clients)[: now.clients]
        return equal_weights(seen) * signs, state

    return weigh(apply)


@wrong("check_weights", r"weights of clients that took part are not finite: inf \(client 0\)")
def divides_by_times_seen_before() -> Method:
    def apply(times: Tensor, seen: Seen, now: Round) -> tuple[Tensor, Tensor]:
        return equal_weights(seen) / times, times + seen.took_part

    return weigh(apply, init=lambda clients: torch.zeros(clients, dtype=torch.int64))


@wrong("check_weights", r"weigh.apply: weights is float32 \[1\] for 3 clients")
def weights_of_participants_only() -> Method:
    return weigh(lambda state, seen, now: (torch.ones(len(seen.clients)) / max(len(seen.clients), 1), state))


@wrong("check_weights", r"weigh.importance returned float32 \[\] for 3 clients")
def importance_of_nobody() -> Method:
    return weigh(lambda state, seen, now: (equal_weights(seen), state), importance=lambda state: torch.tensor(1.0))


@wrong("check_server_step", r"server.apply: w is float32 \[51\]")
def moves_in_float32() -> Method:
    return server(lambda state, w, step, seen, now: ((w + step).float(), state))


@wrong("check_server_step", r"server.apply returned float32 \[51\]")
def forgets_the_state() -> Method:
    return server(lambda state, w, step, seen, now: w + step)


@wrong("check_server_step", r"server.apply raised KeyError: 'loss' \(at wrong_methods.py:\d+\)")
def looks_for_what_is_not_reported() -> Method:
    return server(lambda state, w, step, seen, now: (w + step * seen.scalars["loss"].mean(), state))


@wrong("check_server_step", "server.apply raised TypeError: .* 3 positional arguments but 5 were given")
def takes_three_arguments() -> Method:
    return server(lambda state, w, step: (w + step, state))


@wrong("check_shown_model", r"server.show: w is float32 \[1, 51\]")
def shows_a_row() -> Method:
    return server(plus_step, show=lambda state, w: w[None])


# States.


@wrong("check_state_trees", r"weigh state is int64 \[3\] from init, and float32 \[3\] after round 0")
def counts_become_means() -> Method:
    def apply(times: Tensor, seen: Seen, now: Round) -> tuple[Tensor, Tensor]:
        return equal_weights(seen), (times + seen.took_part) / 2

    return weigh(apply, init=lambda clients: torch.zeros(clients, dtype=torch.int64))


@wrong("check_state_trees", r"server state is an empty tuple from init, and absent after round 0")
def grows_with_time() -> Method:
    return server(lambda steps, w, step, seen, now: (w + step, (*steps, step)))


@wrong("check_state_trees", "server state.seen is a list")
def keeps_a_list() -> Method:
    return server(plus_step, init=lambda w: {"seen": [w]})


@wrong("check_state_trees", "server state is a float64")
def keeps_a_numpy_number() -> Method:
    return server(plus_step, init=lambda w: np.float64(0.5))


@wrong("check_state_trees", "client memory.times is a int")
def remembers_a_plain_number() -> Method:
    def reply(model: Model, local: Local[Any], delta: Vector, check: Batch | None) -> Uplink:
        return Uplink(delta, {"times": local.memory["times"] + 1}, {}, delta)

    return client(init=lambda w: {"times": 0}, reply=reply)


@wrong("check_state_trees", "server state carries its gradient graph along")
def keeps_a_parameter() -> Method:
    return server(plus_step, init=lambda w: torch.nn.Parameter(torch.zeros(2)))


# Crowds.


@wrong("check_participation", "round 0 with nobody: server.apply raised KeyError: 'loss/last'")
def needs_somebody() -> Method:
    return server(lambda state, w, step, seen, now: (w + step * (seen.scalars["loss/last"].mean() > 0), state))


@wrong("check_participation", "round 0 with nobody: server.apply: w is not finite")
def divides_by_the_crowd() -> Method:
    def apply(state: Any, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Any]:
        return w + step * (seen.took_part.sum() / seen.took_part.sum()), state

    return server(apply)


@wrong("check_participation", "round 2 with nobody after nobody, one: server.apply raised ZeroDivisionError")
def needs_somebody_twice() -> Method:
    def apply(rounds: int, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, int]:
        crowd = int(seen.took_part.sum())
        return w + step * (1 if rounds == 0 or crowd == now.clients else 1 / crowd), int(crowd == 1)

    return server(apply, init=lambda w: 0)


@wrong("check_participation", "a run of one round: server.apply raised ZeroDivisionError")
def divides_by_the_rounds_after_the_first() -> Method:
    return server(lambda state, w, step, seen, now: (w + step * (1 - now.t / (2 * (now.total - 1))), state))


# Purity.


@wrong("check_no_global_randomness", "server.apply used the global generator of torch")
def adds_noise() -> Method:
    return server(lambda state, w, step, seen, now: (w + step + 1e-3 * torch.randn_like(w), state))


@wrong("check_no_global_randomness", "select.apply used the global generator of numpy")
def draws_with_numpy() -> Method:
    def apply(state: Any, available: Tensor, last: Seen, now: Round) -> tuple[Tensor, Any]:
        return available & torch.from_numpy(np.random.random(now.clients) < 2), state  # noqa: NPY002

    return Method(name="wrong", select=SelectRule(init=lambda clients: (), apply=apply))


@wrong("check_no_global_randomness", "weigh.apply used the global generator of python's random module")
def draws_with_python() -> Method:
    return weigh(lambda state, seen, now: (equal_weights(seen) * (1 + 0 * random.random()), state))


@wrong("check_no_global_randomness", "the seed of a global random generator changes the result: run.server.w")
def draws_and_puts_back() -> Method:
    def apply(state: Any, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Any]:
        with torch.random.fork_rng():
            return w + step + 1e-3 * torch.randn_like(w), state

    return server(apply)


@wrong("check_inputs_unchanged", r"server.apply changed its own input: argument.1\[\d+\] is .* before and .* after")
def moves_in_place() -> Method:
    return server(lambda state, w, step, seen, now: (w.add_(step), state))


@wrong("check_inputs_unchanged", r"weigh.apply changed its own input: argument.0.times\[0\] is 0 before and 1 after")
def counts_in_place() -> Method:
    def apply(state: dict[str, Tensor], seen: Seen, now: Round) -> tuple[Tensor, dict[str, Tensor]]:
        state["times"] += seen.took_part
        return equal_weights(seen), state

    return weigh(apply, init=lambda clients: {"times": torch.zeros(clients, dtype=torch.int64)})


@wrong("check_inputs_unchanged", "client.step changed its own input: argument.1.scratch.* has 0 in only one of the two")
def appends_to_the_scratch() -> Method:
    def step(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, Any]:
        local.scratch.trail.append(local.w)
        return local.w - local.sent.lr * gradient, local.scratch

    @dataclass
    class Scratch:
        trail: list[Vector]

    return client(begin=lambda model, local, batches: Scratch([]), step=step)


@wrong("check_same_input_same_output", r"server.apply returned two things for one input: result.0\[\d+\] is")
def counts_its_calls() -> Method:
    calls = [0]

    def apply(state: Any, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Any]:
        calls[0] += 1
        return w + step / (1 + 0.01 * calls[0]), state

    return server(apply)


# Where and how it runs.


@wrong("check_lanes", "under torch.vmap: client.loss raised RuntimeError: .*data-dependent control flow")
def decides_by_a_value() -> Method:
    def loss(model: Model, local: Local[Any], batch: Batch) -> tuple[Scalar, Scalars]:
        value, scalars = classification(model, local, batch)
        return (value if value < 1 else 1 + (value - 1) / 2), scalars

    return client(loss=loss)


@wrong("check_lanes", "client 0 in a lane under torch.vmap: vector differs from the client trained alone by")
def asks_how_it_is_differentiated() -> Method:
    def step(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, Any]:
        alone = type(local.scratch) is Tensor and not torch._C._functorch.is_batchedtensor(gradient)
        return local.w - local.sent.lr * gradient * (1.0 if alone else 0.9), local.scratch

    return client(begin=lambda model, local, batches: batches.y, step=step)


@wrong("check_save_and_load", "its state cannot be saved and loaded: .*two parts of a state are called .*mean.x")
def names_that_collide() -> Method:
    return server(plus_step, init=lambda w: {"mean.x": w, "mean": {"x": w + 1}})


@wrong("check_resume", r"saved after round \d and resumed, run.server.w\[0\] is")
def remembers_its_first_step() -> Method:
    first: list[Vector] = []

    def apply(state: Any, w: Vector, step: Vector, seen: Seen, now: Round) -> tuple[Vector, Any]:
        if not first:
            first.append(step)
        return w + step + 0.1 * first[0], state

    return server(apply)


@wrong("check_order_of_clients", r"with clients in another order, run.w\[\d\] is")
def follows_the_first_client_of_a_round() -> Method:
    leaders: dict[float, Tensor] = {}

    def step(model: Model, local: Local[Any], gradient: Vector) -> tuple[Vector, Any]:
        leader = leaders.setdefault(float(local.sent.w.double().sum()), gradient.clone())
        return local.w - local.sent.lr * (gradient + 0.1 * leader), local.scratch

    return client(step=step)


# Whether it learns.


@wrong("check_loss_falls", r"the loss went from 1.\d+ to 1.\d+")
def climbs() -> Method:
    return server(lambda state, w, step, seen, now: (w - step, state))


@wrong("check_learns", r"after 30 rounds with everyone, the accuracy is 0.\d\d")
def stops_after_the_first_round() -> Method:
    return server(lambda state, w, step, seen, now: (w + step if now.t == 0 else w, state))


@wrong("check_learns", "diverged in round")
def steps_far_too_far_later() -> Method:
    return server(
        lambda state, w, step, seen, now: (w + step * 10.0 ** min(now.t - 7, 8) if now.t > 7 else w + step, state)
    )
