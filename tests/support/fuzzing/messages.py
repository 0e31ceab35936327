"""Mutations of ONNX models that a parser still takes: fields of messages dropped, repeated, swapped, changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

NUMBERS = [0, 1, 2, 3, 7, 255, -1, -2, 2**15, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
TEXTS = ["", "x", "y", "w", "h", "../x", "/etc/passwd", "0", "-1", "99999999999999999999", " 4", "1e3", "é", "\0", "."]


Mutate = Callable[[bytes, int], bytes]
"""libFuzzer's own mutation of bytes, to at most so many."""


def mutate_model(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """``data`` with some fields of its messages changed; now and then, or where it is no model, with other bytes."""
    rng = random.Random(seed)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
            damage_message(model, rng)
        changed = bytes(model.SerializeToString())
    except (DecodeError, ValueError, TypeError):  # text that is not UTF-8 is given out as bytes, and not serialised
        return mutate(data, most)
    return changed if data != changed and len(changed) <= most else mutate(data, most)


def damage_message(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change one field of one message of the model, chosen evenly over kinds of fields: rare ones get a turn."""
    places: dict[str, list[tuple[Any, Any]]] = {}
    texts: list[str] = list(TEXTS)
    collect(model, places, texts)
    if not places:  # nothing is left to damage
        return
    message, field = rng.choice(places[rng.choice(sorted(places))])
    if field.is_repeated:
        damage_list(message, field, rng, texts)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.type != field.TYPE_MESSAGE:
        set_scalar(message, field, rng, texts)


def collect(message: Any, places: dict[str, list[tuple[Any, Any]]], texts: list[str]) -> None:
    for field, value in message.ListFields():
        places.setdefault(field.full_name, []).append((message, field))
        values = value if field.is_repeated else [value]
        if field.type == field.TYPE_MESSAGE:
            for child in values:
                collect(child, places, texts)
        elif field.type == field.TYPE_STRING:
            texts.extend(values)


def damage_list(message: Any, field: Any, rng: random.Random, texts: list[str]) -> None:
    values = getattr(message, field.name)
    i, j = rng.randrange(len(values)), rng.randrange(len(values))
    kind = rng.choice(["remove", "repeat", "swap", "change"])
    if kind == "remove":
        del values[i]
    elif field.type == field.TYPE_MESSAGE:
        first, second = type(values[i]).FromString(values[i].SerializeToString()), values[j].SerializeToString()
        if kind == "swap":
            values[i].ParseFromString(second)
            values[j].CopyFrom(first)
        else:
            values.append(first)
    elif kind == "swap":
        values[i], values[j] = values[j], values[i]
    else:
        value = values[i] if kind == "repeat" else scalar(field, values[i], rng, texts)
        values.append(value)
        if kind == "change":
            values[i] = values.pop()


def set_scalar(message: Any, field: Any, rng: random.Random, texts: list[str]) -> None:
    setattr(message, field.name, scalar(field, getattr(message, field.name), rng, texts))


def scalar(field: Any, old: Any, rng: random.Random, texts: list[str]) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice([rng.choice(texts), old + "x", old * 2, old[:-1]])
    if field.type == field.TYPE_BYTES:
        return rng.choice([b"", old[:-1], old + b"\0", old * 2, b"\xff\xfe"])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    low, high = (-(2**31), 2**31) if field.type == field.TYPE_INT32 else (-(2**63), 2**63)
    numbers = [n for n in (*NUMBERS, old + 1, old - 1, old * 2) if low <= n < high]
    return rng.choice(numbers if field.type != field.TYPE_UINT64 else [abs(n) for n in numbers])
