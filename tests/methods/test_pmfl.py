from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.client import by_autograd, by_transform, train_client
from pmfl.core.keys import Key
from pmfl.core.method import plain_client
from pmfl.core.tree import stack
from pmfl.core.types import Batch, Local, Model, Round, Work, nobody
from pmfl.methods.fedau import Timing, fedau
from pmfl.methods.global_history import HistoryIn
from pmfl.methods.pmfl import Memory, Threshold, Unit, pmfl
from tests.oracle import aggregation as oracle
from tests.oracle import local_training
from tests.oracle.local_training import Sample
from tests.toy import (
    F64,
    PRESENT,
    TARGETS,
    Played,
    Sizes,
    coins,
    downlink,
    draw_work,
    examples,
    given_updates,
    normal,
    play_rounds,
    play_toy,
    points,
    tiny_model,
)

# The client rule.


def samples_of(work: Work) -> list[list[Sample]]:
    """The mini-batches in the oracle's words."""

    def mask(i: int, e: int, b: int) -> list[float] | None:
        return work.batches.masks[i][e, b].tolist() if work.batches.masks else None

    iterations, batch = work.batches.y.shape
    return [
        [
            Sample(work.batches.x[e, b].tolist(), int(work.batches.y[e, b]), (mask(0, e, b), mask(1, e, b)))
            for b in range(batch)
        ]
        for e in range(iterations)
    ]


@pytest.mark.parametrize("threshold", [*get_args(Threshold), 0.5, 0.97, 1])
@pytest.mark.parametrize("unit", get_args(Unit))
@examples(6)
@given(
    seed=st.integers(0, 2**32),
    n=st.sampled_from([1, 2, 3, 5]),
    iterations=st.sampled_from([1, 2, 3]),
    keep=st.sampled_from([1.0, 0.7]),
    tau=st.sampled_from([0.5, 0.05]),
    differentiate=st.sampled_from([by_autograd, by_transform]),
)
def test_training_agrees_with_the_paper_written_out(
    seed: int,
    threshold: Threshold | float,
    unit: Unit,
    n: int,
    iterations: int,
    keep: float,
    tau: float,
    differentiate: Any,
) -> None:
    key, sizes = Key.root(seed), Sizes()
    model = tiny_model(sizes, keep=keep)
    method = pmfl(contrast_weight=0.8, temperature=tau, local_models=n, threshold=threshold, history_unit=unit)
    memory = method.client.init(normal(key.fold("start"), model.size))
    known = local_training.Memory()
    for t in range(3):
        received = normal(key.fold("received", t), model.size)
        work = draw_work(model, key.fold("work", t), iterations=iterations, batch=2)
        uplink = train_client(method.client, model, downlink(received), memory, work, differentiate)
        delta, known, l_con = local_training.pmfl_participation(
            sizes.layers,
            received.tolist(),
            samples_of(work),
            known,
            lr=0.1,
            weight=0.8,
            tau=tau,
            n=n,
            threshold=threshold,
            unit=unit,
        )
        memory = uplink.memory
        close(uplink.vector, delta)
        close(uplink.update, delta)
        close(memory.history.rows[memory.history.valid], known.s_l)
        close(memory.last, known.last)
        close(uplink.scalars["contrast/first"], l_con[0])
        close(uplink.scalars["contrast/last"], l_con[-1])


def close(value: Tensor, expected: Any) -> None:
    torch.testing.assert_close(value, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-10)


def test_a_client_that_never_trained_has_no_contrast_in_its_first_iteration() -> None:
    model = tiny_model()
    method = pmfl()
    w = normal(Key.root(3), model.size)
    work = draw_work(model, Key.root(4), iterations=1, batch=4)
    uplink = train_client(method.client, model, downlink(w), method.client.init(w), work)
    plain = train_client(plain_client, model, downlink(w), (), work)
    assert float(uplink.scalars["contrast/first"]) == 0.0
    torch.testing.assert_close(uplink.vector, plain.vector, rtol=0, atol=1e-14)


Pair = tuple[int, int]


def watched(model: Model, frozen: list[tuple[Tensor, Tensor]], trained: list[tuple[Tensor, Tensor]]) -> Model:
    """The model, writing down every representation it computes: without and with a gradient."""

    def represent(w: Tensor, x: Tensor, masks: Any) -> Tensor:
        (trained if w.requires_grad else frozen).append((w.detach().clone(), x))
        return model.represent(w, x, masks)

    return Model(model.size, model.init, represent, model.classify, model.masks)


