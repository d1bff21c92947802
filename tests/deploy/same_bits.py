"""Three nodes that are always there for 10 rounds, through real processes, keys and disks: the local engine's bits?

    python -m tests.deploy.same_bits OUT

OUT/same_bits.json says it of every method.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import run_spec
from pmfl.study.store import Store
from tests.deploy.field import Field

METHODS = ("pmfl", "fedau", "mifa", "fedvarp", "moon", "fedhyper")
NODES, ROUNDS = 3, 10


def simulated(study: dict[str, Any]) -> str:
    """The model of the local engine, one client after the other."""
    given = {**study, "data": {**study["data"], "clients": NODES}, "participation": {"pattern": "always"}}
    run = Run(run_spec(given))
    for _ in run:
        pass
    run.close()
    return model_sha256(run.w)


def deployed(root: Path, method: str) -> dict[str, Any]:
    """The model of a server and its nodes, beside the other."""
    began = time.monotonic()
    study = (f"method={method}", f"training.rounds={ROUNDS}", f"evaluation.every={ROUNDS}")
    with Field(root, NODES, *study, deadline=120.0, min_replies=NODES) as field:
        if field.until(lambda: field.done, 600.0) is None:
            raise SystemExit(f"{method} did not end: see {root}/server/logs")
    (row,) = Store(field.made.results).runs()
    return {
        "method": method,
        "rounds": row.t,
        "replies": [client["replies"] for client in field.status["clients"]],
        "deployed": row.model_sha256,
        "simulated": simulated(dict(field.made.study)),
        "seconds": round(time.monotonic() - began, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = []
    for method in METHODS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found.append(deployed(Path(folder), method))
        sys.stdout.write(json.dumps(found[-1]) + "\n")
        sys.stdout.flush()
    (given.out / "same_bits.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
