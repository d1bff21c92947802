"""What travels between a server and its nodes: a few words and named tensors, in the form of a safetensors file.

Whoever reads trusts nobody: sizes, shapes, types and finiteness are checked before anything is believed, and reading
takes no more memory than a small multiple of what has arrived. Every message carries a hash of all its other bytes, so
that one which was damaged on its way is refused also where no certificate guards it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_WORDS = 1 << 20  # bytes of the header: words, names, shapes
MOST_TENSORS = 256
MOST_AXES = 8
LONGEST_NAME = 128
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_UNSEALED = b"0" * 64  # stands where the hash will be while the hash is taken
_OPENING = b'{"__metadata__": {"sha256": "'  # of every header, so that its place is known before anything is parsed
_SEAL = slice(8 + len(_OPENING), 8 + len(_OPENING) + len(_UNSEALED))


class Refused(Exception):
    """A message that cannot be taken: ``reason`` is one word for counting, the text says more."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class Parcel(NamedTuple):
    """A message as it was read."""

    words: dict[str, Any]
    tensors: dict[str, Tensor]


def encode(words: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A message: words are plain JSON values. The same content gives the same bytes."""
    said = json.dumps(words, sort_keys=True, allow_nan=False)
    header: dict[str, Any] = {"__metadata__": {"sha256": _UNSEALED.decode(), "pmfl": said}}
    parts, end = list[bytes](), 0
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        parts.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return b"".join([head[: _SEAL.start], _sealing(head, *parts), head[_SEAL.stop :], *parts])


def decode(data: bytes, limit: int) -> Parcel:
    """What ``encode`` was given, or ``Refused``; more than ``limit`` bytes are not looked at."""
    if len(data) > limit:
        raise Refused("too large", f"{len(data)} bytes, of at most {limit}")
    header, rest = _header(data)
    words = _words(header.pop("__metadata__"))
    if len(header) > MOST_TENSORS:
        raise Refused("malformed", f"{len(header)} tensors, of at most {MOST_TENSORS}")
    tensors, end = dict[str, Tensor](), 0
    for name, entry in header.items():
        dtype, shape, size = _described(name, entry, end)
        if size > len(rest) - end:
            raise Refused("malformed", f"{name!r} ends behind the message")
        tensors[name] = _tensor(name, rest[end : end + size], dtype, shape)
        end += size
    if end != len(rest):
        raise Refused("malformed", f"{len(rest) - end} bytes belong to nothing")
    return Parcel(words, tensors)


def digest(data: bytes) -> str:
    """A name for the content of a message."""
    return hashlib.sha256(data).hexdigest()[:32]


def _header(data: bytes) -> tuple[dict[str, Any], memoryview]:
    size = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 <= size <= min(MOST_WORDS, len(data) - 8):
        raise Refused("malformed", "the header has no length that could be")
    if data[8 : _SEAL.start] != _OPENING or size < _SEAL.stop - 8:
        raise Refused("malformed", "it does not begin as messages of this version of pmfl do")
    if data[_SEAL] != _sealing(data):
        raise Refused("damaged", "its hash is not that of its bytes")
    header = _json(bytes(data[8 : 8 + size]))
    return header, memoryview(data)[8 + size :]


def _sealing(head: bytes, *parts: bytes) -> bytes:
    """The hash of a message, of which the hash itself is no part."""
    found = hashlib.sha256(head[: _SEAL.start] + _UNSEALED)
    found.update(memoryview(head)[_SEAL.stop :])  # a message may be large: it is not copied for this
    for part in parts:
        found.update(part)
    return found.hexdigest().encode()


def _words(found: object) -> dict[str, Any]:
    text = found.get("pmfl") if isinstance(found, dict) and set(found) == {"sha256", "pmfl"} else None
    if not isinstance(text, str):
        raise Refused("malformed", "there are no words of ours in it")
    return _json(text.encode("utf-8", "surrogatepass"))


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("malformed", f"not JSON: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise Refused("malformed", f"JSON of a {type(found).__name__}")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _described(name: str, entry: object, begin: int) -> tuple[torch.dtype, list[int], int]:
    """Type, shape and bytes of a tensor that starts where the one before ended."""
    if len(name) > LONGEST_NAME or not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Refused("malformed", f"{name[:LONGEST_NAME]!r} does not describe a tensor")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    dtype = TYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None or not _whole(shape) or len(shape) > MOST_AXES:
        raise Refused("malformed", f"{name!r} has no type and shape that could be")
    size = math.prod(shape) * dtype.itemsize
    if not _whole(offsets) or offsets != [begin, begin + size]:
        raise Refused("malformed", f"{name!r} does not lie where its shape says")
    return dtype, shape, size


def _whole(values: object) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in values)


def _tensor(name: str, raw: memoryview, dtype: torch.dtype, shape: list[int]) -> Tensor:
    # Copied, because what arrives is not aligned in memory, and an unaligned product has other last bits.
    flat = torch.empty(len(raw) // dtype.itemsize, dtype=dtype)
    if len(raw):
        flat.view(torch.uint8).numpy()[:] = np.frombuffer(raw, np.uint8)
    if dtype == torch.bool and bool((flat.view(torch.uint8) > 1).any()):
        raise Refused("malformed", f"{name!r} has truth values beside true and false")
    if dtype.is_floating_point and not bool(flat.isfinite().all()):
        raise Refused("not finite", f"{name!r} has numbers that are not finite")
    try:
        return flat.reshape(shape)
    except RuntimeError:  # shapes with a zero in them whose other axes overflow
        raise Refused("malformed", f"{name!r} has a shape that cannot be") from None
