"""The pickle inside of a file that ``torch.save`` wrote, read without torch and without running anything of it.

A pickle is a program that may call any function. Here its instructions are read one by one
(:func:`pickletools.genops` parses and runs nothing), and the only calls that mean something are the few by which torch
describes a tensor. Every other call, class or object becomes an :class:`Other`, which stands where its result would.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

_MAX_INSTRUCTIONS = 1 << 22
"""A Stable Diffusion checkpoint with its training state has some 100,000."""
_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
_MARK = object()


class Global(NamedTuple):
    """A function or class by its name, which is never looked up."""

    name: str


class Other(NamedTuple):
    """The result of a call that nobody made; ``of`` is what the file wanted to call."""

    of: str


class Storage(NamedTuple):
    """Values of one type, which lie in the file under a key."""

    dtype: np.dtype[Any]
    key: str
    elements: int
    first: int = 0
    """The element at which a view of another storage begins."""


@dataclass(frozen=True, eq=False)
class TorchTensor:
    """A tensor; ``offset`` and ``strides`` count elements of its storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_pickle(file: BinaryIO, storages: dict[str, Storage] | None = None) -> Any:
    """The object that a pickle describes, up to its end; the file stands behind it then.

    Args:
        storages: takes every storage that it names, by its key.

    Raises:
        ValueError: it is no pickle, or has instructions that no file of torch's has.
        IndexError, KeyError, TypeError: it is damaged.
    """
    reader = _Reader({} if storages is None else storages)
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if number >= _MAX_INSTRUCTIONS:
            raise ValueError("its pickle has too many instructions")
        if opcode.name == "STOP":
            return reader.stack.pop()
        reader.step(opcode.name, argument)
    raise ValueError("its pickle has no end")


class _Reader:
    """The machine of the pickle format, without calls."""

    def __init__(self, storages: dict[str, Storage]) -> None:
        self.storages = storages
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[argument])
        elif name not in ("PROTO", "FRAME"):
            action = _ACTIONS.get(name)
            if action is None:
                raise ValueError(f"its pickle has the instruction {name}")
            action(self, argument)

    def until_mark(self) -> list[Any]:
        """Objects that were pushed since the last mark, which goes too."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("its pickle is damaged")
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def pop(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise ValueError("its pickle is damaged")
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        return values

    def make_table(self) -> None:
        pairs = self.until_mark()
        self.stack.append({})
        self.put(pairs)

    def replace_marked(self, of: str) -> None:
        """An object in the place of all since the last mark, of which it would be made."""
        self.until_mark()
        self.stack.append(Other(of))

    def put(self, pairs: list[Any]) -> None:
        """Keys and values, alternating, for the table on top of the stack; keys of other kinds are left out."""
        table = self.stack[-1]
        if isinstance(table, dict):  # a deep tuple as key would be hashed by recursion
            table.update(
                (key, value) for key, value in zip(pairs[::2], pairs[1::2], strict=True) if isinstance(key, str | int)
            )

    def append(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def persistent(self, identity: Any) -> None:
        """Torch's name for values that do not lie in the pickle."""
        found = _stored(identity)
        if isinstance(found, Storage):
            self.storages[found.key] = found
        self.stack.append(found)

    def make(self, of: Any, arguments: Any) -> None:
        self.stack.append(_made(of, arguments))


def _made(of: Any, arguments: Any) -> Any:
    """The result of one of torch's calls by which it describes tensors; an :class:`Other` for all else."""
    name = of.name if isinstance(of, Global) else "?"
    if not isinstance(arguments, tuple):
        return Other(name)
    match name, arguments:
        case "collections OrderedDict", ():
            return {}
        case "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor", (storage, offset, shape, strides, *_):
            return _tensor(storage, offset, shape, strides)
        case "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state", (tensor, *_):
            return tensor
        case "torch._tensor _rebuild_from_type_v2", (Global() as inner, _, tuple() as given, *_) if inner != of:
            return _made(inner, given)
    return Other(name)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Any:
    numbers = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (None,)
    if (
        not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers)
        or not len(shape) == len(strides) < 9
    ):
        raise ValueError("the shape of a tensor is none")
    return TorchTensor(storage, offset, shape, strides) if isinstance(storage, Storage) else Other("a tensor")


def _stored(identity: Any) -> Any:
    """Torch's persistent ids: ``("storage", class, key, device, elements[, (key, first element, elements)])``."""
    match identity:
        case ("storage", Global(name), str(key), str(), int(count), *view):
            dtype = _DTYPES.get(name.rpartition(" ")[2])
            match view:
                case [(str(), int(first), int(part))]:
                    return Other(name) if dtype is None else Storage(dtype, key, part, first)
                case [] | [None]:
                    return Other(name) if dtype is None else Storage(dtype, key, count)
    return Other("?")


_PUSHED = frozenset(
    """
    BININT BININT1 BININT2 INT LONG LONG1 LONG4 BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE BINSTRING
    SHORT_BINSTRING STRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    """.split()  # noqa: SIM905
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "MARK": lambda: _MARK,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: Other("set"),
}
_ACTIONS: dict[str, Callable[[_Reader, Any], Any]] = {
    "TUPLE": lambda reader, _: reader.stack.append(tuple(reader.until_mark())),
    "TUPLE1": lambda reader, _: reader.stack.append(reader.pop(1)),
    "TUPLE2": lambda reader, _: reader.stack.append(reader.pop(2)),
    "TUPLE3": lambda reader, _: reader.stack.append(reader.pop(3)),
    "LIST": lambda reader, _: reader.stack.append(reader.until_mark()),
    "DICT": lambda reader, _: reader.make_table(),
    "FROZENSET": lambda reader, _: reader.replace_marked("frozenset"),
    "SETITEM": lambda reader, _: reader.put(list(reader.pop(2))),
    "SETITEMS": lambda reader, _: reader.put(reader.until_mark()),
    "APPEND": lambda reader, _: reader.append(list(reader.pop(1))),
    "APPENDS": lambda reader, _: reader.append(reader.until_mark()),
    "ADDITEMS": lambda reader, _: reader.until_mark(),
    "GLOBAL": lambda reader, argument: reader.stack.append(Global(str(argument))),
    "STACK_GLOBAL": lambda reader, _: reader.stack.append(Global("{} {}".format(*map(_word, reader.pop(2))))),
    "REDUCE": lambda reader, _: reader.make(*reader.pop(2)),
    "NEWOBJ": lambda reader, _: reader.make(*reader.pop(2)),
    "NEWOBJ_EX": lambda reader, _: reader.make(*reader.pop(3)[:2]),
    "INST": lambda reader, argument: reader.replace_marked(str(argument)),
    "OBJ": lambda reader, _: reader.replace_marked("?"),
    "BUILD": lambda reader, _: reader.pop(1),
    "BINPERSID": lambda reader, _: reader.persistent(*reader.pop(1)),
    "POP": lambda reader, _: reader.pop(1),
    "POP_MARK": lambda reader, _: reader.until_mark(),
    "DUP": lambda reader, _: reader.stack.append(reader.stack[-1]),
}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else "?"
