from __future__ import annotations

import json
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch

from pmfl.engines import pulse as pulse_module
from pmfl.engines import ranks as module
from pmfl.engines.crew import ALONE
from pmfl.engines.pulse import Pulse
from pmfl.engines.ranks import Crew, Meeting, meeting_of
from pmfl.errors import Diverged, MethodError, RankLost, SpecError
from pmfl.study.crews import start_crew


def in_crew(ranks: int, work: Callable[[Crew], Any]) -> list[Any]:
    """What ``work`` returns on each rank."""
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(ranks)]
    team = start_crew(ranks, say, (work, [send for _, send in pipes]))
    found = []
    for receive, send in pipes:
        assert receive.poll(60), "a rank said nothing"
        found.append(json.loads(receive.recv_bytes()))
        receive.close()
        send.close()
    for worker in team.workers:
        worker.join(60)
    assert [worker.exitcode for worker in team.workers] == [0] * ranks
    return found


def say(join: Any, work: Callable[[Crew], Any], pipes: Sequence[Connection]) -> None:
    warnings.simplefilter("ignore")  # coverage warns at the end of a process, which would be its exit code
    crew = join("cpu")
    pipes[crew.rank].send_bytes(json.dumps(work(crew)).encode())
    crew.leave()


def everything(crew: Crew) -> dict[str, Any]:
    said: dict[str, Any] = {"leads": crew.leads}
    said["shared"] = crew.share(lambda: {"rank": crew.rank, "number": 0.1, "none": None})
    said["long"] = [len(text) for text in crew.share(lambda: "x" * 10_000 * crew.rank)]
    said["either"] = crew.either(crew.rank == 1, False, True)
    said["sum"] = crew.add(torch.tensor([2**60 + crew.rank, crew.rank])).tolist()
    said["together"] = str(crew.together(object))[:7]
    if crew.rank == 0:
        crew.send(torch.arange(5, dtype=torch.uint8), 1)
        crew.send(None, 1)
    if crew.rank == 1:
        received = crew.receive(0)
        said["received"] = None if received is None else received.tolist()
        said["nothing"] = crew.receive(0)
    return said


def test_what_ranks_tell_each_other() -> None:
    first, second, third = in_crew(3, everything)
    assert [first["leads"], second["leads"], third["leads"]] == [True, False, False]
    for said in (first, second, third):
        assert said["shared"] == [{"rank": rank, "number": 0.1, "none": None} for rank in range(3)]
        assert said["long"] == [0, 10_000, 20_000]
        assert said["either"] == [True, False, True]
        assert said["sum"] == [3 * 2**60 + 3, 3] or said["sum"] == [3 * 2**60 + 3 - 2**64, 3]
        assert said["together"] == "<object"
    assert second["received"] == [0, 1, 2, 3, 4]
    assert second["nothing"] is None


def troubles(crew: Crew) -> list[Any]:
    """What is heard of an error that rank 1 makes; after it, ranks are still in step."""

    def diverge() -> None:
        if crew.rank == 1:
            raise Diverged(round=3, clients=[7])

    def stumble() -> None:
        if crew.rank == 1:
            raise KeyError("odd")

    heard: list[Any] = []
    for trouble in (diverge, stumble):
        try:
            crew.share(trouble)
        except Exception as error:
            heard.append([type(error).__name__, str(error), getattr(error, "exit_code", None)])
            heard.append(getattr(error, "clients", None))
    return [*heard, crew.share(lambda: crew.rank)]


def test_an_error_on_one_rank_is_raised_on_all() -> None:
    here, there = in_crew(2, troubles)
    assert there[0][0] == here[0][0] == "Diverged"
    assert here[0][1].startswith("rank 1: diverged in round 3: the update of client 7")
    assert (here[0][2], here[1]) == (4, [7])
    assert there[2][0] == here[2][0] == "PmflError"
    assert "unexpected KeyError: 'odd'" in here[2][1]
    assert here[2][2] == 1
    assert here[4] == there[4] == [0, 1]


