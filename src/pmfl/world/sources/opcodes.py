"""Reads the few pickles that hold numpy byte arrays, lists, dicts and text, without running anything they name.

The official CIFAR archives are pickles. Unpickling runs whatever a file asks for; this reads the opcodes one by one and
knows only how to build plain containers and arrays of bytes. Any other name in the file is refused.
"""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmfl.world.datasets import Array
from pmfl.world.sources.raw import refuse

_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
_KNOWN = {
    **{(module, "_reconstruct"): "array" for module in _CORES},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("numpy.core.numeric", "_frombuffer"): "frombuffer",
    ("numpy._core.numeric", "_frombuffer"): "frombuffer",
}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8", "FLOAT", "BINFLOAT",
}  # fmt: skip
_IGNORED = {"PROTO", "FRAME", "STOP"}
_MARK = object()
AGAIN = "get the file again from where it came"


@dataclass(frozen=True)
class _Name:
    """One of the few callables a file may mention; never the callable itself."""

    what: str


class _Blank:
    """An array that was begun; its content comes with BUILD."""

    array: Array | None = None


def load(data: bytes, place: str) -> dict[Any, Any]:
    """The dict a pickle describes, of lists, tuples, text, numbers and uint8 arrays; anything else is refused."""
    machine = _Machine(place)
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        return machine.result()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise refuse(place, f"is not a readable pickle: {error}", AGAIN) from None


class _Machine:
    """A stack, marks and a memo: what the pickle format is defined by."""

    def __init__(self, place: str) -> None:
        self.place, self.stack, self.memo = place, list[Any](), dict[int, Any]()

    def result(self) -> dict[Any, Any]:
        (value,) = self.stack
        return {key: item.array if isinstance(item, _Blank) else item for key, item in value.items()}

    def step(self, name: str, argument: Any) -> None:
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name not in _IGNORED:
            action = getattr(self, "do_" + name.lower(), None)
            if action is None:
                raise refuse(self.place, f"uses the pickle operation {name}, which plain data does not need", AGAIN)
            action(argument)

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1 - next(i for i, v in enumerate(reversed(self.stack)) if v is _MARK)
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _push_last(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(items)

    def do_mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def do_pop(self, _: Any) -> None:
        self.stack.pop()

    def do_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def do_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def do_empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def do_tuple1(self, _: Any) -> None:
        self._push_last(1)

    def do_tuple2(self, _: Any) -> None:
        self._push_last(2)

    def do_tuple3(self, _: Any) -> None:
        self._push_last(3)

    def do_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self._since_mark()))

    def do_list(self, _: Any) -> None:
        self.stack.append(self._since_mark())

    def do_dict(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def do_append(self, _: Any) -> None:
        value = self.stack.pop()
        self.stack[-1].append(value)

    def do_appends(self, _: Any) -> None:
        items = self._since_mark()
        self.stack[-1].extend(items)

    def do_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][key] = value

    def do_setitems(self, _: Any) -> None:
        items = self._since_mark()
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def do_put(self, argument: int) -> None:
        self.memo[argument] = self.stack[-1]

    do_binput = do_long_binput = do_put

    def do_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def do_get(self, argument: int) -> None:
        self.stack.append(self.memo[argument])

    do_binget = do_long_binget = do_get

    def do_global(self, argument: str) -> None:
        module, name = argument.split(" ", 1)
        if (module, name) not in _KNOWN:
            raise refuse(self.place, f"asks Python to run {module}.{name}: refused", "this is no official archive")
        self.stack.append(_Name(_KNOWN[module, name]))

    def do_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.do_global(f"{module} {name}")

    def do_reduce(self, _: Any) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        what = called.what if isinstance(called, _Name) else None
        if what == "array":
            self.stack.append(_Blank())
        elif what == "dtype" and arguments[0] in ("u1", b"u1"):
            self.stack.append("u1")
        elif what == "encode" and arguments[1] in ("latin1", "latin-1"):
            self.stack.append(arguments[0].encode("latin-1"))
        elif what == "frombuffer" and arguments[1] == "u1" and arguments[3] == "C":
            self.stack.append(np.frombuffer(arguments[0], np.uint8).reshape(arguments[2]))
        else:
            raise refuse(self.place, "holds an object that is not a byte array", "only uint8 arrays are read")

    def do_build(self, _: Any) -> None:
        state, blank = self.stack.pop(), self.stack[-1]
        if isinstance(blank, _Blank):
            _, shape, dtype, by_column, content = state
            if dtype != "u1" or by_column is not False:
                raise refuse(self.place, f"holds an array of {dtype}", "only row-major uint8 arrays are read")
            content = content.encode("latin-1") if isinstance(content, str) else content
            blank.array = np.frombuffer(content, np.uint8).reshape(shape)
        elif blank != "u1":  # a dtype's state says byte order, which bytes do not have
            raise refuse(self.place, "sets the state of an object that is not an array", AGAIN)
