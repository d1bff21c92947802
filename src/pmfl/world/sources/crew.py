"""Decoding on all cores: workers are plain child processes that talk through pipes.

Threads make small images *slower* (the interpreter lock goes back and forth: measured 2.4 times), fork is unsafe once
torch or arrow have threads, and multiprocessing's spawn runs the caller's script again. A worker that dies is not
missed: its chunk is decoded here.
"""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np

from pmfl.errors import DataMissing
from pmfl.world.datasets import Array
from pmfl.world.sources.images import decode_chunk
from pmfl.world.sources.raw import Picture, Pictures

WORTH_A_CREW = 20_000  # images; below, starting workers takes longer than they save
MOST_WORKERS = 16
LENGTH = struct.Struct("<Q")


def decode_all(pictures: Pictures, size: int | None, workers: int | None = None) -> Iterator[Array]:
    """The images in order, as uint8 arrays [m, h, w, 1 or 3] of one height and width."""
    chunks = (chunk for chunk in pictures.chunks() if chunk)
    first = next(chunks, None)
    if first is None:
        return
    decoded = decode_chunk(first, size, None)
    yield decoded
    side = (decoded.shape[1], decoded.shape[2])
    if workers is None:
        workers = _cores() if pictures.count >= WORTH_A_CREW and sys.executable else 1
    if workers < 2:
        yield from (decode_chunk(chunk, size, side) for chunk in chunks)
        return
    with _Crew(workers) as crew:
        yield from crew.map(chunks, size, side)


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


class _Crew:
    """As many worker processes as asked for, each driven by a thread of this process."""

    def __init__(self, workers: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "pmfl.world.sources.crew"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the parent, which ends them
            )
            for _ in range(workers)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(workers)
        self._over = False

    def __enter__(self) -> _Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for process in self._processes:
            process.kill()  # they hold nothing; a thread that waits for one gets an end of file
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.communicate()

    def map(self, chunks: Iterator[list[Picture]], size: int | None, side: tuple[int, int]) -> Iterator[Array]:
        """Decoded chunks in order, with a few chunks per worker under way."""
        under_way: deque[Future[Array]] = deque()
        for chunk in chunks:
            under_way.append(self._threads.submit(self._decode, chunk, size, side))
            if len(under_way) > 2 * len(self._processes):
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()

    def _decode(self, chunk: list[Picture], size: int | None, side: tuple[int, int]) -> Array:
        process = self._idle.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            _write_request(process.stdin, chunk, size, side)
            return _read_reply(process.stdout)
        except (OSError, EOFError):
            if self._over:
                raise
            return decode_chunk(chunk, size, side)
        finally:
            self._idle.put(process)


def _write_request(pipe: IO[bytes], chunk: list[Picture], size: int | None, side: tuple[int, int]) -> None:
    items = [[p.place, str(p.data), -1] if isinstance(p.data, Path) else [p.place, "", len(p.data)] for p in chunk]
    _write(pipe, {"size": size, "side": side, "items": items})
    pipe.writelines(p.data for p in chunk if isinstance(p.data, bytes))
    pipe.flush()


def _read_reply(pipe: IO[bytes]) -> Array:
    reply = _read(pipe)
    if "error" in reply:
        raise DataMissing(**reply["error"])
    shape = tuple(reply["shape"])
    pixels = np.empty(shape, np.uint8)
    if pipe.readinto(pixels.data.cast("B")) != pixels.size:  # type: ignore[attr-defined]
        raise EOFError
    return pixels


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """A worker's whole life: decode chunk after chunk until the pipe is closed."""
    while True:
        try:
            request = _read(requests)
        except EOFError:
            return
        chunk = [
            Picture(place, Path(path) if length < 0 else requests.read(length))
            for place, path, length in request["items"]
        ]
        try:
            pixels = decode_chunk(chunk, request["size"], tuple(request["side"]))
        except DataMissing as error:
            _write(replies, {"error": {"message": error.message, "hint": error.hint, "code": error.code}})
        else:
            _write(replies, {"shape": pixels.shape})
            replies.write(np.ascontiguousarray(pixels).data.cast("B"))
        replies.flush()


def _write(pipe: IO[bytes], message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    pipe.write(LENGTH.pack(len(text)) + text)


def _read(pipe: IO[bytes]) -> dict[str, Any]:
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    message: dict[str, Any] = json.loads(pipe.read(LENGTH.unpack(head)[0]))
    return message


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
