"""What the engine takes from machines, what it refuses, and how long it waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from pmfl.core.types import Downlink, Round
from pmfl.engines.remote import RETRIES, SCALAR, Answer, RemoteEngine, Seat, Terms, TooFew
from pmfl.engines.wire import decode, digest, encode
from pmfl.errors import Diverged
from pmfl.study.run import Run
from pmfl.study.spec import run_spec

K = 3
Reply = Callable[[int, bytes], bytes | None]


@pytest.fixture(scope="module")
def run() -> Run:
    training = {"rounds": 9, "iterations": 1, "batch_size": 2, "model": {"name": "mlp", "hidden": 2}}
    return Run(run_spec({"method": "fedavg", "data": {"clients": K}, "training": training}))


class Desk:
    """A link by hand: replies come when they are due; and the clock of it."""

    def __init__(self, reply: Reply, delay: Mapping[int, float] | None = None) -> None:
        self.reply, self.delay, self.seconds = reply, dict(delay or {}), 0.0
        self.seats = {k: Seat(k, "") for k in range(K)}
        self.due: list[tuple[float, Answer]] = []
        self.posted: list[tuple[int, ...]] = []
        self.script: dict[float, Callable[[], None]] = {}

    def present(self) -> Mapping[int, Seat]:
        return dict(self.seats)

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        self.posted.append(tuple(seats))
        tickets = {f"{len(self.posted)}-{k}": k for k in seats}
        for ticket, k in tickets.items():
            answer = Answer(ticket, self.reply(k, data), "gone")
            self.due.append((self.seconds + self.delay.get(k, 0.0), answer))
        return tickets

    def collect(self) -> Sequence[Answer]:
        came = [answer for at, answer in self.due if at <= self.seconds]
        self.due = [(at, answer) for at, answer in self.due if at > self.seconds]
        return came

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        for at in [at for at in self.script if at <= self.seconds]:
            self.script.pop(at)()


def engine(run: Run, desk: Desk, **terms: Any) -> RemoteEngine:
    given = Terms(**{"deadline": 10.0, "words": {"run": "r"}, **terms})
    return RemoteEngine(
        run.method.client, run.model, run.world.population, link=desk, terms=given, clients=K, clock=desk
    )


def now(t: int = 0) -> Round:
    return Round(t, 9, K, 0.1, None)  # type: ignore[arg-type]


def sent(run: Run) -> Downlink:
    return Downlink(run.w, torch.tensor(0.1), {"more": torch.ones(2)})


def everyone() -> torch.Tensor:
    return torch.ones(K, dtype=torch.bool)


def honest(run: Run, **change: Any) -> Reply:
    def reply(k: int, data: bytes) -> bytes:
        words = {"kind": "reply", "client": k, "ask": digest(data), "fresh": False, **change.get("words", {})}
        names = ("loss/first", "accuracy/first", "loss/last", "accuracy/last", "samples")
        tensors = {"vector": torch.full_like(run.w, k + 1.0), **{SCALAR + name: torch.tensor(1.0) for name in names}}
        tensors |= change.get("tensors", {})
        return encode(words, {name: x for name, x in tensors.items() if x is not None})

    return reply


def turned(reply: Reply, place: int) -> Reply:
    """The same with one bit turned, among the numbers if the place is near the end."""

    def damaged(k: int, data: bytes) -> bytes:
        raw = bytearray(reply(k, data) or b"")
        raw[place] ^= 1
        return bytes(raw)

    return damaged


def only(k: int, wrong: Reply, right: Reply) -> Reply:
    return lambda who, data: (wrong if who == k else right)(who, data)


def test_an_ask_says_the_model_and_what_was_counted(run: Run) -> None:
    asks: list[bytes] = []

    def noted(k: int, data: bytes) -> bytes | None:
        asks.append(data)
        return honest(run)(k, data)

    desk = Desk(noted)
    one = engine(run, desk)
    replies = one.train(sent(run), everyone(), now())
    assert replies.seen.clients.tolist() == [0, 1, 2]
    assert torch.equal(replies.weighted_sum(torch.full((K,), 1 / 3).double()), torch.full_like(run.w, 2.0))
    one.train(sent(run), everyone(), now(1))
    first, second = decode(asks[0], 10**6), decode(asks[-1], 10**6)
    assert len({asks[0], asks[1], asks[2]}) == 1
    assert (first.words["acks"], second.words["acks"]) == ([-1] * K, [0] * K)
    assert torch.equal(second.tensors["w"], run.w)
    assert second.tensors["extra:more"].tolist() == [1, 1]
    assert one.tally.replies.tolist() == [2] * K
    assert desk.seconds == 0


BAD: dict[str, list[Callable[[Run], Reply]]] = {
    "malformed": [
        lambda run: lambda k, data: b"nothing",
        lambda run: honest(run, tensors={"vector": None}),
        lambda run: honest(run, tensors={"vector": torch.zeros(3)}),
        lambda run: honest(run, tensors={"vector": run.w.double()}),
        lambda run: honest(run, tensors={"update": torch.zeros(3)}),
        lambda run: honest(run, tensors={SCALAR + "more": torch.tensor(1.0)}),
        lambda run: honest(run, tensors={SCALAR + "samples": None}),
        lambda run: honest(run, tensors={SCALAR + "samples": torch.ones(2)}),
    ],
    "damaged": [lambda run: turned(honest(run), -1), lambda run: turned(honest(run), -40)],
    "another client": [lambda run: honest(run, words={"client": 2}), lambda run: honest(run, words={"client": True})],
    "another round": [lambda run: honest(run, words={"ask": "0" * 32}), lambda run: honest(run, words={"kind": "x"})],
    "not finite": [lambda run: honest(run, tensors={"vector": run.w * float("nan")})],
    "too long": [
        lambda run: honest(run, tensors={"vector": torch.full_like(run.w, 50.0)}),
        lambda run: honest(run, tensors={"vector": torch.full_like(run.w, 1e30)}),
    ],
    "too large": [lambda run: lambda k, data: bytes(50 * 4 * run.w.numel() + (2 << 20))],
    "declined": [lambda run: lambda k, data: encode({"kind": "no", "client": k, "why": "stale"}, {})],
    "gone": [lambda run: lambda k, data: None],
}


@pytest.mark.parametrize(("reason", "make"), [(reason, make) for reason, makes in BAD.items() for make in makes])
def test_what_is_not_a_reply_is_refused_counted_and_the_round_goes_on(run: Run, reason: str, make: Any) -> None:
    desk = Desk(only(1, make(run), honest(run)))
    one = engine(run, desk, norm_bound=300.0)
    replies = one.train(sent(run), everyone(), now())
    assert replies.seen.clients.tolist() == [0, 2]
    times = 1 if reason != "gone" else 1 + RETRIES  # what the network loses is asked for again
    assert one.reasons == {reason: times}
    assert (one.tally.refused + one.tally.lost).tolist() == [0, times, 0]
    assert one.tally.counted.tolist() == [0, -1, 0]
    assert desk.seconds < 1 if reason != "gone" else 6 < desk.seconds < 8


def test_a_round_waits_until_the_deadline_and_counts_what_comes_later(run: Run) -> None:
    desk = Desk(honest(run), {1: 15.0})
    one = engine(run, desk)
    assert one.train(sent(run), everyone(), now()).clients == [0, 2]
    assert 10 <= desk.seconds < 10.5
    desk.delay = {}
    # Client 1 still owes an answer: it is asked, and what it says is taken, but nobody waits for it.
    assert one.train(sent(run), everyone(), now(1)).clients == [0, 1, 2]
    desk.seconds = 20.0
    one.train(sent(run), everyone(), now(2))
    assert one.tally.late.tolist() == [0, 1, 0]
    assert one.tally.replies.tolist() == [3, 2, 3]


def test_nobody_waits_for_one_that_is_hung_or_gone(run: Run) -> None:
    desk = Desk(honest(run), {1: 1e9})
    one = engine(run, desk)
    one.train(sent(run), everyone(), now())
    began = desk.seconds
    assert one.train(sent(run), everyone(), now(1)).clients == [0, 2]
    assert desk.seconds == began
    desk.seats[1] = Seat(1, "restarted")  # it is waited for again
    desk.delay = {1: 3.0}
    assert one.train(sent(run), everyone(), now(2)).clients == [0, 1, 2]
    desk.delay = {0: 1e9}
    desk.script[desk.seconds + 2] = lambda: desk.seats.pop(0) and None
    began = desk.seconds
    assert one.train(sent(run), everyone(), now(3)).clients == [1, 2]
    assert desk.seconds - began < 3


def test_a_machine_that_was_started_again_is_asked_again(run: Run) -> None:
    desk = Desk(honest(run), {2: 1e9})
    one = engine(run, desk)

    def restart() -> None:
        desk.seats[2], desk.delay = Seat(2, "again"), {}
        desk.due.append((0.0, Answer("1-2", None, "gone")))  # the error for its former self comes late

    desk.script[4.0] = restart
    assert one.train(sent(run), everyone(), now()).clients == [0, 1, 2]
    assert desk.posted == [(0, 1, 2), (2,)]
    assert desk.seconds < 5


def test_too_few_replies_start_the_round_again_and_keep_what_has_come(run: Run) -> None:
    desk = Desk(honest(run), {1: 1e9, 2: 12.0})
    one = engine(run, desk, min_replies=2)
    with pytest.raises(TooFew):
        one.train(sent(run), everyone(), now())
    assert one.tally.counted.tolist() == [-1] * K
    assert one.train(sent(run), everyone(), now()).clients == [0, 2]
    assert desk.posted[0] == (0, 1, 2)
    assert set(desk.posted[1:]) <= {(1,)}  # client 2 is still at it
    assert one.tally.replies.tolist() == [1, 0, 1]


def test_what_the_network_loses_is_asked_for_again(run: Run) -> None:
    tries: list[int] = []

    def lossy(k: int, data: bytes) -> bytes | None:
        tries.append(k)
        return None if tries.count(k) < 3 else honest(run)(k, data)

    desk = Desk(lossy)
    one = engine(run, desk)
    assert one.train(sent(run), everyone(), now()).clients == [0, 1, 2]
    assert one.tally.lost.tolist() == [2, 2, 2]
    assert 4 < desk.seconds < 6


def test_an_ask_that_nobody_answers_is_made_again(run: Run) -> None:
    desk = Desk(honest(run), dict.fromkeys(range(K), 1e9))
    one = engine(run, desk)
    posts = []
    for _ in range(4):  # an ask is worth delivering for two deadlines
        with pytest.raises(TooFew):
            one.train(sent(run), everyone(), now())
        posts.append(len(desk.posted))
    assert (posts[0], posts[2], desk.posted) == (1, 2, [(0, 1, 2)] * posts[-1])
    assert posts[-1] <= 3


def test_with_everybody_gone_a_round_is_given_up_at_once(run: Run) -> None:
    desk = Desk(honest(run), dict.fromkeys(range(K), 1e9))
    one = engine(run, desk)
    desk.script[1.0] = desk.seats.clear
    with pytest.raises(TooFew):
        one.train(sent(run), everyone(), now())
    assert desk.seconds < 2
    desk.script[5.0] = lambda: desk.seats.update({1: Seat(1, "")})
    assert one.present().tolist() == [False, True, False]
    assert 5 <= desk.seconds < 6


@pytest.mark.parametrize("value", [float("inf"), 1e30])
def test_training_that_leaves_the_range_everywhere_ends_the_run(run: Run, value: float) -> None:
    one = engine(run, Desk(honest(run, tensors={"vector": torch.full_like(run.w, value)})))
    for _ in range(2):
        with pytest.raises(TooFew):
            one.train(sent(run), everyone(), now())
    with pytest.raises(Diverged, match="round 0") as caught:
        one.train(sent(run), everyone(), now())
    assert caught.value.clients == [0, 1, 2]


def test_a_round_in_which_nobody_is_chosen_lasts_as_long_as_others_may(run: Run) -> None:
    desk = Desk(honest(run))
    one = engine(run, desk)
    assert one.train(sent(run), ~everyone(), now()).clients == []
    assert (desk.posted, one.tally.replies.tolist()) == ([], [0] * K)
    assert desk.seconds >= 10


def test_lost_memories_and_farewells(run: Run) -> None:
    desk = Desk(only(2, honest(run, words={"fresh": True}), honest(run)))
    one = engine(run, desk)
    one.train(sent(run), everyone(), now())
    assert one.tally.fresh.tolist() == [0, 0, 1]
    assert one.latest[2]["samples"] == 1.0
    heard: list[Any] = []

    def hear(k: int, data: bytes) -> bytes:
        heard.append(decode(data, 10**6).words)
        return b""

    desk.reply = hear
    desk.delay = {0: 1e9}
    one.farewell(1, 3.0)
    assert [words["acks"] for words in heard] == [[0, 0, 0]] * K
    assert {words["kind"] for words in heard} == {"done"}
