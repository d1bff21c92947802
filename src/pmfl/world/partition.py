"""Partitions: which client holds which samples.

Every partition ends, deals every sample exactly once, and leaves no client empty; where that cannot be, it says so.
All of them work on one vector, the owner of each sample, so nothing loops over clients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pmfl.core.keys import Key
from pmfl.core.params import Rate, Size
from pmfl.errors import SpecError
from pmfl.world.datasets import IntArray

FloatArray: TypeAlias = npt.NDArray[np.float64]

SMALLEST_ALPHA = 1e-300  # below it, a logarithm divided by alpha would leave the range of float64


@dataclass(frozen=True)
class Partition:
    """Who owns what: K arrays of sample numbers, each ascending, and the label shares they result in."""

    owned: tuple[IntArray, ...]
    mix: FloatArray  # [K, classes], D_k in the paper; rows sum to 1

    @property
    def sizes(self) -> IntArray:
        """How many samples each client holds, [K]."""
        return np.fromiter(map(len, self.owned), np.int64, len(self.owned))


Partitioner: TypeAlias = Callable[..., Partition]


def slices(
    labels: IntArray, classes: int, clients: int, key: Key, users: IntArray | None = None, *, alpha: Rate = 0.1
) -> Partition:
    """Each class is cut into one slice per client, of Dirichlet widths; clients end up nearly equal in size.

    alpha: concentration of the label mix; small is heterogeneous, large is uniform

    This is FedAU's partition. Slices follow the order of the data set, and their ends are rounded: where a class has
    fewer samples than there are clients, the same few clients tend to get them. A client that gets no sample at all
    is given one from the largest client, the last in the order of the data set.
    """
    _check("slices", labels, classes, clients)
    log_mix = log_dirichlet(alpha, (clients, classes), key.fold("mix"))
    # A class counts by what clients want of it relative to each other, so the column's maximum may be taken out.
    owner = cut_classes(labels, np.exp(log_mix - log_mix.max(0)))
    return _dealt(_top_up(owner, clients, 1), labels, classes, clients)


def dirichlet(
    labels: IntArray,
    classes: int,
    clients: int,
    key: Key,
    users: IntArray | None = None,
    *,
    alpha: Rate = 0.5,
    smallest: Size = 10,
) -> Partition:
    """Each class is spread over the clients in Dirichlet proportions; clients differ in mix and in size.

    alpha: concentration of each class over the clients; small is heterogeneous, large is uniform
    smallest: how many samples every client holds at least

    This is the partition of NIID-Bench and MOON: a client that already holds its even share gets nothing of the
    classes that follow. Where they draw again until all clients are large enough, which may never happen, here
    single samples move from whoever holds most, the last in the order of the data set first.
    """
    _check("dirichlet", labels, classes, clients, smallest)
    rng, samples = key.fold("order").numpy(), len(labels)
    shuffled = rng.permutation(samples)
    shuffled = shuffled[_grouped(labels[shuffled], classes)]  # by class, in random order within each
    owner, sizes, first = np.empty(samples, np.int64), np.zeros(clients, np.int64), 0
    for label, count in enumerate(np.bincount(labels, minlength=classes).tolist()):
        if count == 0:
            continue
        log_share = log_dirichlet(alpha, (1, clients), key.fold("class", label))[0]
        # Somebody is below the even share, since what has been dealt so far is less than all there is.
        log_share[sizes * clients >= samples] = -np.inf
        ends = np.cumsum(np.exp(log_share - log_share.max()))
        cuts = np.floor(count * (ends / ends[-1])).astype(np.int64)
        given = np.diff(cuts, prepend=0)
        owner[shuffled[first : first + count]] = np.repeat(np.arange(clients), given)
        sizes, first = sizes + given, first + count
    return _dealt(_top_up(owner, clients, smallest), labels, classes, clients)


def shards(
    labels: IntArray,
    classes: int,
    clients: int,
    key: Key,
    users: IntArray | None = None,
    *,
    shards_per_client: Size = 2,
) -> Partition:
    """Samples are sorted by label and cut into equal shards; every client is dealt a few of them.

    shards_per_client: how many shards a client holds, which is about how many labels it sees
    """
    _check("shards", labels, classes, clients)
    samples, pieces = len(labels), clients * shards_per_client
    if pieces > samples:
        raise SpecError(
            f"shards: {samples} samples cannot be cut into {clients} x {shards_per_client} = {pieces} shards",
            hint=f"lower shards_per_client to at most {samples // clients}, or the number of clients",
        )
    dealt = key.fold("deal").numpy().permutation(pieces) // shards_per_client
    owner = np.empty(samples, np.int64)
    owner[_grouped(labels, classes)] = dealt[_even(samples, pieces)]
    return _dealt(owner, labels, classes, clients)


def iid(labels: IntArray, classes: int, clients: int, key: Key, users: IntArray | None = None) -> Partition:
    """Samples are shuffled and dealt in equal parts: every client's data look like everybody's."""
    _check("iid", labels, classes, clients)
    owner = np.empty(len(labels), np.int64)
    owner[key.fold("deal").numpy().permutation(len(labels))] = _even(len(labels), clients)
    return _dealt(owner, labels, classes, clients)


def user(labels: IntArray, classes: int, clients: int, key: Key, users: IntArray | None = None) -> Partition:
    """Samples stay with the person they came from: one client per user, or several users to a client.

    With as many clients as users, clients follow the order of the user numbers; with fewer, users are shuffled and
    dealt in groups whose numbers of users differ by one at most.
    """
    _check("user", labels, classes, clients)
    if users is None:
        raise SpecError(
            "user: this data set does not say which user each sample came from",
            hint='choose partition "slices", or build the data set with from_arrays(…, users=…)',
        )
    if len(users) != len(labels):
        raise SpecError(f"user: {len(users)} user numbers for {len(labels)} samples", hint="give one per sample")
    names, who = np.unique(users, return_inverse=True)
    if clients > len(names):
        raise SpecError(
            f"user: {clients} clients for the data of {len(names)} users",
            hint=f'set data.clients to at most {len(names)}, or choose partition "slices"',
        )
    group = np.arange(len(names))
    if clients < len(names):
        group[key.fold("deal").numpy().permutation(len(names))] = _even(len(names), clients)
    return _dealt(group[who], labels, classes, clients)


PARTITIONS: dict[str, Partitioner] = {
    "slices": slices,
    "dirichlet": dirichlet,
    "shards": shards,
    "iid": iid,
    "user": user,
}


def log_dirichlet(alpha: float, shape: tuple[int, int], key: Key) -> FloatArray:
    """Logarithms of Dirichlet rows with equal concentration ``alpha``; finite however small alpha is.

    A Gamma(alpha) variate with tiny alpha is 0 in float64 and a row of zeros has no shares. Its logarithm is
    log Gamma(alpha + 1) + log(U) / alpha, which is an ordinary number.

    >>> np.exp(log_dirichlet(0.001, (2, 3), Key.root(0))).sum(1).round(12).tolist()
    [1.0, 1.0]
    """
    rng = key.numpy()
    alpha = max(alpha, SMALLEST_ALPHA)
    tiny = np.finfo(np.float64).tiny
    if alpha >= 1:
        logs = np.log(np.maximum(rng.standard_gamma(alpha, shape), tiny))
    else:
        logs = np.log(np.maximum(rng.standard_gamma(alpha + 1, shape), tiny))
        logs -= rng.standard_exponential(shape) / alpha  # -log(U) is exponential
    logs -= logs.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    return logs


def cut_classes(labels: IntArray, weights: FloatArray) -> IntArray:
    """The owner of each sample when every class is cut into consecutive slices, as wide as weights [K, classes] say.

    The slice of client k ends at round(count * sum of the weights up to k / sum of all), halves to even.
    """
    clients, classes = weights.shape
    ends = np.cumsum(weights, axis=0)
    ends /= ends[-1].copy()
    ends *= np.bincount(labels, minlength=classes)
    cuts: IntArray = np.rint(ends, out=ends).astype(np.int64)
    given = np.diff(cuts, axis=0, prepend=0)
    owner = np.empty(len(labels), np.int64)
    owner[_grouped(labels, classes)] = np.repeat(np.tile(np.arange(clients), classes), given.T.ravel())
    return owner


def _check(name: str, labels: IntArray, classes: int, clients: int, smallest: int = 1) -> None:
    samples = len(labels)
    if clients < 1:
        raise SpecError(f"{name}: {clients} clients", hint="set data.clients to at least 1")
    if samples and not 0 <= labels.min() <= labels.max() < classes:
        raise SpecError(
            f"{name}: labels run from {labels.min()} to {labels.max()}, and there are {classes} classes",
            hint="labels count from 0",
        )
    if samples < clients * smallest:
        each = f" with at least {smallest} each" if smallest > 1 else ""
        lower = f"smallest to at most {samples // clients}, or " if samples >= clients and smallest > 1 else ""
        raise SpecError(
            f"{name}: {samples} samples are too few for {clients} clients{each}",
            hint=f"lower {lower}data.clients to at most {samples // smallest}",
        )


def _grouped(values: IntArray, below: int) -> IntArray:
    """The stable order that sorts small whole numbers: by radix where they fit into 16 bits."""
    return np.argsort(values.astype(np.min_scalar_type(max(below - 1, 0))), kind="stable")


def _even(samples: int, parts: int) -> IntArray:
    """0 … 0, 1 … 1, …, parts - 1: as many of each, up to one."""
    ends: IntArray = np.arange(parts + 1) * samples // parts
    return np.repeat(np.arange(parts), ends[1:] - ends[:-1])


def _top_up(owner: IntArray, clients: int, smallest: int) -> IntArray:
    """Give every client ``smallest`` samples, one at a time from whoever holds most (the first of equals).

    Taking from the largest again and again cuts all donors down to one level, which is found directly.
    """
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(smallest - sizes, 0)
    need = int(missing.sum())
    if need == 0:
        return owner
    levels = range(smallest, int(sizes.max()) + 1)
    too_high = bisect_left(levels, True, key=lambda level: int(np.maximum(sizes - level, 0).sum()) < need)
    give = np.maximum(sizes - levels[too_high], 0)
    rest = need - int(give.sum())
    give[np.flatnonzero(sizes - give == levels[too_high])[:rest]] += 1
    order = _grouped(owner, clients)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner = owner.copy()
    owner[order[rank >= np.repeat(sizes - give, sizes)]] = np.repeat(np.arange(clients), missing)
    return owner


def _dealt(owner: IntArray, labels: IntArray, classes: int, clients: int) -> Partition:
    sizes = np.bincount(owner, minlength=clients)
    owned = np.split(_grouped(owner, clients), np.cumsum(sizes)[:-1])
    counts = np.bincount(owner * classes + labels, minlength=clients * classes).reshape(clients, classes)
    return Partition(tuple(owned), counts / sizes[:, None])
