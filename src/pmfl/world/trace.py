"""Recorded availability, replayed as a participation pattern: clients are there when real devices were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pmfl.core.keys import Key
from pmfl.core.params import Rate
from pmfl.errors import SpecError
from pmfl.world.datasets import Array, IntArray
from pmfl.world.participation import Pattern
from pmfl.world.partition import FloatArray
from pmfl.world.recordings import Recording, read

Offset: TypeAlias = Literal["common", "own", "random"]
After: TypeAlias = Literal["repeat", "stop"]

DAY = 86_400.0
JITTER = 1_800.0  # a further client of one device keeps the hour of the day, give or take half an hour
NEVER = 2**31 - 1  # a round that does not come


class Cursor(NamedTuple):
    """What a replay remembers so that a round looks only at clients whose availability may have changed."""

    t: int  # the last round asked for
    here: Tensor  # [K] bool, who was there
    again: Tensor  # [K] int32, the round in which to look at each client again


def trace(
    rates: FloatArray,
    key: Key,
    *,
    path: str,
    round_seconds: Rate = 60.0,
    offset: Offset = "common",
    after: After = "repeat",
) -> Pattern:
    """Clients are there when the devices of a recording were; their rates are the recording's own.

    path: a .parquet, .csv, .npy or .json file; pmfl.world.recordings says what it holds
    round_seconds: how long a round lasts; a matrix has one row per round and ignores it
    offset: round 0 is midnight of the "common" clock, the start of each device's "own" recording, or "random" in it
    after: at its end a device's recording is "repeat"-ed, or rounds "stop"

    A client is there in round t if an interval covers the instant at which the round starts, both ends included.
    A round of 60 s sees an interval of median length in FLASH (138 s) twice, and 10,000 of them are seven days, about
    as long as its recordings. Clients are dealt devices by key; with more clients than devices, several share one,
    each at another place of its recording (on the common clock: moved by whole days and up to half an hour).
    """
    recording = read(path)
    clients, devices = len(rates), len(recording.span)
    if after == "stop" and (offset == "random" or clients > devices):
        why = 'offset = "random"' if offset == "random" else f"{clients} clients on {devices} devices"
        raise SpecError(
            f'participation: after = "stop" does not go with {why}, which begins in the middle of recordings',
            hint='set participation.after = "repeat"',
        )
    device = np.resize(key.fold("devices").numpy().permutation(devices), clients)
    place, span = _places(recording, device, offset, key.fold("offset")), recording.span[device]
    step = round_seconds if recording.in_seconds else 1.0
    rounds = None
    if after == "stop":
        left = span - place
        rounds = int(np.ceil((left.max() if offset == "common" else left.min()) / step))
    else:
        place = np.mod(place, span)
    look = _watch(recording, device, place, step, repeats=after == "repeat")
    notes = recording.notes + _notes(recording, device, place, step, offset, rounds)
    return Pattern(_start(clients), _rows(look, rounds), recording.share[device], notes, rounds)


def _places(recording: Recording, device: IntArray, offset: Offset, key: Key) -> FloatArray:
    """Where in its device's recording every client is at the start of round 0, [K]; negative before it begins."""
    span, draws = recording.span[device], key.numpy().random((len(device), 2)).T
    anywhere: FloatArray = np.floor(draws[0] * span)
    if offset == "random":
        return anywhere
    shared = np.arange(len(device)) >= len(recording.span)  # from the second client of a device on
    if offset == "own" or not recording.in_seconds:
        return np.where(shared, anywhere, 0.0)
    midnight = np.floor(recording.begin.min() / DAY) * DAY
    days = np.floor(draws[0] * np.maximum(1.0, span // DAY))
    moved = days * DAY + np.rint((2 * draws[1] - 1) * JITTER)
    places: FloatArray = midnight - recording.begin[device] + np.where(shared, moved, 0.0)
    return places


Look: TypeAlias = Callable[[IntArray, int], tuple[Array, IntArray]]


def _watch(recording: Recording, device: IntArray, place: FloatArray, step: float, *, repeats: bool) -> Look:
    """A function of (clients, round): are they there, and in which round may that have changed?"""
    base, span = recording.base[device], recording.span[device]
    edges, next_edge = recording.edges, np.append(recording.edges, np.inf)

    def look(k: IntArray, t: int) -> tuple[Array, IntArray]:
        whole = span[k]
        x = place[k] + t * step
        if repeats:
            x = np.fmod(x, whole)
        at = base[k] + np.clip(x, 0, whole)
        found = np.searchsorted(edges, at, side="right")
        here = found % 2 == 1
        gap = np.minimum(next_edge[found], base[k] + whole) - at
        if not repeats:
            here &= (x >= 0) & (x < whole)
            gap = np.where(x < 0, -x, np.where(x < whole, gap, np.inf))
        # Looking once too often does no harm, so rounding down is safe.
        rounds = np.clip(gap / step, 1, NEVER - t)
        return here, t + rounds.astype(np.int64)

    return look


def _start(clients: int) -> Callable[[], Cursor]:
    return lambda: Cursor(0, torch.zeros(clients, dtype=torch.bool), torch.zeros(clients, dtype=torch.int32))


def _rows(look: Look, rounds: int | None) -> Callable[[Cursor, int], tuple[Tensor, Cursor]]:
    def row(state: Cursor, t: int) -> tuple[Tensor, Cursor]:
        if rounds is not None and t >= rounds:
            raise SpecError(
                f"participation: the recording ends after {rounds} rounds, and round {t} is asked for",
                hint='set participation.after = "repeat", or lower training.rounds',
            )
        # In numpy: torch would share this out over all cores, and wait for them while they train.
        here, again = state.here.numpy().copy(), state.again.numpy().copy()
        k = np.flatnonzero(again <= t) if t >= state.t else np.arange(len(again))
        here[k], again[k] = look(k, t)
        seen = torch.from_numpy(here)
        return seen, Cursor(t, seen, torch.from_numpy(again))

    return row


def _notes(
    recording: Recording, device: IntArray, place: FloatArray, step: float, offset: Offset, rounds: int | None
) -> tuple[str, ...]:
    clients, devices = len(device), len(recording.span)
    said = []
    if clients < devices:
        said.append(f"the {clients:,} clients are {clients:,} of the {devices:,} devices, drawn by key")
    elif clients > devices:
        said.append(f"{clients:,} clients share {devices:,} devices, each at another place of the recording")
    if recording.in_seconds and offset == "common":
        said.append("round 0 is midnight of the recordings' common clock")
    lengths = recording.span[device] / step
    if rounds is None:
        last = f" and {lengths.max():,.0f}" if lengths.max() > lengths.min() else ""
        said.append(f"recordings repeat after their end: after {lengths.min():,.0f}{last} rounds")
    else:
        partly = int(((place < 0) | (place + (rounds - 1) * step >= recording.span[device])).sum())
        said.append(f"the recording ends after {rounds:,} rounds")
        if partly:
            said.append(f"{partly:,} clients were recorded for only a part of them, and are away in the rest")
    return tuple(said)
