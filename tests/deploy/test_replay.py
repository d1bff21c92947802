"""The tools of the campaign can tell a sound deployment from one that is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pmfl.deploy.serve import serve
from pmfl.engines.wire import decode
from pmfl.study.store import Store
from tests.deploy.fake import Hand, Straight, deployment, node
from tests.deploy.faults import in_time
from tests.deploy.gauge import grown, resident
from tests.deploy.replay import forgotten, observed, replayed, sent


def forgetting(answer: Callable[[bytes], bytes], folder: Path, rounds: tuple[int, ...]) -> Callable[[bytes], bytes]:
    """A node whose memory files are lost before some rounds."""

    def reply(data: bytes) -> bytes:
        if decode(data, 1 << 26).words.get("t") in rounds:
            for file in folder.glob("*.safetensors"):
                file.unlink()
        return answer(data)

    return reply


@pytest.mark.parametrize("method", ["pmfl", "fedau"])
def test_a_deployment_is_what_the_local_engine_gives_for_what_it_observed(tmp_path: Path, method: str) -> None:
    made = deployment(tmp_path, method)
    nodes = {k: node(made, k) for k in range(3)}
    link = Straight({0: nodes[0].answer, 2: nodes[2].answer})
    link.nodes[1] = forgetting(nodes[1].answer, nodes[1].folder.memory, (4, 7) if method == "pmfl" else ())
    summary = serve(made, link, clock=Hand())
    took_part = observed(made)
    assert took_part == {t: [0, 1, 2] for t in range(10)}
    lost = forgotten(made)
    assert lost == ({(1, 4), (1, 7)} if method == "pmfl" else set())
    again = replayed(made, took_part, lost)
    assert again.sha256 == summary["model_sha256"] == Store(made.results).run(summary["run_id"]).model_sha256
    status = json.loads(made.status.read_text())
    assert [client["weight"] for client in status["clients"]] == again.weights
    for wrong in ({**took_part, 5: [0, 2]}, {t: who for t, who in took_part.items() if t != 9}):
        assert replayed(made, wrong, lost).sha256 != again.sha256
    if method == "pmfl":
        assert replayed(made, took_part).sha256 != again.sha256


def test_a_line_that_was_cut_short_is_none(tmp_path: Path) -> None:
    file = tmp_path / "sent.log"
    assert sent(file) == []
    file.write_text('{"t": 1, "sends": ["vector"]}\n{"refused": "x"}\n{"t": 2, "se')
    assert [entry["t"] for entry in sent(file)] == [1]


LINE: dict[str, Any] = {
    "kind": "app killed",
    "healed": True,
    "client_back": True,
    "longest_round": 17,
    "deadline": 15.0,
}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"longest_round": 17.1}, False),
        ({"healed": False}, False),
        ({"client_back": False}, False),
        ({"kind": "node killed, back after 1 s", "counted_after": 10.0}, True),
        ({"kind": "node killed, back after 1 s", "counted_after": 10.1}, False),
    ],
)
def test_what_an_injection_may_cost(change: dict[str, Any], kept: bool) -> None:
    assert in_time({**LINE, **change}) is kept


def test_growth_is_told_from_noise() -> None:
    flat, rising = grown([5.0, 6.0] * 20), grown([i + i % 2 for i in range(40)])
    assert abs(flat.slope) < 2 * flat.error
    assert rising.slope > 10 * rising.error
    assert rising.slope == pytest.approx(1.0, abs=0.05)
    assert grown([1.0]) == (0.0, 0.0)
    own = resident(None)
    assert own is None
    assert (resident(1) or 0) > 0