@pytest.mark.parametrize("keep", [1.0, 0.7])
@pytest.mark.parametrize("threshold", get_args(Threshold))
@pytest.mark.parametrize("unit", get_args(Unit))
@pytest.mark.parametrize(("n", "iterations"), [(5, 5), (2, 5), (4, 2), (1, 1)])
def test_every_frozen_forward_is_needed_and_done_once(
    keep: float, threshold: Threshold, unit: Unit, n: int, iterations: int
) -> None:
    """A forward is a pair of a model and a mini-batch; the pairs needed follow from the definition of the loss."""
    model = tiny_model(keep=keep)
    method = pmfl(local_models=n, threshold=threshold, history_unit=unit)
    key, batch = Key.root(5), 3
    memory = method.client.init(normal(key, model.size))
    for t in range(n):  # until the history is full
        work = draw_work(model, key.fold("before", t), iterations=iterations, batch=batch)
        sent = downlink(normal(key.fold("sent", t), model.size))
        memory = train_client(method.client, model, sent, memory, work).memory
    work = draw_work(model, key.fold("now"), iterations=iterations, batch=batch)
    sent = downlink(normal(key.fold("sent now"), model.size))

    frozen: list[tuple[Tensor, Tensor]] = []
    trained: list[tuple[Tensor, Tensor]] = []
    train_client(method.client, watched(model, frozen, trained), sent, memory, work)

    trail = [w for w, _ in trained]
    assert len(trail) == iterations
    needed = set()
    for e in range(iterations):
        window = [*memory.history.rows, *(trail[:e] if unit == "iteration" else [])][-n:]
        needed |= {(bits(w), e) for w in [sent.w, *window]}
        if threshold == "last_local":
            needed.add((bits(memory.last), e))
    if keep == 1.0:
        needed.remove((bits(sent.w), 0))  # the local model of iteration 0 is the received one

    x_of = {bits(work.batches.x[e]): e for e in range(iterations)}
    done = [(bits(w), x_of[bits(part)]) for w, x in frozen for part in x.split(batch)]
    assert len(done) == len(set(done)), "a frozen forward was repeated"
    assert set(done) == needed
    if (keep, threshold, unit, n, iterations) == (1.0, "last_local", "iteration", 5, 5):
        assert len(done) == 15 + 4 + 6 + 5  # old models, received, this participation's, last
        assert len(frozen) == 5 + 1 + 3 + 1  # and in how many calls


def bits(value: Tensor) -> bytes:
    return value.detach().contiguous().numpy().tobytes()


def test_no_gradient_flows_into_frozen_models() -> None:
    """Their representations, and what is remembered, hang on no graph even if what was received does."""
    model, rule = tiny_model(), pmfl(local_models=2).client
    w = normal(Key.root(0), model.size).requires_grad_()
    work = draw_work(model, Key.root(1), iterations=3, batch=3)
    local: Local[Memory] = Local(w, downlink(w), rule.init(w))
    scratch = rule.begin(model, local, work.batches)
    frozen = [scratch.sent, scratch.last, *scratch.past]
    assert not any(one.z_EBD.requires_grad for one in frozen)
    value, scalars = rule.loss(model, local._replace(scratch=scratch), work.batches.at(0))
    assert value.requires_grad
    assert not any(scalar.requires_grad for scalar in scalars.values())


