from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.ring import Ring, empty_ring
from tests.toy import F64, examples

pushes = st.lists(st.lists(st.integers(-9, 9), max_size=6), max_size=8)


@examples(80)
@given(n=st.integers(0, 4), pushes=pushes)
def test_a_ring_is_a_deque_of_limited_length(n: int, pushes: list[list[int]]) -> None:
    ring, expected = empty_ring(n, torch.zeros(2, dtype=F64)), deque[list[float]](maxlen=n)
    for values in pushes:
        before = ring.rows.clone()
        vectors = [torch.tensor([v, -v], dtype=F64) for v in values]
        pushed = ring.push(*vectors)
        assert torch.equal(ring.rows, before), "a push changes no older ring"
        ring = pushed
        expected.extend(vector.tolist() for vector in vectors)
        assert ring.rows.shape == (n, 2)
        assert int(ring.filled) == len(expected)
        assert ring.valid.tolist() == [False] * (n - len(expected)) + [True] * len(expected)
        assert ring.rows[ring.valid].tolist() == list(expected)
        mean = ring.mean(otherwise=torch.full((2,), 7.0, dtype=F64))
        if expected:
            torch.testing.assert_close(mean, torch.tensor(list(expected), dtype=F64).mean(0))
        else:
            assert mean.tolist() == [7.0, 7.0]


def test_rows_that_hold_nothing_do_not_count_in_the_mean() -> None:
    ring = empty_ring(3, torch.zeros(1)).push(torch.tensor([4.0]))
    assert ring.mean(otherwise=torch.zeros(1)).tolist() == [4.0]
    assert Ring(torch.tensor([[9.0], [4.0]]), torch.tensor(1)).mean(otherwise=torch.zeros(1)).tolist() == [4.0]


def test_lanes_with_different_counts_push_under_vmap() -> None:
    empty = empty_ring(2, torch.zeros(1))
    full = empty.push(torch.tensor([1.0]), torch.tensor([2.0]))
    rows, counts = torch.stack([empty.rows, full.rows]), torch.stack([empty.filled, full.filled])

    def push(rows: torch.Tensor, count: torch.Tensor, vector: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ring = Ring(rows, count).push(vector)
        return ring.rows, ring.filled, ring.valid, ring.mean(otherwise=vector)

    rows, counts, valid, mean = torch.vmap(push)(rows, counts, torch.tensor([[5.0], [6.0]]))
    assert rows.flatten(1).tolist() == [[0.0, 5.0], [2.0, 6.0]]
    assert counts.tolist() == [1, 2]
    assert valid.tolist() == [[False, True], [True, True]]
    assert mean.flatten().tolist() == [5.0, 4.0]


def test_an_empty_ring_takes_type_and_shape_of_its_pattern() -> None:
    ring = empty_ring(2, torch.zeros(3, dtype=F64))
    assert (ring.rows.dtype, ring.rows.shape, ring.filled.dtype) == (F64, (2, 3), torch.int64)
