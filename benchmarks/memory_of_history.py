"""Memory of a run in which every client remembers: `python benchmarks/memory_of_history.py [--out FILE.json]`.

PMFL keeps N + 1 models for each client that ever took part. 10,000 clients take part in turns of 50, twice each; the
same run keeps everything in RAM, and then only what a budget allows, with the rest in files. Said is what a process
has taken since the run was built (resident memory) beside what clients remember in all, as rounds go by. Both must end
with the same model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import pmfl
from pmfl.core.tree import size_of
from pmfl.engines.local import keep_freed_memory
from pmfl.study.run import GIGABYTE, Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import RunSpec, run_spec

BUDGET = 0.2  # gigabytes
TURN = 50  # clients in a round
MODULE = """
import numpy as np, pmfl
from pmfl.core.keys import Key

def data():
    rng = Key.root(1).numpy()
    x = rng.integers(0, 256, (4 * {clients}, 8, 8, 1), dtype=np.uint8)
    y = rng.integers(0, 10, 4 * {clients})
    return pmfl.from_arrays(x, y, x[:100], y[:100])
"""


def asked(clients: int, module: Path, **engine: Any) -> RunSpec:
    """One participation is one small step, since what is looked at is memory."""
    return run_spec(
        {
            "method": "pmfl",
            "data": {"clients": clients, "dataset": f"{module}:data", "partition": {"name": "iid"}},
            "participation": {"pattern": {"name": "groups", "groups": clients // TURN}},
            "training": {"rounds": 2 * clients // TURN, "iterations": 1, "batch_size": 4},
            "evaluation": {"every": clients // TURN, "clients": False},
            "engine": engine,
        }
    )


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def series(spec: RunSpec, every: int) -> dict[str, Any]:
    """What is held as rounds go by, and the model at the end."""
    keep_freed_memory()
    run, rows, before = Run(spec), list[dict[str, Any]](), resident()
    for record in run:
        if (record.t + 1) % every == 0:
            memories = run.engine.memories
            one = size_of(memories.get(int(record.took_part[0]), tuple))
            rows.append(
                {
                    "round": record.t + 1,
                    "clients": len(memories),
                    "remembered_gb": round(one * len(memories) / GIGABYTE, 3),
                    "in_ram_gb": round(memories.size() / GIGABYTE, 3),
                    "process_gb": round((resident() - before) / GIGABYTE, 3),
                }
            )
    run.close()
    return {"rows": rows, "model": model_sha256(run.w)}


def main(clients: int, out: Path | None) -> None:
    """Both residences, each in a process of its own, as one document."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "images.py"
        module.write_text(MODULE.format(clients=clients), "utf-8")
        words = [sys.executable, __file__, "--clients", str(clients), "--images", str(module), "--memory"]
        kinds = ("mmap", "ram")
        parts = [subprocess.Popen([*words, kind], stdout=subprocess.PIPE, text=True) for kind in kinds]
        said = [json.loads(part.communicate()[0]) for part in parts]
    found = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "versions": {"pmfl": pmfl.__version__, "torch": torch.__version__},
        "clients": clients,
        "budget_gb": BUDGET,
        "same_model": said[0]["model"] == said[1]["model"],
        **{kind: one["rows"] for kind, one in zip(kinds, said, strict=True)},
    }
    text = json.dumps(found, indent=1)
    if out:
        out.write_text(text + "\n", "utf-8")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--clients", type=int, default=10_000)
    words.add_argument("--out", type=Path)
    words.add_argument("--memory", choices=("mmap", "ram"), help=argparse.SUPPRESS)
    words.add_argument("--images", type=Path, help=argparse.SUPPRESS)
    chosen = words.parse_args()
    if chosen.memory:
        engine = {"memory": "mmap", "memory_gb": BUDGET} if chosen.memory == "mmap" else {}
        spec = asked(chosen.clients, chosen.images, **engine)
        json.dump(series(spec, max(chosen.clients // TURN // 10, 1)), sys.stdout)
    else:
        main(chosen.clients, chosen.out)