@pytest.mark.parametrize("threshold", [*get_args(Threshold), 0.5])
@pytest.mark.parametrize("unit", get_args(Unit))
def test_lanes_train_as_one_by_one(threshold: Threshold | float, unit: Unit) -> None:
    """Under vmap some lanes may have a history and others none."""
    model = tiny_model(keep=0.8)
    method = pmfl(local_models=3, threshold=threshold, history_unit=unit)
    key = Key.root(11)
    sent = downlink(normal(key, model.size))
    works = [draw_work(model, key.fold("work", k), iterations=3, batch=2) for k in range(3)]
    fresh = method.client.init(sent.w)
    used = train_client(method.client, model, downlink(normal(key.fold("old"), model.size)), fresh, works[0]).memory
    memories = [fresh, used, fresh]
    alone = [train_client(method.client, model, sent, m, w) for m, w in zip(memories, works, strict=True)]

    def one(memory: Memory, batches: Batch, samples: Tensor) -> tuple[Any, ...]:
        return tuple(train_client(method.client, model, sent, memory, Work(batches, samples), by_transform))

    lanes = torch.vmap(one)(stack(memories), stack([w.batches for w in works]), stack([w.samples for w in works]))
    for k in range(3):
        torch.testing.assert_close(lanes[0][k], alone[k].vector, rtol=0, atol=1e-12)
        torch.testing.assert_close(lanes[1].history.rows[k], alone[k].memory.history.rows, rtol=0, atol=1e-12)
        assert int(lanes[1].history.filled[k]) == int(alone[k].memory.history.filled)
        assert lanes[2]["contrast/last"][k].item() == pytest.approx(alone[k].scalars["contrast/last"].item())


def test_without_weight_or_without_models_nothing_is_contrasted() -> None:
    assert pmfl(contrast_weight=0).client is plain_client
    assert pmfl(local_models=0).client is plain_client
    assert pmfl().client is not plain_client


# The server's rules. Without a contrast, since TOY clients have no representations.


def round_of(t: int, total: int) -> Round:
    return Round(t, total, 1, 0.1, Key.root(0))


def toy(present: Tensor = PRESENT, **options: Any) -> Played:
    return play_toy(pmfl(contrast_weight=0, cutoff=3, **options), present)


INCLUSIVE = (
    "(.047500,0) (-.003868,.054286) (.006350,.213139) (-.012568,.203750) (.037629,.179236) (.031809,.183409) "
    "(-.015972,.256702) (.465603,-.007307)"
)
NO_HISTORY = (
    "(.047500,0) (-.006769,.095000) (-.005804,.366463) (-.036552,.403439) (.024993,.379485) (.024993,.379485) "
    "(-.023772,.423023) (.461014,.090545)"
)
PREDICTIVE = (
    "(.047500,0) (.024564,.027143) (.023523,.077692) (-.009226,.119321) (.048125,.099047) (.042271,.098969) "
    "(.001501,.173726) (.526474,-.080760)"
)
FIVE = (
    "(.047500,0) (-.003868,.054286) (.006350,.213139) (-.014646,.201165) (.038505,.162999) (.034266,.156449) "
    "(-.014520,.233707) (.466457,-.020836)"
)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, INCLUSIVE),
        ({"global_models": 1}, NO_HISTORY),
        ({"timing": "predictive"}, PREDICTIVE),
        ({"global_models": 5}, FIVE),
    ],
)
def test_toy(options: dict[str, Any], path: str) -> None:
    torch.testing.assert_close(toy(**options).path, points(path), rtol=0, atol=1e-6)


def test_the_weights_after_each_toy_round() -> None:
    text = """1 - - -;1 - 2 -;1 3 2 3;1.3333333333 3 2 3;1.25 3 2 3;1.25 3 2 3
        ;1.4 3 2.3333333333 3;1.3333333333 2.6666666667 2 2.6666666667"""
    expected = [[float("nan") if v == "-" else float(v) for v in row.split()] for row in text.split(";")]
    x = torch.stack([state.weigh.x for state in toy().states])
    torch.testing.assert_close(x, torch.tensor(expected, dtype=F64), equal_nan=True, rtol=0, atol=1e-9)


def test_without_contrast_and_history_and_with_predictive_weights_it_is_fedau() -> None:
    less = toy(timing="predictive", global_models=0)
    same = play_toy(fedau(cutoff=3))
    assert torch.equal(less.path, same.path)
    for a, b in zip(less.outcomes, same.outcomes, strict=True):
        assert torch.equal(a.weights, b.weights)


def test_one_global_model_is_none() -> None:
    assert torch.equal(toy(global_models=0).path, toy(global_models=1).path)
    assert not torch.equal(toy(global_models=0).path, toy(global_models=2).path)


