"""Where worker processes come from: a process that has imported everything and computed nothing.

A process that has computed has threads. What is forked from it has their locks without them, and may wait for ever or
crash at its first matrix product; a fresh interpreter for each worker would import torch each time. So one process is
started that only imports, and workers are forked from that. They inherit nothing of whoever asks: folder, import path
and environment are told to them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = hasattr(os, "fork")  # elsewhere each worker is a fresh interpreter
context: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")


def start(work: Callable[..., None], arguments: tuple[Any, ...]) -> BaseProcess:
    """A process that calls ``work``, and hears no signal to stop before it says ``listen()``."""
    with _main_unseen():
        if FORKS:
            context.set_forkserver_preload(["pmfl.study.nursery", "pmfl.study.jobs"])
            resource_tracker.ensure_running()  # by itself it would be started below, and unblock
            with _blocked():  # so are those that are forked from it
                forkserver.ensure_running()
        worker: BaseProcess = context.Process(target=_begin, args=(work, arguments, dict(os.environ)), daemon=True)
        worker.start()
    return worker


def listen() -> None:
    """What this process was sent since it was started reaches its handlers now."""
    if FORKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


def _begin(work: Callable[..., None], arguments: tuple[Any, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    work(*arguments)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _main_unseen() -> Iterator[None]:
    """A worker is not to run the caller's script again, which multiprocessing would have it do: it needs none of it."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


_waiting: list[int] = []  # signals that came while a worker was being started


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Signals wait while workers are started: one that is half started would be nobody's to stop.

    A mask would not do: threads of libraries would take the signal, and the handler runs here all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    _waiting.clear()
    names = ("SIGINT", "SIGTERM", "SIGALRM")  # an alarm may be the second try of a signal that met an import
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, lambda heard, frame: _waiting.append(heard)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python
        if _waiting:
            signal.raise_signal(_waiting.pop())
