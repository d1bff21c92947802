from __future__ import annotations

import hashlib
import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmfl.engines.wire import MOST_TENSORS, MOST_WORDS, TYPES, Refused, decode, digest, encode
from tests.toy import examples

LIMIT = 1 << 20
WORDS = {"kind": "reply", "t": 3, "acks": [1, -1], "deep": {"a": [1.5, None, True, "ü"]}}


def sample() -> dict[str, torch.Tensor]:
    return {
        "vector": torch.linspace(-1, 1, 7),
        "scalar:loss": torch.tensor(0.25, dtype=torch.float64),
        "none": torch.zeros(0, 3),
        **{name: torch.ones(2, 2).to(dtype) for name, dtype in TYPES.items()},
    }


OPENING = b'{"__metadata__": {"sha256": "'
SEAL = slice(8 + len(OPENING), 8 + len(OPENING) + 64)


def made(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    """A message with any header at all, by somebody who knows how messages are sealed."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return sealed((len(text) if size is None else size).to_bytes(8, "little") + text + data)


def sealed(data: bytes) -> bytes:
    """The same with the right hash, if there is a place for it."""
    if data[8 : SEAL.start] != OPENING:
        return data
    name = hashlib.sha256(data[: SEAL.start] + b"0" * 64 + data[SEAL.stop :]).hexdigest().encode()
    return data[: SEAL.start] + name + data[SEAL.stop :]


def ours(words: object = "{}", **tensors: object) -> dict[str, object]:
    return {"__metadata__": {"sha256": "0" * 64, "pmfl": words}, **tensors}


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_what_is_written_is_read_and_has_one_name() -> None:
    data = encode(WORDS, sample())
    parcel = decode(data, LIMIT)
    assert parcel.words == WORDS
    assert list(parcel.tensors) == list(sample())
    for name, tensor in sample().items():
        found = parcel.tensors[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found, tensor)
        assert found.data_ptr() % 64 == 0 or not found.numel()
    assert data == encode(dict(reversed(WORDS.items())), sample())
    assert len({digest(data), digest(data[:-1])}) == 2


NAN, INF = b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\x01\x00\x00", "malformed"),
        (made(ours(), size=-1 & (1 << 63)), "malformed"),
        (made(b" " * (MOST_WORDS + 8)), "too large"),
        (made(b"[]"), "malformed"),
        (made(b"\xff\xfe"), "malformed"),
        (made({"__metadata__": {"pmfl": "{}"}}), "malformed"),
        (made(OPENING), "malformed"),
        (made(OPENING, b"0" * 64 + b'"}}'), "malformed"),
        (made(OPENING + b"0" * 64), "malformed"),
        (made(OPENING + b"0" * 64 + b"\xff\xfe"), "malformed"),
        (made(OPENING + b"0" * 64 + b'"}, "a": ' + b"[" * 100_000), "malformed"),
        (made(OPENING + b"0" * 64 + b'", "pmfl": "{}"}, "a": ' + b"9" * 10_000 + b"}"), "malformed"),
        (made({"__metadata__": {"sha256": "0" * 64, "pmfl": "{}", "more": "1"}}), "malformed"),
        (made(OPENING + b"0" * 64 + b'"}, "__metadata__": 3}'), "malformed"),
        (made(ours(3)), "malformed"),
        (made(ours("[1]")), "malformed"),
        (made(ours('{"a": NaN}')), "malformed"),
        (made({}), "malformed"),
        (made(ours(a=3)), "malformed"),
        (made(ours(a=entry("F99")), b"1234"), "malformed"),
        (made(ours(a=entry(["F32"])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[True])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[-1])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[1.0])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[1] * 9)), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[1 << 40], offsets=[0, 4 << 40])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[1 << 47, 1 << 47], offsets=[0, 4 << 94])), b"1234"), "malformed"),
        (made(ours(a=entry(shape=[1 << 47, 1 << 47, 0], offsets=[0, 0]))), "malformed"),
        (made(ours(a=entry(offsets=[1, 5])), b"12345"), "malformed"),
        (made(ours(a=entry(offsets=[0, 8])), b"12345678"), "malformed"),
        (made(ours(a=entry()), b"12345"), "malformed"),
        (made(ours(a=entry(), b=entry()), b"1234"), "malformed"),
        (made(ours(a=entry("BOOL")), b"\x02"), "malformed"),
        (made(ours(a=entry("BOOL", [1], [0, 1])), b"\x02"), "malformed"),
        (made(ours(**{"n" * 200: entry()}), b"1234"), "malformed"),
        (made(ours(**{str(i): entry(shape=[0], offsets=[0, 0]) for i in range(MOST_TENSORS + 1)})), "malformed"),
        (made(ours(a=entry()), NAN), "not finite"),
        (made(ours(a=entry()), INF), "not finite"),
        (encode({}, {"a": torch.zeros(LIMIT // 4)}), "too large"),
    ],
)
def test_what_cannot_be_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(data, LIMIT)
    assert caught.value.reason == reason


def test_the_seal_is_a_hash_of_all_other_bytes() -> None:
    data = encode(WORDS, sample())
    assert sealed(data) == data
    assert decode(made(ours('{"a": 1}', a=entry()), bytes(4)), LIMIT) == ({"a": 1}, {"a": torch.zeros(1)})


def test_a_bit_that_turned_on_the_way_is_noticed_wherever_it_is() -> None:
    data = encode(WORDS, {"vector": torch.linspace(-1, 1, 7), "scalar:loss": torch.tensor(0.25)})
    reasons = set[str]()
    for bit in range(8 * len(data)):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused) as caught:
            decode(bytes(turned), LIMIT)
        reasons.add(caught.value.reason)
        if bit >= 8 * SEAL.start:
            assert caught.value.reason == "damaged"
    assert reasons == {"damaged", "malformed"}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*TYPES, "F8", ""]) | json_values,
        "shape": st.lists(st.integers(-2, 5) | st.integers(0, 1 << 60), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 64), max_size=3) | json_values,
    }
)
headers = st.fixed_dictionaries(
    {"__metadata__": st.just(ours()["__metadata__"]) | json_values}, optional={"a": entries | json_values, "b": entries}
)


@st.composite
def garbage(draw: Any) -> bytes:
    """Bytes of many kinds: noise, honest messages that were cut, changed or joined, headers that lie."""
    good = encode(WORDS, sample())
    kind = draw(st.sampled_from(["noise", "cut", "changed", "joined", "header", "words"]))
    if kind == "noise":
        return bytes(draw(st.binary(max_size=200)))
    if kind == "cut":
        return good[: draw(st.integers(0, len(good) - 1))]
    if kind == "changed":
        raw = bytearray(good)
        for place, value in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), min_size=1)):
            raw[place] = value
        return sealed(bytes(raw)) if draw(st.booleans()) else bytes(raw)
    if kind == "joined":
        return good + bytes(draw(st.binary(min_size=1, max_size=20)))
    if kind == "words":
        return made(ours(json.dumps(draw(json_values))))
    return made(draw(headers), bytes(draw(st.binary(max_size=64))), draw(st.none() | st.integers(0, 2**64 - 1)))


@examples(1000)
@given(garbage())
def test_garbage_is_refused_or_harmless_and_costs_little(data: bytes) -> None:
    tracemalloc.start()
    try:
        tensors = decode(data, LIMIT).tensors
    except Refused:
        tensors = {}
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sum(x.numel() * x.element_size() for x in tensors.values()) <= len(data)
    assert all(bool(x.isfinite().all()) for x in tensors.values())
    assert peak < 64 * len(data) + 100_000