def left_alone(join: Any, send: Connection) -> None:
    warnings.simplefilter("ignore")  # coverage warns at the end of a process, which would be its exit code
    crew = join("cpu")
    if crew.rank == 1:
        os._exit(9)
    try:
        crew.share(lambda: 1)
    except RankLost as error:
        send.send_bytes(str(error).encode())


def test_who_waits_for_one_that_is_gone_is_told() -> None:
    receive, send = multiprocessing.Pipe(duplex=False)
    team = start_crew(2, left_alone, (send,))
    assert receive.poll(60)
    said = receive.recv_bytes().decode()
    assert "rank 0 of 2 lost another" in said
    assert "goes on from the last checkpoint" in said
    for worker in team.workers:
        worker.join(60)
    assert [worker.exitcode for worker in team.workers] == [0, 9]
    receive.close()
    send.close()


class Counts:
    """Counters of a world in which the others beat for a while."""

    def __init__(self, beats: int) -> None:
        self.beats, self.calls = beats, 0

    def add(self, name: str, amount: int) -> int:
        if amount:
            return 0
        self.calls += 1
        if self.calls > 3 * self.beats:
            raise RuntimeError("gone")
        return self.calls if name == "pulse/1" or self.calls < self.beats else 0


@pytest.mark.parametrize("beats", [3, 10])
def test_silence_is_noticed(monkeypatch: pytest.MonkeyPatch, beats: int) -> None:
    monkeypatch.setattr(pulse_module, "BEAT", 0.01)
    monkeypatch.setattr(pulse_module, "SILENCE", 0.2)
    lost, heard = threading.Event(), list[int]()

    def note(silent: list[int]) -> None:
        heard.extend(silent)
        lost.set()

    pulse = Pulse(Counts(beats), 0, 3, note)
    assert lost.wait(10)
    pulse.stop()
    assert 2 in heard


class Stuck:
    """Counters whose keeper has stopped in the middle of an answer."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def add(self, name: str, amount: int) -> int:
        self.asked.wait()
        return 0


def test_silence_of_whoever_keeps_the_counters_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "BEAT", 0.01)
    monkeypatch.setattr(pulse_module, "SILENCE", 0.1)
    lost, counters = threading.Event(), Stuck()
    pulse = Pulse(counters, 1, 2, lambda silent: lost.set())
    assert lost.wait(10)
    counters.asked.set()
    pulse.stop()


def test_a_pulse_that_is_stopped_misses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_module, "BEAT", 60.0)
    pulse = Pulse(Counts(1), 0, 2, lambda silent: pytest.fail("nobody was silent"))
    pulse.stop()


def test_where_torchrun_wants_a_process_to_be() -> None:
    given = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert meeting_of({}) is None
    assert meeting_of(given) == Meeting(3, 8, "node1", 29500)
    elastic = {"LOCAL_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert meeting_of({**given, **elastic}) == Meeting(3, 8, "node1", 29500, 1, True, "2")
    for wrong in ({"RANK": "x"}, {"MASTER_PORT": ""}, {"MASTER_ADDR": ""}):
        with pytest.raises(SpecError) as caught:
            meeting_of({**given, **wrong})
        assert "torchrun" in caught.value.hint


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ARRIVAL", timedelta(seconds=1))
    with pytest.raises(RankLost, match="rank 1, 2 of 3 did not come") as caught:
        Crew(Meeting(0, 3))
    assert caught.value.exit_code == 75


def test_alone_there_is_nobody_to_talk_to() -> None:
    assert ALONE.leads
    assert ALONE.share(lambda: 3) == [3]
    assert ALONE.together(lambda: 3) == 3
    ALONE.leave()
    with pytest.raises(AssertionError):
        ALONE.send(None, 0)
    with pytest.raises(AssertionError):
        ALONE.receive(0)


def test_errors_of_kinds_that_are_not_known_here_are_errors_all_the_same() -> None:
    told = module._told(MethodError("odd", hint="look"), 2)
    assert isinstance(module._heard(told), MethodError)
    found = module._heard({**told, "kind": "Unheard"})
    assert (found.message, found.hint, found.code) == ("rank 2: odd", "look", "M100")
