"""Whether a deployment's study can be played, found out before anything is started, in a process that goes again:
`python -m pmfl.deploy.launch_check DIR` prints what the supervisor must know, or what is wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pmfl.core.files import replacing
from pmfl.deploy.endings import Ended, in_words
from pmfl.deploy.journal import told
from pmfl.deploy.settings import Deployment
from pmfl.errors import EngineError, PmflError

MEGABYTE = 2**20
LEAST = 16  # megabytes a request may have, at least: Flower sends models in pieces of 5


def checked(made: Deployment) -> dict[str, Any]:
    """What ``preflight`` says; for a study that it has passed before, what it said then, so that a supervisor that
    comes back loses no time."""
    file, of = made.folder / "checked.json", f"{made.spec.run_id} {made.server.body_limit}"
    known = told(file)
    if known.get("of") == of and known.keys() >= {"body_limit"}:
        return known
    found = {"of": of, **preflight(made.root)}
    with contextlib.suppress(OSError), replacing(file, durable=False) as beside:
        beside.write_text(json.dumps(found), "utf-8")
    return found


def preflight(root: Path) -> dict[str, Any]:
    """What the process below prints."""
    command = [sys.executable, "-m", "pmfl.deploy.launch_check", str(root)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        told: dict[str, Any] = json.loads(found.stdout)
    except ValueError:
        raise EngineError(
            f"the study of {root / 'deploy.toml'} could not be looked at: {found.stderr.strip()[-2000:]}",
            hint="see what is above; then start again",
            code="E162",
        ) from None
    if "error" in told:
        raise Ended(told)
    return told


def look(root: Path) -> dict[str, Any]:
    """Build what the app will build, and measure it."""
    from pmfl.study.world import build_dataset, build_model

    made = Deployment.open(root)
    spec = made.spec
    model = build_model(spec, build_dataset(spec))
    size = model.size * (8 if spec.engine.dtype == "float64" else 4)
    limit = made.server.body_limit or max(LEAST, -(-4 * size // MEGABYTE))
    return {"model_bytes": size, "body_limit": limit * MEGABYTE, "run_id": spec.run_id}


def main(arguments: list[str]) -> None:
    """Print one JSON object."""
    try:
        told = look(Path(arguments[0]))
    except PmflError as error:
        told = in_words(error)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
