"""The battery: all checks, what each of them needs, and how they are run on one method."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from pmfl.core.method import Method
from pmfl.errors import MethodError, PmflError
from pmfl.testing import contract, learning, purity, running
from pmfl.testing.compare import listed
from pmfl.testing.report import Finding, Report
from pmfl.testing.spy import named, origin, spied
from pmfl.testing.tiny import Tiny


class Check(NamedTuple):
    """One property of a method, and the checks without which its verdict would say nothing."""

    run: Callable[[Method, Tiny], None]
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return self.run.__name__

    @property
    def promise(self) -> str:
        """What holds when the check passes, in one line."""
        return (self.run.__doc__ or "").partition("\n")[0]


ANSWERS = ("check_downlink", "check_uplink")
PLAYS = (*ANSWERS, "check_selection", "check_weights", "check_server_step", "check_shown_model")
ANY_CROWD = (*PLAYS, "check_state_trees", "check_participation")
PURE = (*ANY_CROWD, "check_no_global_randomness", "check_inputs_unchanged", "check_same_input_same_output")

CHECKS: tuple[Check, ...] = (
    Check(contract.check_is_a_method),
    Check(contract.check_downlink),
    Check(contract.check_uplink, ("check_downlink",)),
    Check(contract.check_selection, ANSWERS),
    Check(contract.check_weights, ANSWERS),
    Check(contract.check_server_step, ANSWERS),
    Check(contract.check_shown_model, (*ANSWERS, "check_server_step")),
    Check(contract.check_state_trees, PLAYS),
    Check(contract.check_participation, PLAYS),
    Check(purity.check_no_global_randomness, ANY_CROWD),
    Check(purity.check_inputs_unchanged, ANY_CROWD),
    Check(purity.check_same_input_same_output, (*ANY_CROWD, "check_no_global_randomness")),
    Check(running.check_lanes, PURE),
    Check(running.check_save_and_load, ANY_CROWD),
    Check(running.check_resume, (*PURE, "check_save_and_load")),
    Check(running.check_order_of_clients, PURE),
    Check(learning.check_loss_falls, PLAYS),
    Check(learning.check_learns, (*PLAYS, "check_loss_falls")),
)
FIRST = CHECKS[0]


def check_method(method: Method | Callable[[], Method]) -> Report:
    """Try a method in a tiny world and report, check by check, whether it keeps the contract.

    Give the function that makes the method rather than the method: it is then made anew where that matters,
    and what its rules remember outside of their state comes to light.

    >>> from pmfl.core.method import Method
    >>> check_method(lambda: Method(name="plain averaging")).passed
    True
    """
    tiny = Tiny(build=lambda: spied(_made(method), named))
    with purity.same_randomness_after(), one_thread():
        findings = {FIRST.name: _run(FIRST, lambda: FIRST.run(_made(method), tiny))}
        for check in CHECKS[1:]:
            lacking = [name for name in (FIRST.name, *check.needs) if findings[name].outcome != "passed"]
            findings[check.name] = _blocked(check, lacking) if lacking else _run(check, check.run, tiny.build(), tiny)
    return Report(_name_of(method), tuple(findings.values()))


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and may wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _made(method: Method | Callable[[], Method]) -> Method:
    if isinstance(method, Method) or not callable(method):
        return method
    try:
        return method()
    except PmflError:
        raise
    except Exception as error:
        raise MethodError(
            f"making the method raised {type(error).__name__}: {error}{origin(error)}",
            hint="the function is called without arguments: give every parameter a default, and return a Method",
        ) from error


def _run(check: Check, task: Callable[..., None], *given: Any) -> Finding:
    began = time.perf_counter()
    reason = hint = ""
    try:
        task(*given)
    except PmflError as error:
        reason, hint = error.message, error.hint
    except Exception as error:
        reason = f"{type(error).__name__}: {error}{origin(error)}"
        hint = "this came from outside of any rule: look at what the rules returned"
    seconds = time.perf_counter() - began
    return Finding(check.name, check.promise, "failed" if reason else "passed", reason, hint, seconds)


def _blocked(check: Check, lacking: list[str]) -> Finding:
    return Finding(check.name, check.promise, "not run", f"needs {listed(lacking)}")


def _name_of(method: Any) -> str:
    """What to call a method, or whatever was given instead of one."""
    made_by = getattr(method, "func", method)  # of a functools.partial
    name = getattr(method, "name", None) or getattr(made_by, "__name__", None)
    return str(name or type(method).__name__)
