"""Whatever is wrong with a request: one error with code, hint and the right exit code, and results as they were."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pmfl.cli import main
from pmfl.study.grid import load
from pmfl.study.jobs import run_all
from pmfl.study.play import play_run, row_of
from pmfl.study.store import Store
from tests.study.test_grid import BAD_STUDIES

STUDY = """
[base]
data = { clients = 6 }
participation = { mean = 0.5 }
training = { rounds = 4, model = { name = "mlp", hidden = 4 } }
evaluation = { every = 2 }
method = "fedavg"
"""
ERROR = re.compile(r"^error\[([SMERDN]\d{3})\]: \S", re.MULTILINE)
HINT = re.compile(r"^hint: \S", re.MULTILINE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, and one that was interrupted."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "good.toml").write_text(STUDY)
    (done,) = load(folder / "good.toml").runs
    run_all(folder / "results", "good", [done], jobs=1)
    (begun,) = load(folder / "good.toml", ["seed=1"]).runs
    store = Store(folder / "results")
    store.add(row_of(begun, "good"))
    asked = iter([False, True])
    assert play_run(store, begun, lambda: next(asked)) == "interrupted"
    store.close()
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to spoil, which is where we are."""
    shutil.copytree(finished, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "place"


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def refused(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, usage: bool = False
) -> tuple[int, str]:
    """The exit code, and the code of the one error that is printed; ``usage`` errors have none."""
    monkeypatch.setattr(sys, "argv", ["pmfl", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert "Traceback" not in err, err
    assert out == "", out
    if usage:
        assert re.search(r"^Error: ", err, re.MULTILINE), err
        return int(ended.value.code or 0), ""
    assert len(ERROR.findall(err)) == 1, err
    assert len(HINT.findall(err)) == 1, err
    return int(ended.value.code or 0), ERROR.findall(err)[0]


@pytest.mark.parametrize("text", BAD_STUDIES.values(), ids=BAD_STUDIES.keys())
def test_a_wrong_study_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (place / "bad.toml").write_text(text)
    before = hashes(place / "results")
    code, error = refused(["run", "bad.toml"], monkeypatch, capsys)
    assert code == 2
    assert error.startswith("S1")
    assert hashes(place / "results") == before


# What is asked for in words: the words, the exit code, the error's code.
WORDS: dict[str, tuple[list[str], int, str]] = {
    "no such study": (["run", "nothing"], 2, "S113"),
    "no such file": (["run", "no/such.toml"], 2, "S114"),
    "a folder for a study": (["run", "folder.toml"], 2, "S114"),
    "a study that is not text": (["run", "binary.toml"], 2, "S114"),
    "an override without a value": (["run", "good.toml", "--set", "seed"], 2, "S115"),
    "an override without a key": (["run", "good.toml", "--set", "=3"], 2, "S115"),
    "an unknown key": (["run", "good.toml", "--set", "training.rouns=3"], 2, "S116"),
    "a wrong type": (["run", "good.toml", "--set", "training.rounds=three"], 2, "S110"),
    "no rounds": (["run", "good.toml", "--set", "training.rounds=0"], 2, "S110"),
    "a negative rate": (["run", "good.toml", "--set", "training.client_lr=-1"], 2, "S110"),
    "a rate that is no number": (["run", "good.toml", "--set", "training.client_lr=nan"], 2, "S110"),
    "more clients than samples": (["run", "good.toml", "--set", "data.clients=5000"], 2, "S"),
    "more held out than there is": (["run", "good.toml", "--set", "data.held_out=5000"], 2, "S124"),
    "a seed too large": (["run", "good.toml", "--set", "seed=99999999999999999999"], 2, "S110"),
    "an unknown augmentation": (["run", "good.toml", "--set", "data.augment=flop"], 2, "S122"),
    "an unknown method": (["run", "good.toml", "--set", "method=fedavgg"], 2, "S101"),
    "an unknown parameter": (["run", "good.toml", "--set", "method.fedavg.server_rl=3"], 2, "S104"),
    "a wrong parameter": (["run", "good.toml", "--set", "method.fedavg.server_lr=-3"], 2, "S105"),
    "a method's file that is not there": (["run", "good.toml", "--set", "method=./no.py:f"], 2, "S102"),
    "a method's file that fails": (["run", "good.toml", "--set", "method=./broken.py:f"], 2, "S103"),
    "a method's file without it": (["run", "good.toml", "--set", "method=./empty.py:f"], 2, "S1"),
    "a method that is none": (["run", "good.toml", "--set", "method=./odd.py:number"], 2, "S125"),
    "a method of another number of clients": (["run", "good.toml", "--set", "method=./odd.py:shape"], 2, "M101"),
    "a data set nobody has": (["run", "good.toml", "--set", "data.dataset=nobody"], 2, "S"),
    "data that are not here": (["run", "good.toml", "--set", "data.dataset=svhn"], 3, "D100"),
    "a path to nothing": (["run", "good.toml", "--set", "data.dataset=x", "--set", "data.path=/no"], 3, "D100"),
    "data cut short": (["run", "good.toml", "--set", "data.dataset=x", "--set", "data.path=cut.npz"], 3, "D1"),
    "data with nan": (["run", "good.toml", "--set", "data.dataset=x", "--set", "data.path=nan.npz"], 3, "D1"),
    "a data function that returns none": (["run", "good.toml", "--set", "data.dataset=./odd.py:none"], 2, "S120"),
    "a model that is none": (["run", "good.toml", "--set", "training.model=./odd.py:net"], 2, "S121"),
    "a trace that is not there": (TRACE := ["run", "good.toml", "--set", "participation.pattern=trace"], 2, "S105"),
    "a trace of nothing": ([*TRACE, "--set", "participation.path=no.npy"], 3, "D100"),
    "a trace of words": ([*TRACE, "--set", "participation.path=words.csv"], 3, "D100"),
    "a trace of other numbers": ([*TRACE, "--set", "participation.path=odd.npy"], 3, "D1"),
    "an unknown engine": (["run", "good.toml", "--engine", "cloud"], 2, "S110"),
    "ranks of nothing": (["run", "good.toml", "--engine", "ranks:0"], 2, "S110"),
    "a file for a folder": (["run", "good.toml", "--set", "seed=7", "--out", "good.toml"], 2, "R111"),
    "a report of nothing": (["report", "good.toml", "--out", "nowhere"], 2, "R100"),
    "a report into nowhere": (["report", "good.toml", "--to", "good.toml/page.html"], 2, "R111"),
    "a report onto a folder": (["report", "good.toml", "--to", "results"], 2, "R111"),
    "a world into nowhere": (["world", "good.toml", "--to", "good.toml/page.html"], 2, "R111"),
    "a status of nothing": (["status", "--out", "nowhere"], 2, "R100"),
    "an export of no run": (["export", "zzz", "--to", "m.onnx"], 2, "R100"),
    "an export of every run": (["export", "", "--to", "m.onnx"], 2, "R100"),
    "an export of another kind": (["export", "zzz", "--to", "m.pkl"], 2, "S140"),
    "a check of nothing": (["check", "nope"], 2, "S101"),
    "a check of a missing module": (["check", "no_such_module:f"], 2, "S103"),
    "a list of nothing": (["methods", "nope"], 2, "S101"),
    "data get of nothing": (["data", "get", "nope"], 2, "S"),
}


def furnish(place: Path) -> None:
    """What the words above speak of."""
    (place / "folder.toml").mkdir()
    (place / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (place / "broken.py").write_text("raise RuntimeError('no')")
    (place / "empty.py").write_text("")
    (place / "odd.py").write_text(
        "import torch\nfrom pmfl import Method, WeighRule\n"
        "def number():\n    return 3\n"
        "def none():\n    return None\n"
        "def net(shape, classes):\n    return 'a network'\n"
        "def shape():\n"
        "    wrong = lambda state, seen, now: (torch.ones(now.clients + 1).double(), state)\n"
        "    return Method(name='shape', weigh=WeighRule(init=lambda clients: (), apply=wrong))\n"
    )
    x, y = np.ones((8, 3), np.float32), np.arange(8) % 2
    np.savez(place / "whole.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (place / "cut.npz").write_bytes((place / "whole.npz").read_bytes()[:200])
    np.savez(place / "nan.npz", x_train=x * np.nan, y_train=y, x_test=x, y_test=y)
    np.save(place / "odd.npy", np.full((4, 6), np.nan))
    (place / "words.csv").write_text("once,upon\na,time\n")


@pytest.mark.parametrize(("words", "code", "error"), WORDS.values(), ids=WORDS.keys())
def test_a_wrong_request_is_refused(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    error: str,
) -> None:
    furnish(place)
    before = hashes(place / "results" / "runs")
    found = refused(words, monkeypatch, capsys)
    assert found[0] == code
    assert found[1].startswith(error)
    assert hashes(place / "results" / "runs") == before
    assert not list(place.rglob("*.part"))


USAGE = {
    "an unknown option": ["run", "--nonsense"],
    "an unknown command": ["rum"],
    "an option without its value": ["run", "--out"],
    "jobs below nothing": ["run", "good.toml", "--jobs", "-1"],
    "jobs in words": ["run", "good.toml", "--jobs", "many"],
    "an export to nowhere": ["export", "abc"],
    "two studies": ["run", "good.toml", "good.toml"],
}


@pytest.mark.parametrize("words", USAGE.values(), ids=USAGE.keys())
def test_wrong_usage_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = hashes(place / "results")
    assert refused(words, monkeypatch, capsys, usage=True)[0] == 2
    assert hashes(place / "results") == before


# What may have happened to files: what is done to them, what is then asked, and which error it gives.


def sealed(place: Path) -> Path:
    return next((place / "results" / "runs").iterdir())


def begun(place: Path) -> Path:
    return next((place / "results" / "running").iterdir())


def cut_store(place: Path) -> None:
    for file in (place / "results").glob("store.sqlite-*"):
        file.unlink()
    file = place / "results" / "store.sqlite"
    file.write_bytes(file.read_bytes()[:1000])


def no_store(place: Path) -> None:
    for file in (place / "results").glob("store.sqlite*"):
        file.unlink()
    (place / "results" / "store.sqlite").mkdir()


def cut_state(place: Path) -> None:
    file = next(begun(place).glob("state-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])


def other_checkpoint(place: Path) -> None:
    index = begun(place) / "checkpoint.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "run_id": "another"}))


def no_index(place: Path) -> None:
    (begun(place) / "checkpoint.json").write_text("{")


def empty_index(place: Path) -> None:
    (begun(place) / "checkpoint.json").write_text("{}")


def incomplete_index(place: Path) -> None:
    index = begun(place) / "checkpoint.json"
    index.write_text(json.dumps({"run_id": json.loads(index.read_text())["run_id"]}))


def cut_model(place: Path) -> None:
    file = sealed(place) / "final.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def no_model(place: Path) -> None:
    (sealed(place) / "final.safetensors").unlink()


def cut_rounds(place: Path) -> None:
    file = sealed(place) / "rounds.parquet"
    file.write_bytes(file.read_bytes()[:50])


def cut_summary(place: Path) -> None:
    (sealed(place) / "summary.json").write_text('{"t": 4')


def odd_summary(place: Path) -> None:
    (sealed(place) / "summary.json").write_text('{"tea": 4}')


FILES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "a store cut short": (cut_store, ["run", "good.toml"], "R110"),
    "a store that is a folder": (no_store, ["run", "good.toml"], "R110"),
    "a state cut short": (cut_state, ["run", "good.toml", "--set", "seed=1"], "R121"),
    "a checkpoint of another run": (other_checkpoint, ["run", "good.toml", "--set", "seed=1"], "R120"),
    "half a checkpoint": (no_index, ["run", "good.toml", "--set", "seed=1"], "R100"),
    "an empty checkpoint": (empty_index, ["run", "good.toml", "--set", "seed=1"], "R120"),
    "a checkpoint with parts missing": (incomplete_index, ["run", "good.toml", "--set", "seed=1"], "R122"),
    "a model cut short": (cut_model, ["export", "ID", "--to", "m.safetensors"], "R113"),
    "a model that is gone": (no_model, ["export", "ID", "--to", "m.safetensors"], "R113"),
    "an export into nowhere": (lambda place: None, ["export", "ID", "--to", "good.toml/m.safetensors"], "R111"),
    "an export of an unfinished run": (lambda place: None, ["export", "BEGUN", "--to", "m.safetensors"], "R100"),
    "records cut short": (cut_rounds, ["report", "good.toml"], "R112"),
    "a summary cut short": (cut_summary, ["status"], "R100"),
    "a summary of something else": (odd_summary, ["status"], "R114"),
}


@pytest.mark.parametrize(("spoil", "words", "error"), FILES.values(), ids=FILES.keys())
def test_a_damaged_file_is_refused(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], None],
    words: list[str],
    error: str,
) -> None:
    ids = {"ID": sealed(place).name, "BEGUN": begun(place).name}
    spoil(place)
    before = hashes(place / "results" / "runs")
    code, found = refused([ids.get(word, word) for word in words], monkeypatch, capsys)
    assert code == 2
    assert found.startswith(error)
    assert hashes(place / "results" / "runs") == before
    assert not list(place.rglob("*.part"))


def test_there_are_many_of_them() -> None:
    assert len(BAD_STUDIES) + len(WORDS) + len(USAGE) + len(FILES) >= 60


def test_a_full_disk_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No room for the page: what the runs showed stays, and nothing half-written does."""
    before = hashes(place / "results" / "runs")
    monkeypatch.setattr(Path, "write_text", _no_space)
    assert refused(["report", "good.toml", "--to", "page.html"], monkeypatch, capsys) == (2, "R111")
    monkeypatch.undo()
    assert hashes(place / "results" / "runs") == before
    assert not list(place.glob("*page.html*"))


def _no_space(self: Path, *words: object, **more: object) -> int:
    raise OSError(28, "No space left on device", str(self))
