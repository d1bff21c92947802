from pathlib import Path

import pytest
import torch

from pmfl.deploy.keeping import Keeping
from pmfl.engines.wire import Refused

FIRST = (torch.zeros(3),)


def memory(value: float) -> tuple[torch.Tensor]:
    return (torch.full((3,), float(value)),)


def taken(keeping: Keeping, t: int, counted: int, run: str = "a") -> tuple[float, bool]:
    recalled = keeping.recall(run, t, counted, FIRST)
    return float(recalled.memory[0][0]), recalled.fresh


def test_a_memory_counts_once_its_reply_was_counted(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path / "memory")
    assert taken(keeping, 0, -1) == (0.0, False)
    keeping.keep(0, memory(1))
    assert taken(keeping, 1, -1) == (0.0, False)  # round 0 was late: what it made is dropped
    keeping.keep(1, memory(2))
    assert taken(Keeping(tmp_path / "memory"), 2, 1) == (2.0, False)
    keeping.keep(2, memory(3))
    keeping.settle("a", 3, 2)
    assert [file.name.partition("-")[0] for file in keeping.folder.glob("*.safetensors")] == ["2"]
    assert keeping.counted("a") == 2
    assert keeping.counted("b") is None
    keeping.settle("b", 3, -1)  # another run's end changes nothing
    assert keeping.counted("a") == 2


def test_asking_twice_does_no_harm_and_old_asks_are_refused(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    taken(keeping, 4, -1)
    keeping.keep(4, memory(1))
    assert taken(keeping, 5, 4) == taken(keeping, 5, 4) == (1.0, False)
    for t, counted in ((4, -1), (4, 4), (5, -1)):
        with pytest.raises(Refused, match="stale"):
            keeping.recall("a", t, counted, FIRST)
    assert taken(keeping, 6, 4) == (1.0, False)


def test_what_an_ask_made_stays_when_it_comes_again_and_the_node_dies(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path)
    taken(keeping, 4, -1)
    keeping.keep(4, memory(1))
    taken(keeping, 5, 4)
    keeping.keep(5, memory(2))  # and the reply is on its way: it will be counted
    taken(keeping, 5, 4)  # the same ask, and before it has trained again the power goes
    assert taken(Keeping(tmp_path), 6, 5) == (2.0, False)
    assert [file.name.partition("-")[0] for file in tmp_path.glob("*.safetensors")] == ["5"]


@pytest.mark.parametrize("damage", ["cut", "bit", "gone", "other"])
def test_a_damaged_memory_is_not_used_and_the_loss_is_said(tmp_path: Path, damage: str) -> None:
    keeping = Keeping(tmp_path)
    taken(keeping, 0, -1)
    keeping.keep(0, memory(1) if damage != "other" else (torch.zeros(9),))
    (file,) = tmp_path.glob("0-*.safetensors")
    raw = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(raw[:-1])
    elif damage == "bit":
        raw[-1] ^= 1
        file.write_bytes(raw)
    elif damage == "gone":
        file.unlink()
    assert taken(keeping, 1, 0) == (0.0, True)
    keeping.keep(1, memory(5))
    assert taken(keeping, 2, 1) == (5.0, False)


@pytest.mark.parametrize("text", ["", "[]", '{"run": "a"}', '{"run": "z", "t": 9, "counted": 8}'])
def test_another_runs_memories_are_dropped(tmp_path: Path, text: str) -> None:
    keeping = Keeping(tmp_path)
    keeping.keep(3, memory(1))
    (tmp_path / "asked.json").write_text(text)
    assert taken(keeping, 0, -1) == (0.0, False)
    assert not list(tmp_path.glob("*.safetensors"))
