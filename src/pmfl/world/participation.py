"""Participation: how often each client is there, and in which rounds.

A pattern gives one round's row [K] at a time, since the whole matrix [T, K] of a million clients would not fit.
Rows are drawn from keys named by the round; what a pattern must remember between rounds is a small state that is
saved with the rest of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Gt, Le
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.params import Share, Size
from pmfl.errors import SpecError
from pmfl.world.partition import FloatArray, log_dirichlet

State: TypeAlias = Any  # a tuple of tensors and numbers, of one structure throughout a run
Chance: TypeAlias = Annotated[float, Gt(0), Le(1)]
HOURS = 24
TINY = 1e-300  # a rate below it is none: its inverse would leave the range of float64


@dataclass(frozen=True)
class Pattern:
    """Who is there in each round. Ask for rows in the order of rounds, and hand the state on."""

    start: Callable[[], State]
    row: Callable[[State, int], tuple[Tensor, State]]  # state, t -> bool [K], state
    rates: FloatArray  # [K] the share of rounds in which a client is there, in the long run
    notes: tuple[str, ...] = ()  # what was done to the user's data, in sentences
    rounds: int | None = None  # how many rounds there are; None for any number

    def check(self, rounds: int) -> None:
        """Raise ``SpecError`` unless the pattern lasts for ``rounds`` rounds."""
        if self.rounds is not None and rounds > self.rounds:
            raise SpecError(
                f"participation: {rounds} rounds are asked for, and the recording ends after {self.rounds}",
                hint=f'set training.rounds to at most {self.rounds}, or participation.after = "repeat"',
            )


def activity(classes: int, key: Key, *, beta: float) -> FloatArray:
    """How active each class is, [classes], sums to 1: a Dirichlet vector, the paper's Z."""
    z: FloatArray = np.exp(log_dirichlet(beta, (1, classes), key.fold("activity"))[0])
    return z


def rates(mix: FloatArray, key: Key, *, mean: float, beta: float, floor: float, normalise: bool = False) -> FloatArray:
    """Participation rates [K] that follow the clients' data: p = mean * classes * <Z, mix>, from floor to 1.

    mean: what p is on average over draws of Z, before the floor
    beta: concentration of Z; a small one makes clients differ more
    floor: no rate is below it
    normalise: scale so that these K rates, after floor and cap, have exactly this mean
    """
    z = activity(mix.shape[1], key, beta=beta)
    return rates_of(mix, z, mean=mean, floor=floor, normalise=normalise)


def rates_of(mix: FloatArray, z: FloatArray, *, mean: float, floor: float, normalise: bool = False) -> FloatArray:
    """Participation rates of given label shares [K, classes] and a given activity of the classes.

    >>> rates_of(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0.2, 0.8]), mean=0.1, floor=0.02).round(3).tolist()
    [0.04, 0.1]
    """
    if floor > mean:
        raise SpecError(
            f"participation: floor = {floor} is above mean = {mean}, which no rates can have",
            hint="lower participation.floor or raise participation.mean",
        )
    raw = mean * mix.shape[1] * (mix @ z)
    scale = _scale(raw, mean, floor) if normalise else 1.0
    clipped: FloatArray = np.clip(scale * raw, floor, 1.0)
    return clipped


def _scale(raw: FloatArray, mean: float, floor: float) -> float:
    """The factor that gives the clipped rates the wanted mean: found by halving, since the mean grows with it."""

    def short(log_scale: float) -> bool:
        return float(np.clip(np.exp(log_scale) * raw, floor, 1.0).mean()) < mean

    low, high = -50.0, 650.0
    if short(high):
        active = int((raw > 0).sum())
        raise SpecError(
            f"participation: a mean of {mean} cannot be reached, since only {active} of {len(raw)} clients hold a "
            "label whose activity is not zero",
            hint="raise participation.beta, lower participation.mean, or leave out participation.normalise",
        )
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return float(np.exp(high))


def always(rates: FloatArray, key: Key) -> Pattern:
    """Every client is there in every round."""
    everyone = torch.ones(len(_checked(rates)), dtype=torch.bool)
    return Pattern(_no_state, lambda state, t: (everyone, state), np.ones(len(rates)))


def bernoulli(rates: FloatArray, key: Key) -> Pattern:
    """Every client is there with its own probability, independently in every round."""
    chance = _checked(rates).astype(np.float32)

    def row(state: State, t: int) -> tuple[Tensor, State]:
        return torch.from_numpy(_uniform(key.fold("round", t), len(chance)) < chance), state

    return Pattern(_no_state, row, rates)


class Chain(NamedTuple):
    """Where every client's Markov chain stands."""

    here: Tensor  # [K] bool


def markov(
    rates: FloatArray, key: Key, *, wake: Chance = 0.05, rule: Literal["stationary", "printed"] = "stationary"
) -> Pattern:
    """Clients come and go in spells: each is a chain of two states, there and away.

    wake: probability that a client which is away comes back in the next round
    rule: "stationary" keeps each client's rate; "printed" is the paper's formula, which gives 1 / (2 - rate) instead

    Under "stationary" a client leaves with probability wake * (1 / rate - 1); where that is above 1, both
    probabilities are scaled down together. Chains start with Bernoulli(rate) and move once before round 0.
    """
    p = _checked(rates)
    if rule == "printed":
        leave, come = (1 - p) * wake, np.full(len(p), wake)
    else:
        odds = np.divide(1 - p, p, out=np.full(len(p), np.inf), where=p > TINY)  # of being away
        leave, come = np.minimum(wake * odds, 1.0), np.minimum(1 / np.maximum(odds, TINY), wake)
    stay, come = (1 - leave).astype(np.float32), come.astype(np.float32)

    def start() -> Chain:
        return Chain(torch.from_numpy(_uniform(key.fold("start"), len(p)) < p.astype(np.float32)))

    def row(state: Chain, t: int) -> tuple[Tensor, Chain]:
        before, draw = state.here.numpy(), _uniform(key.fold("round", t), len(p))
        here = torch.from_numpy((before & (draw < stay)) | (~before & (draw < come)))
        return here, Chain(here)

    return Pattern(start, row, p if rule == "stationary" else 1 / (2 - p))


