"""Mutations of JSON documents and tar archives that a parser still takes."""

from __future__ import annotations

import copy
import io
import json
import random
import tarfile
from typing import Any

from support.fuzzing.messages import Mutate

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**53 + 1, 2**63, 10**30, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "x", "../x", "/etc/passwd", "1e3", "é\0", "\x1b]0;x\x07", "\ud800", "\n", "every",
    [], {}, [[]], [0], [None], [1, 2, 3, 4], ["x", "y"], {"x": 1}, {"": None},
]  # fmt: skip


def mutate_json(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """``data``, whose first byte chooses a reader and the rest is JSON, with some values or keys changed."""
    rng = random.Random(seed)
    if rng.random() < 0.15:
        return mutate(data, most)
    try:
        document = json.loads(data[1:])
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            document = _changed(document, rng)
        changed = data[:1] + json.dumps(document, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return mutate(data, most)
    if rng.random() < 0.05:
        changed = changed.replace(b"1", b"1" * rng.choice([20, 400, 5000]), 1)
    if rng.random() < 0.03:
        depth = rng.choice([50, 900])
        changed = changed.replace(b"[", b"[" * depth, 1).replace(b"]", b"]" * depth, 1)
    return changed if len(changed) <= most else mutate(data, most)


def _changed(document: Any, rng: random.Random) -> Any:
    places = list(_places(document))
    if not places:
        return copy.deepcopy(rng.choice(VALUES))
    holder, key = rng.choice(places)
    values = [holder[key] for holder, key in places]
    match rng.choice(["value", "value", "value", "other", "drop", "repeat", "wrap", "number", "key"]):
        case "value":
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        case "other":
            holder[key] = copy.deepcopy(rng.choice(values))
        case "drop":
            del holder[key]
        case "repeat" if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        case "wrap":
            holder[key] = [holder[key]]
        case "number" if isinstance(holder[key], (int, float)) and abs(holder[key]) < 1e300:
            holder[key] = rng.choice([holder[key] + 1, holder[key] - 1, -holder[key], holder[key] * 2, holder[key] / 2])
        case "key" if isinstance(holder, dict):
            keys = [other for where, other in places if isinstance(where, dict)]
            holder[rng.choice([*keys, key + "x", "", "__metadata__"])] = holder.pop(key)
    return document


def _places(value: Any) -> Any:
    """Every (container, key) of a document, without recursion."""
    stack = [value]
    while stack:
        holder = stack.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ():
            yield holder, key
            stack.append(holder[key])


def mutate_tar(data: bytes, most: int, seed: int, mutate: Mutate) -> bytes:
    """An archive with some members dropped, repeated, renamed, of other types, sizes or content."""
    rng = random.Random(seed)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            members = [(m, tar.extractfile(m).read() if m.isreg() else b"") for m in tar]  # type: ignore[union-attr]
    except Exception:  # whatever tarfile says of a broken archive
        return mutate(data, most)
    if not members or rng.random() < 0.25:
        return mutate(data, most)
    for _ in range(rng.choice([1, 1, 2])):
        _change_member(members, rng, mutate)
    out = io.BytesIO()
    try:
        for member, content in members:
            out.write(member.tobuf(rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])) + content)
            out.write(b"\0" * (-len(content) % 512))
    except (ValueError, TypeError):  # a name or number that no header holds
        return mutate(data, most)
    changed = out.getvalue() + bytes(1024)
    return changed if len(changed) <= most else mutate(data, most)


def _change_member(members: list[tuple[tarfile.TarInfo, bytes]], rng: random.Random, mutate: Mutate) -> None:
    index = rng.randrange(len(members))
    member, content = copy.copy(members[index][0]), members[index][1]
    match rng.choice(["name", "type", "size", "content", "json", "drop", "repeat", "swap", "pax"]):
        case "name":
            folder = member.name.partition("/")[0]
            member.name = rng.choice([
                "../" + member.name, "/" + member.name, member.name + "/x", folder, folder + "/", f"{folder}/../../x",
                f"{folder}/programs/a\0b", f"{folder}/programs/" + "d/" * rng.choice([5, 50]) + "x",
                f"{folder}/programs/\udcff", f"{folder}/programs/" + "n" * 300, rng.choice(members)[0].name,
            ])  # fmt: skip
        case "type":
            member.type = rng.choice([b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"x", b"g", b"L", b"K"])
            member.linkname = rng.choice(["", "/etc/passwd", "../../x", member.name])
        case "size":
            member.size = rng.choice([0, 1, 2**33, 2**62, max(0, member.size - 1), member.size + 1])
        case "content":
            content = mutate(content, len(content) + 64)
            member.size = len(content)
        case "json":
            content = mutate_json(b"\0" + content, 1 << 16, rng.randrange(1 << 30), mutate)[1:]
            member.size = len(content)
        case "drop" if len(members) > 1:
            del members[index]
            return
        case "repeat":
            members.insert(index, members[index])
            return
        case "swap":
            other = rng.randrange(len(members))
            members[index], members[other] = members[other], members[index]
            return
        case "pax":
            member.pax_headers = {rng.choice(["size", "path", "linkpath", "GNU.sparse.size", "GNU.sparse.map"]): "1e9"}
    members[index] = member, content
