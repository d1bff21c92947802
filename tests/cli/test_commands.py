from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pmfl.cli import main

STUDY = """
title = "tiny"
[base]
data = { clients = 8 }
participation = { mean = 0.5 }
training = { rounds = 6, model = { name = "mlp", hidden = 8 } }
evaluation = { every = 2, train_every = 2 }
[sweep]
method = ["pmfl", "fedavg"]
seed = [0, 1]
"""


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def pmfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command in an empty folder with one study in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(STUDY)

    def run(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["pmfl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)

    return run


def test_a_study_end_to_end(pmfl: Any, tmp_path: Path) -> None:
    first = pmfl("run", "tiny.toml", "--json")
    assert first.code == 0, first.err
    document = json.loads(first.out)
    assert set(document) == {"study", "runs", "table"}
    assert document["study"] == "tiny"
    run = document["runs"][0]
    assert {
        "run_id",
        "question_id",
        "method",
        "seed",
        "rounds",
        "seconds",
        "resumed",
        "model_sha256",
        "metrics",
    } <= set(run)
    assert set(run["metrics"]["test/accuracy"]) == {"final", "last10_mean", "top5_mean"}
    assert "train/accuracy" in run["metrics"]
    assert [row["method"] for row in document["table"]] == ["pmfl", "fedavg"]
    assert "done" in first.err

    again = json.loads(pmfl("run", "tiny.toml", "--json").out)
    assert again["runs"] == document["runs"]

    text = pmfl("run", "tiny.toml")
    assert "fedavg" in text.out
    assert "results/tiny.html" in text.out
    assert (tmp_path / "results" / "tiny.html").stat().st_size > 10_000

    status = pmfl("status")
    assert status.out.count("done") == 4
    assert len(json.loads(pmfl("status", "--json").out)) == 4

    page = pmfl("report", "tiny.toml", "--to", "page.html")
    assert (page.code, page.out.strip()) == (0, "page.html")
    assert (tmp_path / "page.html").is_file()

    model = pmfl("export", run["run_id"][:6], "--to", "model.safetensors")
    assert model.code == 0, model.err
    tensors = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == 64 * 8 + 8 + 8 * 10 + 10


def test_export_to_onnx_computes_the_same(pmfl: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    document = json.loads(pmfl("run", "tiny.toml", "--set", "method=fedavg", "--set", "seed=0", "--json").out)
    run_id = document["runs"][0]["run_id"]
    exported = pmfl("export", run_id, "--to", "model.onnx")
    assert exported.code == 0, exported.err
    assert (exported.out, exported.err) == ("model.onnx\n", "")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    x = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 1, 8, 8)
    (logits,) = session.run(None, {"x": x})

    from pmfl.core.tree import load_tree
    from pmfl.world.networks import MODELS

    model = MODELS["mlp"]((8, 8, 1), 10, torch.float32, hidden=8)
    w = load_tree(tmp_path / "results" / "runs" / run_id / "final.safetensors", {"w": torch.zeros(model.size)})["w"]
    assert np.allclose(logits, model.logits(w, torch.from_numpy(x)).numpy(), atol=1e-5)


def test_the_world_is_pictured_without_training(pmfl: Any, tmp_path: Path) -> None:
    result = pmfl("world", "tiny.toml", "--to", "world.html")
    assert result.code == 0, result.err
    assert (tmp_path / "world.html").stat().st_size > 10_000


def test_methods_are_listed_with_their_parameters(pmfl: Any) -> None:
    names = pmfl("methods")
    assert all(name in names.out for name in ("pmfl", "fedau", "fedvarp", "mifa", "fedhyper", "fedppo", "moon"))
    one = pmfl("methods", "pmfl")
    assert "cutoff" in one.out
    assert "50" in one.out
    assert "longest participation interval" in one.out


def test_check_says_what_is_wrong(pmfl: Any, tmp_path: Path) -> None:
    assert pmfl("check", "fedavg").code == 0
    (tmp_path / "wrong.py").write_text(
        "import torch\nfrom pmfl import Method, WeighRule\n"
        "def method():\n"
        "    bad = lambda state, seen, now: (torch.full((now.clients,), float('nan')), state)\n"
        "    return Method(name='wrong', weigh=WeighRule(init=lambda clients: (), apply=bad))\n"
    )
    result = pmfl("check", "./wrong.py:method")
    assert result.code == 2
    assert "check_weights" in result.out
    assert "failed" in result.out


ERRORS = {
    "no such study": (["run", "nothing"], 2, "there is no study"),
    "no such method": (["run", "tiny.toml", "--set", "method=fedavgg"], 2, "did you mean `fedavg`"),
    "no such key": (["run", "tiny.toml", "--set", "training.roundz=3"], 2, "did you mean `training.rounds`"),
    "no such option": (["run", "--nonsense"], 2, "No such option"),
    "no such command": (["rum"], 2, "No such command"),
    "no such engine": (["run", "tiny.toml", "--engine", "cloud"], 2, "engine.kind"),
    "ranks of nothing": (["run", "tiny.toml", "--engine", "ranks:0"], 2, "ranks"),
    "no results": (["status", "--out", "nowhere"], 2, "there are no results"),
    "no results to report": (["report", "tiny.toml", "--out", "nowhere"], 2, "there are no results"),
    "no such run": (["export", "abc", "--to", "m.onnx", "--out", "nowhere"], 2, "there are no results"),
    "no such kind of file": (["export", "abc", "--to", "m.pkl"], 2, "name it .safetensors or .onnx"),
    "no such method to check": (["check", "nope"], 2, "there is no method"),
    "no such file to check": (["check", "./nope.py:method"], 2, "there is no file"),
    "no such method to list": (["methods", "nope"], 2, "there is no method"),
    "too many clients": (["run", "tiny.toml", "--set", "data.clients=5000"], 2, "5000"),
    "missing data": (["run", "tiny.toml", "--set", "data.dataset=cifar10"], 3, "pmfl data get"),
    "missing path": (
        ["run", "tiny.toml", "--set", "data.dataset=mine", "--set", "data.path=/no/such/place"],
        3,
        "/no/such/place",
    ),
    "diverging": (["run", "tiny.toml", "--set", "training.client_lr=1e30"], 4, "diverged in round"),
    "a file where the folder should be": (["run", "tiny.toml", "--out", "tiny.toml"], 2, "tiny.toml"),
    "sweep without value": (["run", "tiny.toml", "--set", "seed="], 2, "key=value"),
    "unknown pattern in a world": (
        ["world", "tiny.toml", "--set", "participation.pattern=x"],
        2,
        "there is no pattern",
    ),
}


@pytest.mark.parametrize(("words", "code", "said"), ERRORS.values(), ids=ERRORS.keys())
def test_what_is_wrong_is_said_in_one_error(
    pmfl: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "cache"))
    result = pmfl(*words)
    assert result.code == code, result.err
    assert said in result.err
    assert "Traceback" not in result.err
    assert result.out == "" or code == 4  # the runs that did not diverge are shown
    if "error[" in result.err:
        assert "hint: " in result.err


def test_a_diverging_run_leaves_others_alone(pmfl: Any) -> None:
    assert pmfl("run", "tiny.toml", "--set", "method=fedavg").code == 0
    result = pmfl("run", "tiny.toml", "--set", "method=fedavg", "--set", "training.client_lr=0.1,1e30", "--json")
    assert result.code == 4
    document = json.loads(result.out)
    assert sorted(run["status"] for run in document["runs"]) == ["diverged", "diverged", "done", "done"]
    assert "diverged" in pmfl("status").out


def test_debug_shows_where(pmfl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMFL_DEBUG", "1")
    assert "Traceback" in pmfl("run", "nothing").err


def pmfl_process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "importtime", "-c", "from pmfl.cli import main; main()", *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, **options)


def test_help_does_not_import_what_is_heavy() -> None:
    result = pmfl_process("--help")
    assert result.returncode == 0
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines() if "import time" in line}
    assert not imported & {"torch", "numpy", "pydantic", "pyarrow", "altair", "rich.progress", "sqlite3"}
    for command in ("run", "methods", "check", "status", "report", "world", "export", "data"):
        assert command in result.stdout