def cyclic(
    rates: FloatArray, key: Key, *, cycle: Size = 100, offset: Literal["uniform", "fedau"] = "uniform"
) -> Pattern:
    """Every client is there for one block of rounds in each cycle.

    cycle: how many rounds a cycle has
    offset: where a block begins: "uniform" anywhere in the cycle; "fedau" after a uniform part of the client's absence

    The block has max(1, round(cycle * rate)) rounds, none at rate 0. Under "fedau" nearly everybody is away in the
    first rounds, and a client of rate 1 is away once after every cycle, as in its reference implementation.
    """
    p, rng = _checked(rates), key.fold("offset").numpy()
    active = np.where(p > 0, np.maximum(1, np.rint(cycle * p)), 0).astype(np.int64)
    if offset == "uniform":
        length, first = np.full(len(p), cycle), rng.integers(0, cycle, len(p))
    else:
        inactive = np.maximum(1, cycle - active)
        length, first = active + inactive, rng.integers(0, inactive)
    lengths, which = np.unique(length, return_inverse=True)  # one, or under "fedau" two
    start, end, spill = (x.astype(np.int32) for x in (first, first + active, first + active - length))

    def row(state: State, t: int) -> tuple[Tensor, State]:
        phase = (t % lengths).astype(np.int32)
        phase = phase[which] if len(lengths) > 1 else phase
        # A block that begins late in the cycle ends early in the next.
        return torch.from_numpy(((phase >= start) & (phase < end)) | (phase < spill)), state

    return Pattern(_no_state, row, active / length)


def groups(rates: FloatArray, key: Key, *, groups: Size = 5, rounds_each: Size = 1, share: Share = 1.0) -> Pattern:
    """Clients form groups that take turns in a fixed cycle, whatever their rates.

    groups: how many groups, of nearly equal size
    rounds_each: how many rounds a turn lasts
    share: probability that a client of the group whose turn it is is there
    """
    clients = len(_checked(rates))
    if groups > clients:
        raise SpecError(
            f"participation: {clients} clients cannot form {groups} groups", hint=f"set groups to at most {clients}"
        )
    group = key.fold("groups").numpy().permutation(clients) % groups
    chance = np.float32(share)

    def row(state: State, t: int) -> tuple[Tensor, State]:
        here = group == t // rounds_each % groups
        if share < 1:
            here &= _uniform(key.fold("round", t), clients) < chance
        return torch.from_numpy(here), state

    return Pattern(_no_state, row, np.full(clients, share / groups))


PATTERNS: dict[str, Callable[..., Pattern] | str] = {
    "always": always,
    "bernoulli": bernoulli,
    "markov": markov,
    "cyclic": cyclic,
    "groups": groups,
    "trace": "pmfl.world.trace:trace",
    "live": "pmfl.world.live:live",
}


def matrix(pattern: Pattern, rounds: int) -> Tensor:
    """The first rows of a pattern as one matrix [T, K], for pictures and small runs."""
    pattern.check(rounds)
    rows, state = [], pattern.start()
    for t in range(rounds):
        here, state = pattern.row(state, t)
        rows.append(here)
    return torch.stack(rows)


class Summary(NamedTuple):
    """How available clients were over some rounds."""

    mean: float
    quartiles: tuple[float, float, float]  # over clients
    by_hour: FloatArray  # [24] mean availability by hour of the day; NaN for an hour without a round
    by_round: FloatArray  # [T] the share of clients that were there
    by_client: FloatArray  # [K] the share of rounds in which each was there


def summary(pattern: Pattern, rounds: int, *, round_seconds: float = 60.0) -> Summary:
    """Availability over the first rounds, by client, by round and by hour of the day; round 0 is at midnight."""
    pattern.check(rounds)
    state, times, by_round = pattern.start(), np.zeros(len(pattern.rates), np.int64), np.zeros(rounds)
    for t in range(rounds):
        here, state = pattern.row(state, t)
        times += here.numpy()
        by_round[t] = here.numpy().mean()
    by_client = times / rounds
    hour = (np.arange(rounds) * round_seconds // 3600).astype(np.int64) % HOURS
    counts = np.bincount(hour, minlength=HOURS)
    sums = np.bincount(hour, by_round, minlength=HOURS)
    by_hour = np.divide(sums, counts, out=np.full(HOURS, np.nan), where=counts > 0)
    low, middle, high = np.quantile(by_client, (0.25, 0.5, 0.75)).tolist()
    return Summary(float(by_round.mean()), (low, middle, high), by_hour, by_round, by_client)


def _no_state() -> tuple[()]:
    return ()


def _uniform(key: Key, clients: int) -> npt.NDArray[np.float32]:
    """One draw per client from [0, 1): client k's does not depend on how many clients there are."""
    return key.numpy().random(clients, dtype=np.float32)


def _checked(rates: FloatArray) -> FloatArray:
    wrong = ~((rates >= 0) & (rates <= 1))  # true for NaN
    if rates.ndim != 1 or len(rates) == 0 or wrong.any():
        what = (
            f"{rates[wrong][0]} for client {int(np.flatnonzero(wrong)[0])}" if wrong.any() else f"shape {rates.shape}"
        )
        raise SpecError(f"participation: rates must be probabilities, one per client, and not {what}")
    return rates
