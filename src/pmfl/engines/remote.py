"""The engine whose clients are machines: asks those that are there, waits until a deadline, believes nothing unchecked.

A round of a run has one ask, the same bytes for everybody: the model, and for every client the last round whose reply
was counted. A client keeps what it remembers under the number of the round that made it, and takes up the memory of
the round that the ask names: so the two sides agree whatever was lost on the way, and asking twice does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from pmfl.core.client import train_client
from pmfl.core.method import ClientRule
from pmfl.core.types import Downlink, Model, Round, Seen, Uplink
from pmfl.engines.local import LocalEngine, LocalReplies, gather_scalars
from pmfl.engines.memory import Memories
from pmfl.engines.wire import Parcel, Refused, decode, digest, encode
from pmfl.errors import Diverged
from pmfl.world.live import new_tally
from pmfl.world.population import Population

PAUSE = 0.1  # seconds between two looks at what has come
HOPELESS = 3  # times in a row that a round may end with numbers of which none can be used
BEYOND = {"not finite", "too long"}  # what is wrong with replies when it is training that has gone wrong
AGAIN = 2.0  # seconds after which a client is asked again whose message the network has lost
RETRIES = 3  # times in a round
LASTING = 2.0  # deadlines that an ask is worth delivering: what is too late for its round may serve its next try
REMEMBERED = 100  # rounds for which an answer is still known to be late
LARGEST = 2.0**20  # a number in an update is smaller, or its weighted sum could leave the range of the server
SCALAR, EXTRA = "scalar:", "extra:"
WORDS_LIMIT = 1 << 20


class Seat(NamedTuple):
    """Where a client is reached. ``since`` changes when its machine was started again."""

    address: int
    since: str


class Answer(NamedTuple):
    """What came back for a ticket: a message, or in words why there is none."""

    ticket: str
    data: bytes | None
    error: str = ""


class Errand(NamedTuple):
    """An ask that is under way."""

    seat: Seat
    ticket: str
    until: float  # when there is no more hope for it


class Link(Protocol):
    """A network with clients behind it. Messages may get lost, come late, or twice."""

    def present(self) -> Mapping[int, Seat]:
        """The clients that are there."""
        ...

    def post(self, data: bytes, seats: Mapping[int, Seat], lasting: float) -> Mapping[str, int]:
        """Send one message to some clients, worth delivering for so many seconds: a ticket for each that was sent."""
        ...

    def collect(self) -> Sequence[Answer]:
        """What has come back since the last call, for any ticket."""
        ...


class Clock(Protocol):
    """Time, as an engine needs it."""

    def now(self) -> float:
        """Seconds that only grow."""
        ...

    def pause(self, seconds: float) -> None:
        """Let them pass."""
        ...


class WallClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Let them pass."""
        time.sleep(seconds)


class TooFew(Exception):
    """A round cannot be closed: it has to be started again, with whoever is there then."""


@dataclass(frozen=True)
class Terms:
    """What a round waits for, and what it takes."""

    deadline: float = 60.0
    min_replies: int = 1
    norm_bound: float = 0.0  # 0: none
    words: Mapping[str, Any] = field(default_factory=dict)  # what nodes must know besides the round: the study