def test_help_is_quick() -> None:
    """In processor time, which other programs on the machine do not add to; torch alone takes some seconds."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", "from pmfl.cli import main; main()", "--help"]
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.6


def test_an_engine_of_the_study_is_not_overridden_by_a_default(pmfl: Any, tmp_path: Path) -> None:
    (tmp_path / "double.toml").write_text(STUDY.replace("[base]", '[base]\nengine = { kind = "cloud" }'))
    result = pmfl("run", "double.toml")
    assert (result.code, "cloud" in result.err) == (2, True)


def test_onnx_without_its_packages_is_refused(pmfl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--set", "method=fedavg", "--set", "seed=0", "--json")
    run_id = json.loads(pmfl("run", "tiny.toml", *words).out)["runs"][0]["run_id"]
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    result = pmfl("export", run_id, "--to", "deep/er/model.onnx")
    assert result.code == 2
    assert "error[S141]" in result.err
    assert "pmfl[export]" in result.err
    assert not list(Path("deep").rglob("*.*"))


def test_bars_are_drawn_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(STUDY)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from pmfl.cli import main; main()", "run", "tiny.toml", "--json"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:
            break
        if not chunk:
            break
        drawn += chunk
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    assert json.loads(out)["study"] == "tiny"
    assert b"4/4" in drawn
    assert b"rounds/s" in drawn
