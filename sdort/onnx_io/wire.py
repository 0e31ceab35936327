"""Parsing an ONNX file without its weights.

A protobuf parser reads a file whole, so a model with 1.7 GB of weights inside costs several times that, and one above
2 GiB cannot be parsed at all. :func:`read_graph` walks the file's outermost fields instead, leaves out the raw data of
large tensors, and writes down where it stands, in ONNX's own terms: as external data, of the model file itself.
The wire format: https://protobuf.dev/programming-guides/encoding/ ; the field numbers: onnx.proto.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import onnx
from google.protobuf.message import DecodeError

from sdort.errors import BadModelError
from sdort.files.input_file import open_input

OWN_FILE = "\0model"
"""The location of tensors that lie in the model file; no path, since a file may name itself anything."""

MAX_GRAPH_BYTES = 64 * 2**20
"""Upper bound in bytes of a model without its large tensors.

Real ones take 1 to 20 MB; a parsed message may be a hundred times its bytes.
"""

_FIELD_COST = 64
"""Bytes that a field counts beyond its own: bounds the time to walk a file made of empty fields."""

_LARGE = 1024
"""Messages and tensors up to this many bytes are left to the parser."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_TENSOR = "tensor"
_RAW_DATA = 9
# Message -> field number -> message inside it that leads to tensors.
_PATHS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: _TENSOR},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR},
    _TENSOR: {},
}

COPY_AGAIN = "Check that the file is an ONNX model and was copied or downloaded completely."


def read_graph(path: Path, component: str) -> onnx.ModelProto:
    """Parse ``path``; raw data above 1 KiB becomes external data at :data:`OWN_FILE`.

    Raises:
        BadModelError: the file cannot be read or is no ONNX model.
    """
    try:
        with open_input(path, component=component) as raw, io.BufferedReader(cast(io.RawIOBase, raw)) as file:
            size = os.fstat(file.fileno()).st_size
            content = _Walker(cast(BinaryIO, file)).message("model", size)
        proto: onnx.ModelProto = onnx.ModelProto.FromString(content)
    except OSError as error:
        raise BadModelError(f"cannot read {path}: {error.strerror or error}", component=component) from None
    except _TooLargeError:
        raise BadModelError(f"{path}: the graph itself, without weights, is too large", component=component) from None
    except DecodeError:
        raise BadModelError(f"{path} is not an ONNX model", component=component, hint=_hint(path)) from None
    if not proto.HasField("graph"):
        raise BadModelError(f"{path} is not an ONNX model: it has no graph", component=component, hint=COPY_AGAIN)
    _check_text(proto, path, component)
    return proto


def parse_graph(content: bytes, name: str, component: str) -> onnx.ModelProto:
    """Parse a serialized model within the bounds of :func:`read_graph`.

    Args:
        name: what it is, for messages.

    Raises:
        BadModelError: it is no ONNX model.
    """
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(_Walker(io.BytesIO(content)).message("model", len(content)))
    except (_TooLargeError, DecodeError):
        raise BadModelError(f"{name} holds no ONNX model, or one that is too large", component=component) from None
    _check_text(proto, name, component)
    return proto


def _hint(path: Path) -> str:
    with open_input(path) as file:
        pointer = file.read(40).startswith(b"version https://git-lfs")
    return "It is a Git LFS pointer; fetch the file itself with: git lfs pull" if pointer else COPY_AGAIN


def _check_text(proto: onnx.ModelProto, path: Path | str, component: str) -> None:
    """Refuse names that are not UTF-8: the parser accepts them, then gives out bytes or fails where one is read."""
    try:
        broken = any(not isinstance(text, str) for text in texts_of(proto))
    except UnicodeDecodeError:
        broken = True
    if broken:
        raise BadModelError(f"{path} has names that are not text", component=component, hint=COPY_AGAIN)


def texts_of(proto: onnx.ModelProto) -> Iterator[str]:
    """Every string of the model that sdort reads."""
    graph = proto.graph
    yield graph.name
    for function in proto.functions:
        yield from (function.name, function.domain, function.overload, *function.input, *function.output)
    for entry in (*proto.opset_import, *(entry for function in proto.functions for entry in function.opset_import)):
        yield entry.domain
    for node in (*graph.node, *(node for function in proto.functions for node in function.node)):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name, attribute.t.name)
            yield from _entries(attribute.t.external_data)
    for tensor in graph.initializer:
        yield tensor.name
        yield from _entries(tensor.external_data)
    for info in (*graph.input, *graph.output, *graph.value_info):
        yield info.name
        yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
    yield from _entries(proto.metadata_props)


def _entries(entries: Iterable[onnx.StringStringEntryProto]) -> Iterator[str]:
    for entry in entries:
        yield from (entry.key, entry.value)


class _TooLargeError(Exception):
    """More to parse than :data:`MAX_GRAPH_BYTES`."""


class _Walker:
    """Copies messages from a file, without large raw data."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.position = 0
        self.copied = 0

    def message(self, kind: str, end: int) -> bytes:
        """The message from the current position to ``end``."""
        parts: list[bytes] = []
        moved: list[bytes] = []
        while self.position < end:
            self._charge(_FIELD_COST)
            tag = self._varint(end)
            field, wire = tag >> 3, tag & 7
            if not field:  # as in a file of zeros
                raise DecodeError("a field without a number")
            if wire != _BYTES:
                parts += [encode_varint(tag), self._scalar(wire, end)]
                continue
            size = self._varint(end)
            stop = self.position + size
            if stop > end:
                raise DecodeError("a field ends after its message")
            inner = _PATHS[kind].get(field)
            if size <= _LARGE or (inner is None and (kind, field) != (_TENSOR, _RAW_DATA)):
                content = self._copy(size)
            elif inner:
                content = self.message(inner, stop)
            else:
                moved += _external(self.position, size)
                self._skip(size)
                continue
            parts += [encode_varint(tag), encode_varint(len(content)), content]
        # Last, so that it wins over a data_location of DEFAULT that some exporters write.
        return b"".join(parts + moved)

    def _varint(self, end: int) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.file.read(1)
            if not byte or self.position >= end:
                raise DecodeError("truncated")
            self.position += 1
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return value
        raise DecodeError("a number of more than 64 bits")

    def _scalar(self, wire: int, end: int) -> bytes:
        if wire == _VARINT:
            return encode_varint(self._varint(end))
        if wire not in (_FIXED64, _FIXED32) or self.position + (8 if wire == _FIXED64 else 4) > end:
            raise DecodeError("a field of unknown type")  # groups among them: ONNX never had any
        return self._copy(8 if wire == _FIXED64 else 4)

    def _charge(self, size: int) -> None:
        self.copied += size
        if self.copied > MAX_GRAPH_BYTES:
            raise _TooLargeError

    def _copy(self, size: int) -> bytes:
        self._charge(size)
        content = self.file.read(size)
        if len(content) < size:
            raise DecodeError("truncated")
        self.position += size
        return content

    def _skip(self, size: int) -> None:
        self.position += size
        self.file.seek(self.position)


def _external(offset: int, length: int) -> list[bytes]:
    """The TensorProto fields that say where the raw data is."""
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", OWN_FILE), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return [tensor.SerializeToString()]


def encode_varint(value: int) -> bytes:
    """``value`` in base 128, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
