"""A node imports what a study names; code that is not ours only where its operator allows it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pmfl.deploy.node import Node
from pmfl.deploy.settings import NodeFolder, NodeSettings
from pmfl.engines.wire import decode, encode

LIMIT = 1 << 20


def ask(folder: Path, spec: dict[str, Any], *allow: str) -> str:
    """Why the node says no to a study."""
    given = NodeSettings(client=0, server="127.0.0.1:1", insecure=True, allow=allow)
    here = NodeFolder(folder, given)
    here.write()
    assert NodeFolder.open(folder, 0).settings.allow == allow
    words = {"kind": "ask", "run": "r", "t": 0, "acks": [-1], "spec": spec}
    answer = decode(Node(here).answer(encode(words, {"w": torch.zeros(3), "lr": torch.tensor(0.1)})), LIMIT)
    assert answer.words["kind"] == "no"
    return str(answer.words["why"])


@pytest.mark.parametrize(
    "place",
    ["method", "data.dataset", "data.partition", "participation.pattern", "training.model"],
)
def test_a_study_cannot_make_a_node_run_code(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "it ran"
    (tmp_path / "strange.py").write_text(f"open({json.dumps(str(flag))}, 'w').close()\ndef f(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec: dict[str, Any] = {"data": {"clients": 1}}
    *outer, last = place.split(".")
    inner = spec
    for word in outer:
        inner = inner.setdefault(word, {})
    for name in ("strange:f", f"{tmp_path}/strange.py:f"):
        inner[last] = name
        why = ask(tmp_path, spec)
        assert "not been told to trust" in why
        assert "node.toml" in why
        assert not flag.exists()
    assert "strange" not in sys.modules


def test_what_the_operator_allows_is_imported(tmp_path: Path) -> None:
    flag = tmp_path / "it ran"
    (tmp_path / "mine.py").write_text(f"open({json.dumps(str(flag))}, 'w').close()\ndef f(): pass\n")
    name = f"{tmp_path}/mine.py:f"
    assert "trust" not in ask(tmp_path, {"data": {"clients": 1}, "method": {"name": name, "x": 1}}, name)
    assert flag.exists()


def test_a_study_that_is_none_is_said_to_be_wrong(tmp_path: Path) -> None:
    assert "rounds" in ask(tmp_path, {"training": {"rounds": "many"}})


def test_a_path_of_the_servers_is_refused_unless_allowed(tmp_path: Path) -> None:
    spec = {"data": {"dataset": "mine", "path": "/somewhere"}, "participation": {"pattern": "live"}}
    assert "names a path on this machine: '/somewhere'" in ask(tmp_path, spec)
    assert "names a path" not in ask(tmp_path, spec, "/somewhere")
