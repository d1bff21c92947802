import pytest
import torch
from torch.nn.functional import cross_entropy

from pmfl.core.keys import Key
from pmfl.core.method import (
    Method,
    accuracy,
    add_step,
    classification,
    everyone_available,
    no_scratch,
    node_mean,
    participant_mean,
    plain_client,
    send_model,
    send_update,
    sgd_step,
    show_model,
)
from pmfl.core.types import Local, Round, Seen, nobody
from tests.toy import F64, downlink, draw_batch, normal, tiny_model

NOW = Round(3, 10, 4, 0.05, Key.root(0))


def test_the_plain_objective_is_cross_entropy_with_the_masks_of_the_batch() -> None:
    model = tiny_model(keep=0.5)
    w, batch = model.init(Key.root(0)), draw_batch(model, Key.root(1), 8)
    value, scalars = classification(model, Local(w, downlink(w), ()), batch)
    logits = model.logits(w, batch.x, batch.masks)
    assert torch.equal(value, cross_entropy(logits, batch.y))
    assert float(scalars["accuracy"]) == float((logits.argmax(1) == batch.y).float().mean())


def test_accuracy_is_a_share() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0]], requires_grad=True)
    share = accuracy(logits, torch.tensor([0, 0, 0, 1]))
    assert share.item() == 0.75
    assert not share.requires_grad


def test_the_plain_step_is_gradient_descent() -> None:
    w = torch.tensor([1.0, 2.0], dtype=F64)
    local: Local[tuple[()]] = Local(w, downlink(w, lr=0.5), (), scratch="kept")
    stepped, scratch = sgd_step(tiny_model(), local, torch.tensor([2.0, -2.0], dtype=F64))
    assert (stepped.tolist(), scratch) == ([0.0, 3.0], "kept")


def test_the_plain_reply_is_the_update_and_the_old_memory() -> None:
    w, delta = torch.zeros(2), torch.ones(2)
    uplink = send_update(tiny_model(), Local(w, downlink(w), "memory"), delta, None)
    assert uplink.vector is delta
    assert uplink.update is delta
    assert (uplink.memory, uplink.scalars) == ("memory", {})


def test_the_plain_client_prepares_and_remembers_nothing() -> None:
    model = tiny_model()
    w = normal(Key.root(0), model.size)
    assert plain_client.init(w) == ()
    no_scratch(model, Local(w, downlink(w), ()), draw_batch(model, Key.root(0), 2, 2))
    assert not plain_client.checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_downlink_carries_the_model_and_the_scheduled_rate(dtype: torch.dtype) -> None:
    w = torch.zeros(3, dtype=dtype)
    sent = send_model((), w, NOW)
    assert sent.w is w
    assert sent.lr.dtype == dtype
    assert float(sent.lr) == pytest.approx(0.05)
    assert sent.extra == {}


def test_the_model_on_show_is_the_servers_own() -> None:
    w = torch.zeros(3)
    assert show_model((), w) is w


def test_everyone_available_is_asked() -> None:
    available = torch.tensor([True, False, True, False])
    chosen, state = everyone_available.apply(everyone_available.init(4), available, nobody(4), NOW)
    assert torch.equal(chosen, available)
    assert state == ()


@pytest.mark.parametrize(
    ("here", "of_participants", "of_all"),
    [
        ([1, 0, 1, 0], [0.5, 0, 0.5, 0], [0.25, 0, 0.25, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, 1, 1, 1], [0.25] * 4, [0.25] * 4),
    ],
)
def test_the_two_plain_means(here: list[int], of_participants: list[float], of_all: list[float]) -> None:
    seen = Seen(torch.tensor(here).bool(), {})
    for rule, expected in ((participant_mean, of_participants), (node_mean, of_all)):
        weights, _ = rule.apply(rule.init(4), seen, NOW)
        assert weights.dtype == F64
        assert weights.tolist() == expected
        assert rule.importance(()) is None


def test_the_plain_server_adds_the_step() -> None:
    rule = add_step(0.5)
    w = torch.tensor([1.0, 1.0])
    moved, state = rule.apply(rule.init(w), w, torch.tensor([2.0, -2.0]), nobody(4), NOW)
    assert (moved.tolist(), state) == ([2.0, 0.0], ())


def test_a_method_is_plain_where_it_says_nothing() -> None:
    method = Method(name="mine")
    assert (method.client, method.select, method.weigh) == (plain_client, everyone_available, participant_mean)
    w = torch.ones(1)
    assert method.server.apply(method.server.init(w), w, w, nobody(1), NOW)[0].tolist() == [2.0]


def test_an_ablation_exchanges_one_rule_and_leaves_the_original() -> None:
    method = Method(name="mine")
    other = method.but("other", weigh=node_mean)
    assert (other.name, other.weigh, other.client) == ("other", node_mean, plain_client)
    assert (method.name, method.weigh) == ("mine", participant_mean)
