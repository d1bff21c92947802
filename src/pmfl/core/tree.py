"""Nests of tensors: flatten, compare, stack, save and load. No pickle: tensors as safetensors, numbers as JSON.

A tree is a tensor, a number, a bool, None, or a tuple, NamedTuple or dict of trees. Its structure is not stored:
it is known to whoever loads it, and a file that does not fit is refused. An empty dict is open: it takes whatever
tensors are stored below it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pmfl.errors import StoreError

Tree: TypeAlias = Any
Number: TypeAlias = int | float | bool | None


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


def save_tree(file: Path, tree: Tree) -> None:
    """Write a tree to ``file``: complete and on the disk, or not there at all."""
    tensors, numbers = {}, {}
    for path, leaf in leaves(tree):
        if path in tensors or path in numbers:
            raise StoreError(
                f"{file}: two parts of a state are called {path}", hint="rename a key that has a dot in it"
            )
        if isinstance(leaf, Tensor):
            tensors[path] = leaf.detach().cpu().contiguous().clone()
        else:
            numbers[path] = repr(leaf) if isinstance(leaf, float) and not math.isfinite(leaf) else leaf
    with replacing(file) as beside:
        save_file(tensors, beside, metadata={"numbers": json.dumps(numbers)})


def load_tree(file: Path, like: Tree) -> Tree:
    """Read a tree of the structure, shapes and types of ``like``."""
    try:
        with safe_open(file, framework="pt") as stored:
            numbers = json.loads((stored.metadata() or {}).get("numbers", "{}"))
            # Copied, because tensors in a file are not aligned in memory, and an unaligned product has other last bits.
            tensors = {path: stored.get_tensor(path).clone() for path in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}", hint="delete it; the run starts over") from error

    def fill(path: str, leaf: Tensor | Number | dict[str, Tensor]) -> Tensor | Number | dict[str, Tensor]:
        if isinstance(leaf, dict):
            below = [name for name in tensors if name.startswith(f"{path}.")]
            return {name.removeprefix(f"{path}."): tensors.pop(name) for name in below}
        if isinstance(leaf, Tensor):
            found: Tensor | None = tensors.pop(path, None)
            if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                given = "nothing" if found is None else f"{found.dtype} {tuple(found.shape)}"
                raise _unfit(file, f"{path} should be {leaf.dtype} {tuple(leaf.shape)}, and {given} is stored")
            return found.to(leaf.device)
        if path not in numbers:
            raise _unfit(file, f"{path} is missing")
        value: Number | str = numbers.pop(path)
        return float(value) if isinstance(value, str) else value

    tree = map_tree(fill, like)
    if tensors or numbers:
        raise _unfit(file, f"{sorted([*tensors, *numbers])[0]} is not part of it")
    return tree


class replacing:
    """A path to write to; on success it takes the place of ``file`` at once, on failure it leaves no trace."""

    def __init__(self, file: Path) -> None:
        self.file, self.beside = file, file.with_name(f".{file.name}.{os.getpid()}.part")

    def __enter__(self) -> Path:
        return self.beside

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                with self.beside.open("rb+") as written:
                    os.fsync(written.fileno())
                self.beside.replace(self.file)
        finally:
            self.beside.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise OSError(f"{self.file}: {error}") from error


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


def _unfit(file: Path, why: str) -> StoreError:
    return StoreError(
        f"{file} belongs to another method or study: {why}", hint="delete it, or write results to another --out"
    )
