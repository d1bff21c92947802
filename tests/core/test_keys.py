import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.core.keys import Key
from tests.toy import examples

names = st.lists(st.one_of(st.integers(-5, 300), st.text("ab/:1", max_size=3)), min_size=1, max_size=3)


@examples(100)
@given(a=names, b=names)
def test_different_names_are_different_keys(a: list[str | int], b: list[str | int]) -> None:
    """Numbers and words that look alike are different names."""
    key = Key.root(0)
    assert (key.fold(*a) == key.fold(*b)) == (list(map(typed, a)) == list(map(typed, b)) or text(a) == text(b))


def typed(name: str | int) -> tuple[type, str | int]:
    return type(name), name


def text(path: list[str | int]) -> str:
    """What is hashed. A name with a slash and a colon in it may spell two names; no caller has one."""
    return "".join(f"/{type(name).__name__}:{name}" for name in path)


GOLDEN_ROOT = 0x2774AFF9F036750BEA1F3E122421C313
GOLDEN_BATCH = 0xBE55C731103C0B4E20DB5AAF01A1C2BC
GOLDEN_NUMPY = [234, 789, 922, 247]
GOLDEN_TORCH = [248, 300, 154, 759]


def test_a_number_is_not_the_word_for_it() -> None:
    assert Key.root(0).fold(1) != Key.root(0).fold("1")


def test_a_path_is_one_name_not_several() -> None:
    key = Key.root(0)
    assert key.fold("a", 1) != key.fold("a").fold(1)
    assert key.fold("a", "b") != key.fold("ab")


def test_roots_differ_by_seed() -> None:
    assert len({Key.root(seed) for seed in range(1000)}) == 1000


def test_keys_do_not_change_between_versions() -> None:
    """Golden: results on disk were drawn from these."""
    key = Key.root(0).fold("batch", 3, 7)
    assert Key.root(0).bits == GOLDEN_ROOT
    assert key.bits == GOLDEN_BATCH
    assert key.numpy().integers(0, 1000, 4).tolist() == GOLDEN_NUMPY
    assert torch.randint(0, 1000, (4,), generator=key.torch()).tolist() == GOLDEN_TORCH


def test_another_process_derives_the_same_key() -> None:
    code = "from pmfl.core.keys import Key; print(Key.root(5).fold('x', 2).bits)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == Key.root(5).fold("x", 2).bits


def test_generators_start_at_the_key_every_time() -> None:
    key = Key.root(1).fold("here")
    assert np.array_equal(key.numpy().normal(size=5), key.numpy().normal(size=5))
    assert torch.equal(torch.randn(5, generator=key.torch()), torch.randn(5, generator=key.torch()))
    other = Key.root(1).fold("there")
    assert not np.array_equal(key.numpy().normal(size=5), other.numpy().normal(size=5))
    assert not torch.equal(torch.randn(5, generator=key.torch()), torch.randn(5, generator=other.torch()))


def test_drawing_touches_no_global_state() -> None:
    before = torch.random.get_rng_state()
    torch.randn(3, generator=Key.root(0).torch())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_key_cannot_change() -> None:
    with pytest.raises(AttributeError):
        Key.root(0).bits = 3  # type: ignore[misc]