class RemoteEngine(LocalEngine):
    """Trains on machines behind a link; evaluates here."""

    def __init__(
        self,
        rule: ClientRule[Any],
        model: Model,
        population: Population,
        *,
        link: Link,
        terms: Terms,
        clients: int,
        memories: Memories | None = None,
        clock: Clock | None = None,
        watch: Callable[[RemoteEngine], None] = lambda engine: None,
    ) -> None:
        super().__init__(rule, model, population, memories=memories)
        self.link, self.terms, self.clock, self.watch = link, terms, clock or WallClock(), watch
        self.tally = new_tally(clients)
        self.here: Mapping[int, Seat] = {}
        self.waiting_for: list[int] = []
        self.reasons: dict[str, int] = {}  # refusals by reason, since this process started
        self.complaints: dict[int, str] = {}  # why a client's last answer was not taken, in words
        self.latest: dict[int, dict[str, float]] = {}  # the last scalars of each client
        self._open: dict[str, tuple[int, int]] = {}  # ticket -> client, round: asked, and no answer yet
        self._kept: dict[int, Uplink] = {}  # replies to the current ask
        self._asked: dict[int, Errand] = {}  # the newest of the current ask to each client
        self._fresh: set[int] = set()  # clients whose kept reply began with a new memory, though an old one counted
        self._behind: dict[int, Seat] = {}  # those that a round ended without: asked, but only waited for if need be
        self._ask = b""
        self._hopeless = 0
        self._scalars: dict[str, torch.dtype] | None = None

    def present(self) -> Tensor:
        """Who is there, [K] bool; waits until there are enough for a round."""
        row = torch.zeros(len(self.tally.counted), dtype=torch.bool)
        while True:
            self._look()
            if len(self.here) >= self.terms.min_replies:
                row[sorted(self.here)] = True
                return row
            self.clock.pause(PAUSE)

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> LocalReplies:
        """Ask the chosen clients, and wait for them until the deadline. ``TooFew``: play the round again."""
        wanted = chosen.nonzero().flatten().tolist()
        ask = self._written(sent, now)
        if ask != self._ask:
            self._ask, self._kept, self._asked = ask, {}, {}
        self._open = {ticket: known for ticket, known in self._open.items() if known[1] > now.t - REMEMBERED}
        if wanted:
            self._gather(ask, set(wanted), sent, now)
        else:
            self._idle()
        clients = [k for k in wanted if k in self._kept]
        uplinks = [self._squared(k, self._kept[k]) for k in clients]
        self.tally.counted[clients] = now.t
        self.tally.replies[clients] += 1
        self.tally.fresh[[k for k in clients if k in self._fresh]] += 1
        self._kept, self.waiting_for, self._hopeless = {}, [], 0
        took_part = torch.zeros_like(chosen)
        took_part[clients] = True
        return LocalReplies(Seen(took_part, gather_scalars(uplinks)), clients, uplinks, now.t, sent.w)

    def farewell(self, t: int, patience: float) -> None:
        """Tell everybody which replies were counted in the end; nobody has to answer."""
        words = {**self.terms.words, "kind": "done", "t": t, "acks": self.tally.counted.tolist()}
        tickets = set(self.link.post(encode(words, {}), self.link.present(), patience))
        end = self.clock.now() + patience
        while tickets and self.clock.now() < end:
            tickets -= {answer.ticket for answer in self.link.collect()}
            self.clock.pause(PAUSE)

    def _squared(self, k: int, uplink: Uplink) -> Uplink:
        """The uplink, with what a client that lost its memory could not take back.

        Where uplinks are changes of what a client keeps, one that starts anew sends the whole of it, and the server
        would hold the old value for ever: so the sum of what each client has sent is kept here, with the checkpoint.
        """
        if not self.rule.sends_changes:
            return uplink
        (before,) = self.memories.get(k, lambda: (torch.zeros_like(uplink.vector),))
        change = uplink.vector - before if k in self._fresh else uplink.vector
        self.memories.put(k, (uplink.vector if k in self._fresh else before + change,))
        return uplink._replace(vector=change)

    def _written(self, sent: Downlink, now: Round) -> bytes:
        words = {
            **self.terms.words,
            "kind": "ask",
            "t": now.t,
            "total": now.total,
            "acks": self.tally.counted.tolist(),
        }
        tensors = {"w": sent.w, "lr": sent.lr, **{EXTRA + name: value for name, value in sent.extra.items()}}
        return encode(words, tensors)

    def _gather(self, ask: bytes, wanted: set[int], sent: Downlink, now: Round) -> None:
        """Fill ``_kept``, or raise ``TooFew``."""
        name, end = digest(ask), self.clock.now() + self.terms.deadline
        failures, gone_wrong = dict[int, int](), dict[int, str]()
        while True:
            self._look()
            self._send(ask, wanted - self._kept.keys() - gone_wrong.keys(), now)
            for answer in self.link.collect():
                k, t = self._open.pop(answer.ticket, (-1, -1))
                wrong = self._take(answer, k, t, name, sent, now) if k >= 0 else ""
                errand = self._asked.get(k)
                if not wrong or errand is None or errand.ticket != answer.ticket:
                    continue
                failures[k] = failures.get(k, 0) + 1
                if answer.data is None and failures[k] <= RETRIES:
                    self._asked[k] = errand._replace(until=self.clock.now() + AGAIN)
                else:
                    gone_wrong[k] = wrong
                    del self._asked[k]  # it has answered; should the round be tried again, it is asked again
            missing = (wanted - self._kept.keys() - gone_wrong.keys()) & self.here.keys()
            enough, late = len(self._kept) >= self.terms.min_replies, self.clock.now() >= end
            behind = {k for k in missing if self._behind.get(k) == self.here[k]} if enough else set()
            self.waiting_for = sorted(missing - behind)
            if not self.waiting_for or late:
                if enough:
                    self._behind |= {k: self.here[k] for k in missing}
                    return
                if late or not (gone_wrong.keys() & self.here.keys()):
                    self._give_up(gone_wrong, now)
            self.clock.pause(PAUSE)

    def _send(self, ask: bytes, missing: set[int], now: Round) -> None:
        """Ask those that were not, or whose machine was started again and has forgotten it, or in vain."""
        moment, lasting = self.clock.now(), LASTING * self.terms.deadline
        seats = {}
        for k in sorted(missing & self.here.keys()):
            errand = self._asked.get(k)
            if errand is None or errand.seat != self.here[k] or errand.until < moment:
                seats[k] = self.here[k]
        for ticket, k in self.link.post(ask, seats, lasting).items() if seats else ():
            self._open[ticket] = k, now.t
            self._asked[k] = Errand(seats[k], ticket, moment + lasting)

    def _give_up(self, gone_wrong: Mapping[int, str], now: Round) -> NoReturn:
        """The round has to be started again; unless that has been tried, and training itself has gone wrong."""
        if gone_wrong and not self._kept and set(gone_wrong.values()) <= BEYOND:
            self._hopeless += 1
            if self._hopeless >= HOPELESS:
                raise Diverged(round=now.t, clients=sorted(gone_wrong))
        raise TooFew

    def _idle(self) -> None:
        """A round in which nobody was chosen lasts as long as others may."""
        end = self.clock.now() + self.terms.deadline
        while self.clock.now() < end:
            self._look()
            self.clock.pause(PAUSE)

    def _take(self, answer: Answer, k: int, t: int, name: str, sent: Downlink, now: Round) -> str:
        """Keep what has come; or the reason why not."""
        if answer.data is not None:
            self._behind.pop(k, None)
        if answer.data is None:
            self.tally.lost[k] += 1
            return self._count(answer.error or "lost")
        if t != now.t:
            self.tally.late[k] += 1
            return self._count("late")
        try:
            limit = 2 * sent.w.numel() * sent.w.element_size() + WORDS_LIMIT
            parcel = decode(answer.data, limit)
            self._kept[k] = self._checked(parcel, k, name, sent, now)
        except Refused as refused:
            self.tally.refused[k] += 1
            self.complaints[k] = str(refused)[:500]
            return self._count(refused.reason)
        self.complaints.pop(k, None)
        (self._fresh.add if parcel.words.get("fresh") is True else self._fresh.discard)(k)
        self.latest[k] = {word: float(value) for word, value in self._kept[k].scalars.items()}
        return ""

    def _checked(self, parcel: Parcel, k: int, name: str, sent: Downlink, now: Round) -> Uplink:
        words, tensors = parcel
        if words.get("kind") == "no":
            raise Refused("declined", str(words.get("why"))[:200])
        if type(words.get("client")) is not int or words["client"] != k:
            raise Refused("another client", f"from client {k}, in the name of {str(words.get('client'))[:20]}")
        if words.get("kind") != "reply" or words.get("ask") != name:
            raise Refused("another round", f"not a reply to what was asked in round {now.t}")
        vector, update = tensors.get("vector"), tensors.get("update", tensors.get("vector"))
        for found in (vector, update):
            if found is None or found.shape != sent.w.shape or found.dtype != sent.w.dtype:
                raise Refused("malformed", f"not a vector of {sent.w.numel()} numbers")
        assert vector is not None
        assert update is not None
        scalars = {word.removeprefix(SCALAR): x for word, x in tensors.items() if word.startswith(SCALAR)}
        if {word: x.dtype for word, x in scalars.items()} != self._expected(sent, now) or any(
            x.ndim for x in scalars.values()
        ):
            raise Refused("malformed", "not the numbers that this method reports")
        longest = self.terms.norm_bound or float("inf")
        if float(vector.double().norm()) > longest or float(vector.abs().max()) > LARGEST:
            raise Refused("too long", f"longer than {longest}, or a number of it larger than {LARGEST:.0f}")
        return Uplink(vector, None, scalars, update)

    def _expected(self, sent: Downlink, now: Round) -> dict[str, torch.dtype]:
        """Which numbers a reply has: found out by taking part once, here, with the server's own samples."""
        if self._scalars is None:
            uplink = train_client(self.rule, self.model, sent, self.rule.init(sent.w), self.population.work(0, 0))
            self._scalars = {word: x.dtype for word, x in uplink.scalars.items()}
        return self._scalars

    def _count(self, reason: str) -> str:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        return reason

    def _look(self) -> None:
        self.here = {k: seat for k, seat in self.link.present().items() if 0 <= k < len(self.tally.counted)}
        self.watch(self)
