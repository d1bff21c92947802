import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.methods.contrast import contrast
from tests.oracle import local_training as oracle
from tests.toy import examples, normal

Z = torch.tensor([[1, 0], [0, 1]]).double()
SENT = torch.tensor([[1, 1], [0, 2]]).double()
PAST = torch.tensor([[[0, 1], [1, 1]], [[2, 0], [-1, 1]]]).double()
BOTH = torch.tensor([True, True])
TO_SENT = torch.tensor([0.7071068, 1.0]).double()


@pytest.mark.parametrize(("mu", "expected"), [(0.5, 0.041683), (0.9, 0.415817), (1.0, 0.415817)])
def test_vectors(mu: float, expected: float) -> None:
    assert float(contrast(Z, SENT, PAST, BOTH, mu, 0.5)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("sample", "at_half", "at_most"), [(0, 0.083366, 0.083366), (1, 0.0, 0.748268)])
def test_vectors_per_sample(sample: int, at_half: float, at_most: float) -> None:
    here = slice(sample, sample + 1)
    for mu, expected in ((0.5, at_half), (0.9, at_most)):
        assert float(contrast(Z[here], SENT[here], PAST[:, here], BOTH, mu, 0.5)) == pytest.approx(expected, abs=1e-6)


def test_the_threshold_may_be_a_similarity_to_the_received_model() -> None:
    """mu = s_g = (.7071, 1): the second sample's .7071 is a negative, the first's 1 a positive."""
    assert float(contrast(Z, SENT, PAST, BOTH, Z, 0.5)) == pytest.approx(0.415817, abs=1e-6)


def test_without_a_past_it_is_exactly_zero() -> None:
    none = torch.tensor([False, False])
    for mu in (0.5, float("inf"), Z):
        assert float(contrast(Z, SENT, PAST, none, mu, 0.5)) == 0.0


def test_with_positives_alone_it_is_exactly_zero() -> None:
    assert float(contrast(Z, SENT, PAST, BOTH, -1.0, 0.5)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_small_temperature_overflows_nothing(dtype: torch.dtype) -> None:
    z = (-Z).to(dtype).requires_grad_()
    value = contrast(z, SENT.to(dtype), PAST.to(dtype), BOTH, 0.99, 0.01)
    (gradient,) = torch.autograd.grad(value, z)
    assert 50 < value.item() < 500
    assert gradient.isfinite().all()


def test_a_dead_representation_has_a_finite_gradient() -> None:
    z = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(contrast(torch.relu(z), SENT, PAST, BOTH, 0.5, 0.5), z)
    assert torch.equal(gradient, torch.zeros(2, 2).double())


def test_neither_the_received_nor_old_models_nor_the_threshold_get_a_gradient_of_the_split() -> None:
    z, anchor = normal(Key.root(0), 4, 3).requires_grad_(), normal(Key.root(1), 4, 3).requires_grad_()
    sent, past = normal(Key.root(2), 4, 3), normal(Key.root(3), 2, 4, 3)
    value = contrast(z, sent, past, BOTH, anchor, 0.5)
    to_z, to_anchor = torch.autograd.grad(value, (z, anchor), allow_unused=True)
    assert to_z.abs().sum() > 0
    assert to_anchor is None or not to_anchor.any()


@examples(60)
@given(
    seed=st.integers(0, 2**32), mu=st.sampled_from([-1.0, 0.0, 0.5, 0.9, "anchor"]), tau=st.sampled_from([0.05, 0.5])
)
def test_against_the_oracle(seed: int, mu: float | str, tau: float) -> None:
    key = Key.root(seed)
    z, sent, past, anchor = (normal(key.fold(i), *shape) for i, shape in enumerate(((3, 4), (3, 4), (4, 3, 4), (3, 4))))
    valid = torch.arange(4) >= seed % 5
    total = 0.0
    for b in range(3):
        threshold = oracle.sim(anchor[b].tolist(), sent[b].tolist()) if mu == "anchor" else float(mu)
        history = [row[b].tolist() for row in past[valid]]
        sets = oracle.split(z[b].tolist(), history, threshold)
        total += oracle.l_con(z[b].tolist(), sent[b].tolist(), *sets, tau) / 3
    value = contrast(z, sent, past, valid, anchor if mu == "anchor" else float(mu), tau)
    assert float(value) == pytest.approx(total, abs=1e-10)


@examples(40)
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_tie_is_a_positive_whatever_the_shape(seed: int, dtype: torch.dtype) -> None:
    """The pair that sets the threshold may be in the history; rounding must not make it a negative."""
    key = Key.root(seed)
    b, d, m = 1 + seed % 5, 1 + seed % 67, 1 + seed % 4
    z, other = normal(key, b, d).to(dtype), normal(key.fold("other"), b, d).to(dtype)

    def only_tie(sent: Tensor, past: Tensor, anchor: Tensor) -> float:
        return float(contrast(z, sent, past.expand(m, b, d), torch.ones(m, dtype=torch.bool), anchor, 0.5))

    assert only_tie(other, other, z) == 0.0  # "current", with the received model in the history
    assert only_tie(z, other, other) == 0.0  # "last_local", with the last model in the history
