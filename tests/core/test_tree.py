import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pmfl.core.tree import (
    from_bytes,
    leaves,
    load_tree,
    map_tree,
    replacing,
    save_tree,
    size_of,
    stack,
    to_bytes,
    unstack,
)
from pmfl.errors import StoreError


class Pair(NamedTuple):
    """A tree with names."""

    rows: Tensor
    number: int


def example() -> dict[str, Any]:
    return {
        "w": torch.tensor([1.0, 2.0]),
        "states": (Pair(torch.zeros(2, 3, dtype=torch.float64), 4), (), None),
        "rate": 0.1,
        "lowest": -math.inf,
        "done": True,
        "bits": torch.tensor(2**62),
    }


def same(a: Any, b: Any) -> bool:
    def alike(x: Any, y: Any) -> bool:
        if isinstance(x, Tensor):
            return torch.equal(x, y) and x.dtype == y.dtype
        return bool(x == y) and type(x) is type(y)

    return all(p == q and alike(x, y) for (p, x), (q, y) in zip(leaves(a), leaves(b), strict=True))


def test_every_leaf_has_a_path() -> None:
    paths = [path for path, _ in leaves(example())]
    assert paths == ["w", "states.0.rows", "states.0.number", "states.2", "rate", "lowest", "done", "bits"]
    assert [path for path, _ in leaves(torch.zeros(1))] == [""]


def test_what_cannot_be_saved_is_no_leaf() -> None:
    with pytest.raises(TypeError, match=r"a\.0: a set cannot"):
        list(leaves({"a": ({1},)}))
    with pytest.raises(TypeError, match="tree: a str cannot"):
        list(leaves("word"))


def test_a_mapped_tree_keeps_its_structure() -> None:
    tree = {"a": (torch.ones(1), Pair(torch.ones(2), 3)), "b": ()}
    mapped = map_tree(lambda path, leaf: (path, leaf)[0], tree)
    assert mapped == {"a": ("a.0", Pair("a.1.rows", "a.1.number")), "b": ()}  # type: ignore[arg-type]
    assert isinstance(mapped["a"][1], Pair)


def test_stacked_trees_come_apart_again() -> None:
    trees = [(Pair(torch.full((2,), float(i)), 7), {"x": torch.tensor(i)}) for i in range(3)]
    together = stack(trees)
    assert together[0].rows.shape == (3, 2)
    assert together[0].number == 7
    assert together[1]["x"].tolist() == [0, 1, 2]
    for i in range(3):
        assert same(unstack(together, i), trees[i])


def test_a_row_is_a_copy() -> None:
    """What a client keeps must not hold the rows of all others alive, nor change with them."""
    together = stack([Pair(torch.zeros(2), 0), Pair(torch.ones(2), 0)])
    row = unstack(together, 0)
    together.rows.fill_(9.0)
    assert row.rows.tolist() == [0.0, 0.0]


def test_size_counts_the_bytes_of_tensors() -> None:
    assert size_of(example()) == 2 * 4 + 6 * 8 + 8


@pytest.mark.parametrize("tree", [example(), torch.arange(3), (), {"high": (math.inf, 3)}])
def test_a_saved_tree_comes_back(tmp_path: Path, tree: Any) -> None:
    save_tree(tmp_path / "tree", tree)
    blank = map_tree(lambda path, leaf: torch.zeros_like(leaf) if isinstance(leaf, Tensor) else 0, tree)
    assert same(load_tree(tmp_path / "tree", blank), tree)
    assert [file.name for file in tmp_path.iterdir()] == ["tree"]


def test_not_a_number_comes_back(tmp_path: Path) -> None:
    """Apart from the others, since it does not equal itself."""
    save_tree(tmp_path / "tree", {"x": math.nan, "y": torch.tensor([math.nan, 1.0])})
    back = load_tree(tmp_path / "tree", {"x": 0.0, "y": torch.zeros(2)})
    assert math.isnan(back["x"])
    assert back["y"].isnan().tolist() == [True, False]


