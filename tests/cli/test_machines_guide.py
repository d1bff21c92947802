"""docs/guides/several-machines.md: its commands as they stand, its script read by the shell it is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pmfl.study.store import Store

GUIDE = (Path(__file__).parents[2] / "docs/guides/several-machines.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_commands_for_one_machine(tmp_path: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    for command in blocks("sh"):
        found = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        assert "report: " in found.stdout
    store = Store(tmp_path / "results")
    rows = store.runs()
    store.close()
    assert len(rows) == 2 * 3
    assert {(row.status, row.t) for row in rows} == {("done", 5)}


def test_the_script_for_slurm_is_a_script(tmp_path: Path) -> None:
    (script,) = blocks("bash")
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True)
    words = " ".join(blocks("text")[0].replace("\\\n", "").split())
    assert "--engine ranks" in words
    assert "torchrun --nnodes" in words
