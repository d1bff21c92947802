"""A run whose clients remember more than its budget stays as large as it was, round after round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: what a process holds does not shrink when tests before it are done.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
import pmfl
from pmfl.core.tree import size_of
from pmfl.study.run import Run
from pmfl.study.spec import run_spec

CLIENTS, TURN, BUDGET = 200, 10, 0.002
spec = run_spec({
    "method": "pmfl",
    "data": {"clients": CLIENTS, "partition": {"name": "iid"}},
    "participation": {"pattern": {"name": "groups", "groups": CLIENTS // TURN}},
    "training": {"rounds": 3 * CLIENTS // TURN, "iterations": 1, "batch_size": 2},
    "evaluation": {"every": 1000, "clients": False},
    "engine": {"memory": "mmap", "memory_gb": BUDGET},
})
x = np.random.Generator(np.random.Philox(1)).normal(size=(2 * CLIENTS, 64)).astype("f4")
y = np.arange(len(x)) % 10
run = Run(spec, dataset=pmfl.from_arrays(x, y, x, y))
held, largest = [], 0
for record in run:
    largest = max(largest, run.engine.memories.size())
    held.append(4096 * int(Path("/proc/self/statm").read_text().split()[1]))
one = size_of(run.engine.memories.get(0, tuple))
files = sum(file.stat().st_size for file in run.engine.memories.folder.glob("*"))
print(one * CLIENTS, largest, held[CLIENTS // TURN - 1], max(held), files)
run.close()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what a process holds")
def test_memory_is_flat_over_rounds() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    remembered, largest, after_all, most, files = map(int, said.split())
    assert remembered > 20e6
    assert largest <= 2e6
    assert most - after_all < 5e6  # everybody has been there once; twice more adds nothing
    assert remembered < files < 2.2 * remembered