def test_views_are_saved_whole(tmp_path: Path) -> None:
    """Rows that share memory, and transposed ones, are no obstacle."""
    both = torch.arange(6.0).view(2, 3)
    tree = (both[0], both[0], both.T, both.requires_grad_())
    save_tree(tmp_path / "tree", tree)
    back = load_tree(tmp_path / "tree", tree)
    assert back[0].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(back[2], both.T)


def test_an_empty_dict_takes_whatever_is_stored_below_it(tmp_path: Path) -> None:
    save_tree(tmp_path / "tree", {"scalars": {"loss": torch.ones(2), "a.b": torch.zeros(1)}, "t": 3})
    back = load_tree(tmp_path / "tree", {"scalars": {}, "t": 0})
    assert set(back["scalars"]) == {"loss", "a.b"}
    assert back["scalars"]["loss"].tolist() == [1.0, 1.0]


def test_two_parts_with_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"two parts of a state are called a\.b"):
        save_tree(tmp_path / "tree", {"a.b": 1, "a": {"b": torch.zeros(1)}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("like", "why"),
    [
        ({"w": torch.zeros(3)}, r"w should be torch.float32 \(3,\), and torch.float32 \(2,\) is stored"),
        ({"w": torch.zeros(2).double()}, "w should be torch.float64"),
        ({"v": torch.zeros(2)}, "v should be .* and nothing is stored"),
        ({"w": torch.zeros(2), "n": 1, "m": 2}, "m is missing"),
        ({"n": 1}, "w is not part of it"),
        ({"w": torch.zeros(2)}, "n is not part of it"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, like: Any, why: str) -> None:
    save_tree(tmp_path / "tree", {"w": torch.zeros(2), "n": 1})
    with pytest.raises(StoreError, match=why) as caught:
        load_tree(tmp_path / "tree", like)
    assert "--out" in caught.value.hint


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    save_tree(tmp_path / "whole", example())
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-5])
    (tmp_path / "text").write_text("not a tree at all")
    for name in ("cut", "text", "absent"):
        with pytest.raises(StoreError, match=f"{name} cannot be read"):
            load_tree(tmp_path / name, example())


def test_a_file_of_tensors_alone_is_a_tree_without_numbers(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "plain")
    assert load_tree(tmp_path / "plain", {"w": torch.zeros(2)})["w"].tolist() == [1.0, 1.0]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "tree"
    save_tree(file, {"n": 1})

    def write_half() -> None:
        with replacing(file) as beside:
            beside.write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert load_tree(file, {"n": 0}) == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        save_tree(tmp_path / "absent" / "tree", {"w": torch.zeros(1)})


def test_one_part_of_a_file_is_read_alone(tmp_path: Path) -> None:
    parts = {"1": (torch.ones(2), 5, {"1": torch.zeros(3)}), "10": (torch.zeros(2), 6, {"1": torch.ones(3)})}
    save_tree(tmp_path / "parts", parts)
    for name, part in parts.items():
        assert same(load_tree(tmp_path / "parts", part, within=name), part)
    save_tree(tmp_path / "leaf", {"1": torch.ones(2), "2": 7})
    assert torch.equal(load_tree(tmp_path / "leaf", torch.zeros(2), within="1"), torch.ones(2))
    assert load_tree(tmp_path / "leaf", 0, within="2") == 7


def test_a_tree_travels_as_the_bytes_of_a_file(tmp_path: Path) -> None:
    tree = {**example(), "open": {}, "half": torch.ones(3).bfloat16(), "none": torch.zeros(0)}
    sha = save_tree(tmp_path / "file", tree, durable=False)
    data = to_bytes(tree)
    assert data.numpy().tobytes() == (tmp_path / "file").read_bytes()
    assert hashlib.sha256(data.numpy().tobytes()).hexdigest() == sha
    assert same(from_bytes(data, tree), tree)
    with pytest.raises(StoreError, match="what was received belongs to another"):
        from_bytes(data, {**tree, "more": 1})


def test_a_tensor_of_a_type_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"w: a tensor of torch.complex64 cannot be saved"):
        save_tree(tmp_path / "file", {"w": torch.zeros(2, dtype=torch.complex64)})
    assert not list(tmp_path.iterdir())
