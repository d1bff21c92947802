"""Nests of tensors: flatten, compare, stack, save and load. No pickle: tensors as safetensors, numbers as JSON.

A tree is a tensor, a number, a bool, None, or a tuple, NamedTuple or dict of trees. Its structure is not stored:
it is known to whoever loads it, and a file that does not fit is refused. An empty dict is open: it takes whatever
tensors are stored below it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from torch import Tensor

from pmfl.core.files import replacing as replacing  # what a tree is written with, under the names it always had
from pmfl.core.files import to_disk as to_disk
from pmfl.errors import StoreError

Tree: TypeAlias = Any
Number: TypeAlias = int | float | bool | None

_STORED = {  # how safetensors calls types
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Tensor | Number]]:
    """Every leaf with its path, e.g. ``weigh.x`` or ``server.past.rows``."""
    for name, child in _children(tree):
        yield from leaves(child, f"{path}.{name}" if path else name)
    if not isinstance(tree, tuple | dict):
        if not isinstance(tree, Tensor | int | float | bool | None):
            raise TypeError(f"{path or 'tree'}: a {type(tree).__name__} cannot be part of a state")
        yield path, tree


def map_tree(change: Callable[[str, Any], Any], tree: Tree, path: str = "") -> Tree:
    """The same nest with every leaf replaced by ``change(path, leaf)``."""
    if not isinstance(tree, tuple | dict) or tree == {}:
        return change(path, tree)
    changed = [map_tree(change, child, f"{path}.{name}" if path else name) for name, child in _children(tree)]
    if isinstance(tree, dict):
        return dict(zip(tree, changed, strict=True))
    return type(tree)(*changed) if hasattr(tree, "_fields") else tuple(changed)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of equal structure as one, each tensor with a new leading axis."""
    rows = [dict(leaves(tree)) for tree in trees]
    return map_tree(
        lambda path, leaf: torch.stack([_tensor(row[path]) for row in rows]) if isinstance(leaf, Tensor) else leaf,
        trees[0],
    )


def unstack(tree: Tree, i: int) -> Tree:
    """Row ``i`` of a stacked tree, as its own copy."""
    return map_tree(lambda path, leaf: leaf[i].clone() if isinstance(leaf, Tensor) else leaf, tree)


def size_of(tree: Tree) -> int:
    """Bytes held by the tensors of a tree."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def save_tree(file: Path, tree: Tree, *, durable: bool = True) -> str:
    """Write a tree to ``file``: complete, or not there at all; returns its SHA-256.

    Tensor after tensor goes to the file: a tree of many gigabytes costs no memory. What is not ``durable`` may be
    lost with the machine's power until it is synchronised.
    """
    digest = hashlib.sha256()
    with replacing(file, durable=durable) as beside, beside.open("wb") as stream:
        for part in _encoded(tree, str(file)):
            stream.write(part)
            digest.update(part)
    return digest.hexdigest()


def load_tree(file: Path, like: Tree, *, within: str = "") -> Tree:
    """Read a tree of the structure, shapes and types of ``like``; or only what was stored below one of its names."""

    def place(path: str) -> str | None:
        """Where in the tree that is wanted a stored path belongs, if it is part of it."""
        if not within or path.startswith(f"{within}."):
            return path.removeprefix(f"{within}.") if within else path
        return "" if path == within else None

    try:
        with safe_open(file, framework="pt") as stored:
            numbers = json.loads((stored.metadata() or {}).get("numbers", "{}"))
            wanted = {path: name for path in stored.keys() if (name := place(path)) is not None}  # noqa: SIM118
            # Copied, because tensors in a file are not aligned in memory, and an unaligned product has other last bits.
            tensors = {name: stored.get_tensor(path).clone() for path, name in wanted.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}", hint="delete it; the run starts over") from error
    numbers = {name: number for path, number in numbers.items() if (name := place(path)) is not None}
    return _filled(like, tensors, numbers, str(file))


def to_bytes(tree: Tree) -> Tensor:
    """A tree as the bytes of a file of it, for the wire."""
    return torch.cat([torch.frombuffer(part, dtype=torch.uint8) for part in _encoded(tree, "tree") if len(part)])


def from_bytes(data: Tensor, like: Tree) -> Tree:
    """A tree of the structure, shapes and types of ``like``, from ``to_bytes``."""
    raw = data.numpy().tobytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return _filled(like, load_tensors(raw), json.loads(header["__metadata__"]["numbers"]), "what was received")


def _encoded(tree: Tree, where: str) -> Iterator[bytearray | memoryview]:
    """The parts of a safetensors file, one after the other: a header, then every tensor."""
    tensors, numbers = dict[str, Tensor](), {}
    for path, leaf in leaves(tree):
        if path in tensors or path in numbers:
            raise StoreError(
                f"{where}: two parts of a state are called {path}", hint="rename a key that has a dot in it"
            )
        if isinstance(leaf, Tensor):
            tensors[path] = leaf.detach()
        else:
            numbers[path] = repr(leaf) if isinstance(leaf, float) and not math.isfinite(leaf) else leaf
    header, end = {"__metadata__": {"numbers": json.dumps(numbers)}}, 0
    for path, tensor in tensors.items():
        if tensor.dtype not in _STORED:
            raise TypeError(f"{path}: a tensor of {tensor.dtype} cannot be saved")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind: Any = {"dtype": _STORED[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        header[path] = kind
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield bytearray(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        if tensor.numel():
            yield tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _filled(like: Tree, tensors: dict[str, Tensor], numbers: dict[str, Any], where: str) -> Tree:
    def fill(path: str, leaf: Tensor | Number | dict[str, Tensor]) -> Tensor | Number | dict[str, Tensor]:
        if isinstance(leaf, dict):
            below = [name for name in tensors if name.startswith(f"{path}.")]
            return {name.removeprefix(f"{path}."): tensors.pop(name) for name in below}
        if isinstance(leaf, Tensor):
            found: Tensor | None = tensors.pop(path, None)
            if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                given = "nothing" if found is None else f"{found.dtype} {tuple(found.shape)}"
                raise _unfit(where, f"{path} should be {leaf.dtype} {tuple(leaf.shape)}, and {given} is stored")
            return found.to(leaf.device)
        if path not in numbers:
            raise _unfit(where, f"{path} is missing")
        value: Number | str = numbers.pop(path)
        return float(value) if isinstance(value, str) else value

    tree = map_tree(fill, like)
    if tensors or numbers:
        raise _unfit(where, f"{sorted([*tensors, *numbers])[0]} is not part of it")
    return tree


def _tensor(leaf: Tensor | Number) -> Tensor:
    assert isinstance(leaf, Tensor)
    return leaf


def _children(tree: Tree) -> list[tuple[str, Tree]]:
    if isinstance(tree, dict):
        return [(str(name), child) for name, child in tree.items()]
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or range(len(tree))
        return [(str(name), child) for name, child in zip(names, tree, strict=True)]
    return []


def _unfit(where: str, why: str) -> StoreError:
    return StoreError(
        f"{where} belongs to another method or study: {why}", hint="delete it, or write results to another --out"
    )
