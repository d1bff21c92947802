"""Examples and guides do what they say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import pmfl
from pmfl.cli import main
from pmfl.study.grid import load
from pmfl.study.spec import known_keys

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
GUIDES = ROOT / "docs" / "guides"


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / guide).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_every_example_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(file), run_name="__main__")
    out = capsys.readouterr().out
    assert not re.search(r"[1-9]\d* failed", out)
    assert len(out.splitlines()) >= 3


def test_the_study_of_the_guide_is_sound(tmp_path: Path) -> None:
    (text,) = blocks("studies.md", "toml")
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    study = load(tmp_path / "mine.toml")
    assert len(study.runs) == 18
    assert study.title == "How rare may clients be?"


def test_the_guide_names_every_key_and_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.*?) \|", (GUIDES / "studies.md").read_text("utf-8"), re.MULTILINE)
    told = {key: default for key, default in rows if key in known_keys()}
    assert all(key.startswith("engine.") for key in set(known_keys()) - set(told))  # some are for engines' own guides
    spec = pmfl.run_spec({})
    for key, default in told.items():
        part, _, word = key.partition(".")
        value = getattr(spec, part) if not word else getattr(getattr(spec, part), word)
        value = getattr(value, "name", value)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if value not in (None, {}):
            assert shown in default.replace('"', ""), key


def test_the_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks("studies.md", "python")
    exec(compile(text, "studies.md", "exec"), {})
    assert capsys.readouterr().out.count("\n") == 2


def test_the_method_of_the_guide_passes_the_battery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = blocks("your-method.md", "python")
    (tmp_path / "mine.py").write_text(text, "utf-8")
    (tmp_path / "own.toml").write_text(
        '[base]\nmethod = "./mine.py:longing"\ntraining = { rounds = 2 }\ndata = { clients = 5 }\n'
        '[method."./mine.py:longing"]\nstrength = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    assert load("own.toml").runs[0].method.params["strength"] == 1.0
    for words, said in (
        (["methods", "./mine.py:longing"], "strength"),
        (["check", "./mine.py:longing"], "passed"),
    ):
        monkeypatch.setattr(sys, "argv", ["pmfl", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out = capsys.readouterr().out
        assert ended.value.code in (0, None), out
        assert said in out
