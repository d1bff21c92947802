"""A newcomer's walk: the commands of docs/guides/deploy/walk.md, one after the other as they are written, and timed.

    python -m tests.deploy.walk OUT [--install]

With --install the first of them, `pip install`, runs in an environment of its own, with this repository in the place
of the package's name. Between two commands it waits for what the guide says will happen. OUT/walk.json says what came
of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pmfl
from pmfl.deploy.overview import overview
from tests.deploy.field import until

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "deploy" / "walk.md"
SHIM = f"""#!/bin/sh
PYTHONPATH={Path(pmfl.__file__).parents[1]} exec {sys.executable} -c 'from pmfl.cli import main; main()' "$@"
"""
PATIENCE = 300.0  # seconds for anything that the guide says will happen


def commands(text: str) -> list[str]:
    """The lines of the guide's blocks of shell."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


class Walker:
    """Types commands into a shell, in a folder of its own."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.began = folder, time.monotonic()
        self.environment = {**os.environ, "PATH": path}
        self.environment.pop("PYTHONPATH", None)
        self.steps = list[dict[str, Any]]()
        self.stays: subprocess.Popen[bytes] | None = None

    def types(self, line: str) -> str:
        """One command, to its end; what it said."""
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        self.note(line, began, code=done.returncode)
        if done.returncode != 0:
            raise SystemExit(f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def leaves_running(self, line: str) -> None:
        """One command that stays in its terminal."""
        with (self.folder / "first-terminal").open("ab") as out:
            self.stays = subprocess.Popen(
                ["bash", "-c", f"exec {line}"], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        self.note(f"{line}   (goes on)", time.monotonic())

    def left_terminal(self) -> bool:
        """Whether the command that stayed has ended, and well."""
        code = None if self.stays is None else self.stays.poll()
        assert code in (None, 0), code
        return code == 0

    def waits(self, what: str, is_so: Any) -> None:
        """Until the guide's next sentence is true."""
        began = time.monotonic()
        if until(is_so, PATIENCE) is None:
            raise SystemExit(f"not within {PATIENCE:g} s: {what}\n{(self.folder / 'first-terminal').read_text()}")
        self.note(f"[waited: {what}]", began)

    def note(self, what: str, began: float, **more: Any) -> None:
        """How long a step took."""
        line = {"step": what, "at": round(began - self.began, 1), "seconds": round(time.monotonic() - began, 1), **more}
        self.steps.append(line)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def walk(folder: Path, path: str, install: str) -> dict[str, Any]:
    """All of it."""
    lines = commands(GUIDE.read_text("utf-8"))
    walker, trial = Walker(folder, path), folder / "trial"

    def known() -> dict[str, Any]:
        return overview(trial)

    def rounds(more: int) -> Callable[[], bool]:
        """Whether so many more than now are over."""
        goal = (known()["round"] or 0) + more
        return lambda: (known()["round"] or 0) >= goal

    def replies(k: int, more: int) -> Callable[[], bool]:
        """Whether so many more replies of a client than now were counted."""
        goal = int(known()["clients"][k]["replies"]) + more
        return lambda: int(known()["clients"][k]["replies"]) >= goal

    for i, line in enumerate(lines):
        if line.startswith("pip install"):
            if install:
                walker.types(line.replace("'pmfl[", f"'{ROOT}[").replace("pip install", install))
        elif line.startswith("pmfl deploy up"):
            walker.leaves_running(line)
            walker.waits("the first round is over", rounds(1))
        elif line.startswith("kill -9"):
            walker.waits("some more rounds", rounds(3))
            walker.types(line)
            if "server" in line:
                walker.waits("the next round", rounds(1))
        else:
            if line.startswith("ls trial/server/result"):
                walker.waits("the run is over", walker.left_terminal)
            said = walker.types(line)
            if line.startswith("ls "):
                assert said.split() == ["MODEL_CARD.md", "model.onnx", "model.safetensors"], said
            if line.startswith("pmfl deploy status") and lines[i - 1].startswith("kill"):
                walker.waits("the killed node takes part again", replies(1, 2))
    found = known()
    return {
        "minutes": round((time.monotonic() - walker.began) / 60, 2),
        "with_install": bool(install),
        "commands": len([step for step in walker.steps if not step["step"].startswith("[")]),
        "rounds": found["round"],
        "state": found["state"],
        "took_part": [client["replies"] for client in found["clients"]],
        "restarts": found["restarts"],
        "load": round(os.getloadavg()[0], 1),
        "steps": walker.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--install", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if given.install:
            subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
            bins = folder / "env" / "bin"
        else:
            bins = folder / "bin"
            bins.mkdir()
            (bins / "pmfl").write_text(SHIM)
            (bins / "pmfl").chmod(0o755)
        install = f"{bins / 'pip'} install -q" if given.install else ""
        try:
            found = walk(folder, os.pathsep.join([str(bins), os.environ["PATH"]]), install)
        finally:
            for lock in folder.glob("trial*/up.lock"):
                if (pid := lock.read_text("utf-8")).isdigit() and Path(f"/proc/{pid}").exists():
                    os.kill(int(pid), signal.SIGTERM)
    (given.out / "walk.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