@examples(40)
@given(
    seed=st.integers(0, 2**32),
    h=st.sampled_from([0, 1, 2, 3, 5]),
    history_in=st.sampled_from(get_args(HistoryIn)),
    timing=st.sampled_from(get_args(Timing)),
    cutoff=st.sampled_from([0, 2, 4]),
    rounds=st.sampled_from([1, 2, 9]),
)
def test_the_server_agrees_with_algorithm_2_written_out(
    seed: int, h: int, history_in: HistoryIn, timing: Timing, cutoff: int, rounds: int
) -> None:
    key = Key.root(seed)
    updates, present = normal(key, rounds, 4, 3), coins(key.fold("present"), 0.4, rounds, 4)
    method = pmfl(
        contrast_weight=0, cutoff=cutoff, timing=timing, global_models=h, history_in=history_in, server_lr=0.7
    )
    engine = given_updates(method.client, updates)
    played = play_rounds(method, engine, present, w=torch.ones(3).double(), total=rounds)
    expected = oracle.pmfl(
        [1.0] * 3,
        present.tolist(),
        lambda t, k, w: updates[t, k].tolist(),
        c=cutoff,
        h=h,
        eta=0.7,
        timing=timing,
        history_in=history_in,
    )
    close(played.path, expected.held)
    close(torch.stack([sent.w for sent in engine.sent]), expected.sent)
    close(torch.stack([method.server.show(state.server, state.w) for state in played.states]), expected.shown)


@pytest.mark.parametrize("history_in", get_args(HistoryIn))
def test_what_clients_answer_depends_on_where_the_history_acts(history_in: HistoryIn) -> None:
    """As above, with updates that depend on what was sent."""
    expected = oracle.pmfl(
        [0.0, 0.0],
        PRESENT.tolist(),
        lambda t, k, w: [0.19 * (a - v) for a, v in zip(TARGETS[k].tolist(), w, strict=True)],
        c=3,
        h=3,
        history_in=history_in,
    )
    close(toy(history_in=history_in).path, expected.held)


def test_the_mix_fades_from_one_half_to_nothing() -> None:
    """psi for T = 5, read off a server whose step leads to 1 and whose past is 0."""
    server = pmfl().server
    seen: list[float] = []
    for t in range(5):
        now = round_of(t, 5)
        state = server.init(torch.zeros(1).double())
        state = state._replace(past=state.past.push(torch.zeros(1).double()))
        w, _ = server.apply(state, torch.zeros(1).double(), torch.ones(1).double(), nobody(1), now)
        seen.append(1 - float(w))
    assert seen == [0.5, 0.375, 0.25, 0.125, 0.0]
    assert [oracle.psi(t, 5) for t in range(5)] == seen


def test_a_run_of_one_round_mixes_nothing() -> None:
    server = pmfl().server
    state = server.init(torch.zeros(1).double())
    state = state._replace(past=state.past.push(torch.zeros(1).double()))
    w, _ = server.apply(state, torch.zeros(1).double(), torch.ones(1).double(), nobody(1), round_of(0, 1))
    assert float(w) == 1.0


@pytest.mark.parametrize(
    ("h", "half_way", "drift"),
    [(2, False, 0.3333), (3, False, 0.2857), (5, False, 0.2222), (9, False, 0.1538), (3, True, 0.5455)],
)
def test_the_history_is_a_brake(h: int, half_way: bool, drift: float) -> None:
    """Under a constant step u the model drifts by u (1 - psi) / (1 + psi H / 2) a round."""
    server = pmfl(global_models=h).server
    w, step = torch.zeros(1).double(), torch.ones(1).double()
    state, before = server.init(w), w
    now = round_of(50 if half_way else 0, 101)  # psi = 1/4 or 1/2, held fixed
    for _ in range(200):
        before = w
        w, state = server.apply(state, w, step, nobody(1), now)
    psi = 0.25 if half_way else 0.5
    assert float(w - before) == pytest.approx((1 - psi) / (1 + psi * h / 2), rel=1e-6)
    assert float(w - before) == pytest.approx(drift, abs=1e-4)


def test_an_empty_round_moves_the_model_only_towards_its_past() -> None:
    path = toy().path
    assert not torch.equal(path[5], path[4])
    psi = oracle.psi(5, 8)
    torch.testing.assert_close(path[5], (1 - psi) * path[4] + psi * (path[3] + path[2]) / 2, rtol=0, atol=1e-12)
    still = toy(global_models=0).path
    assert torch.equal(still[5], still[4])
