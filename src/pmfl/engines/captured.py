"""A function of tensors as one CUDA graph: recorded once, then replayed with other numbers in the same places.

A participation is some thousand small operations. Started one by one from Python, they keep a GPU waiting; a graph
starts them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pmfl.core.tree import leaves, map_tree

Program: TypeAlias = Callable[..., Any]  # trees of tensors in, a tree of tensors out

REHEARSALS = 3  # runs before the recording: libraries choose their kernels and take their memory then


class Captured:
    """``function``, with one graph for each combination of shapes it is called with.

    What it returns is overwritten by the next call.
    """

    def __init__(self, function: Program) -> None:
        self.function = function
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], Any]] = {}

    def __call__(self, *trees: Any) -> Any:
        """The function's value."""
        given = [leaf for _, leaf in leaves(trees) if isinstance(leaf, Tensor)]
        shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in given)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._record(trees)
        graph, places, value = self._graphs[shapes]
        for place, tensor in zip(places, given, strict=True):
            place.copy_(tensor, non_blocking=True)
        graph.replay()
        return value

    def _record(self, trees: tuple[Any, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Any]:
        # The graph reads from places of its own: what it was first called with belongs to somebody else.
        trees = map_tree(lambda path, leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, trees)
        places = [leaf for _, leaf in leaves(trees) if isinstance(leaf, Tensor)]
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(REHEARSALS):
                self.function(*trees)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            value = self.function(*trees)
        return graph, places, value
