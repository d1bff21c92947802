"""Kill it anywhere: it resumes to the same bits, and leaves nothing behind.

These are the short forms; `make fault-campaign` shoots more often and writes what came of it to docs/results/faults.md.
"""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults.campaign import page
from tests.faults.shots import SHORT, Calm, Outcome, alive, calm, descendants, finish, leftovers, models, shoot, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    return calm(tmp_path_factory.mktemp("study"), SHORT)


def test_twice_gives_the_same_bits(undisturbed: Calm) -> None:
    assert len(undisturbed.models) == 3
    assert all(len(value) == 64 for value in undisturbed.models.values())
    assert models(finish(undisturbed.folder, "again")) == undisturbed.models
    assert leftovers(undisturbed.folder / "again") == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "shots"),
    [(signal.SIGKILL, 5), (signal.SIGINT, 3), (signal.SIGTERM, 3)],
    ids=["SIGKILL", "Ctrl-C", "SIGTERM"],
)
def test_killed_at_random_moments(undisturbed: Calm, how: signal.Signals, shots: int) -> None:
    outcome = shoot(undisturbed, how, shots, f"shot-{how.name}")
    assert outcome.wrong == []
    assert outcome.shots > 0


def test_workers_die_with_their_parent(undisturbed: Calm) -> None:
    process = start(undisturbed.folder, "orphans")
    deadline = time.monotonic() + 60
    while not list((undisturbed.folder / "orphans").glob("running/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = list(descendants(process.pid))
    assert workers
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def test_a_leftover_would_be_seen(undisturbed: Calm) -> None:
    stray = undisturbed.folder / "calm" / "runs" / ".summary.json.1.part"
    stray.write_text("")
    assert leftovers(undisturbed.folder / "calm") == ["runs/.summary.json.1.part"]
    stray.unlink()
    assert leftovers(undisturbed.folder / "calm") == []


def test_the_page_of_a_campaign_says_what_was_wrong(undisturbed: Calm) -> None:
    fine = Outcome(signal.SIGKILL, shots=20, met={"playing": 15, "starting or ending": 5}, equal=3)
    bad = Outcome(signal.SIGINT, shots=19, met={"playing": 19}, equal=2, wrong=["a run has\nlost rounds"])
    text = page(undisturbed, [fine, bad])
    assert "| SIGKILL | 20 | 5 | 15 | 3 of 3 | nothing |" in text
    assert "| Ctrl-C (SIGINT) | 19 | 0 | 19 | 2 of 3 | a run has lost rounds |" in text
