"""Headers of safetensors files, read and checked; the tensors stay on disk. And the writing of such a file.

A checkpoint is a download from a stranger, so everything that the header claims is held against the file's size
before a tensor is described. Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import ml_dtypes
import numpy as np

from sdort.checkpoints.lfs import refuse_pointer
from sdort.errors import BadModelError, OutputError
from sdort.files.input_file import open_input
from sdort.graph.stored_values import StoredValues
from sdort.tables import size_text

if TYPE_CHECKING:
    from sdort.graph.weights import Stored, Weight

_MAX_HEADER = 1 << 25
"""Bytes of a header. The reference implementation takes three times as many; those of the largest checkpoints have less
than one million, and what trainers note of their images some more."""
_MOST_TENSORS = 1 << 16
"""Tensors of a file, whose names are searched many times: a single-file SDXL has 2,600, an adapter of it 5,000."""

_SCALED = "scaled fp8 or int8"
_QUANTIZED = (
    ("bitsandbytes, 4 bits", r".+\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..+)"),
    ("bitsandbytes, int8", r".+\.(SCB|CB|weight_format)"),
    (_SCALED, r"(.+\.)?(scaled_fp8|scale_weight|scale_input|weight_scale(_2)?|input_scale|comfy_quant)"),
    ("GPTQ, AWQ or SVDQuant", r".+\.(qweight|qzeros|g_idx|wscales)"),
    ("quanto", r".+\.weight\._(data|scale|shift)"),
)
"""Formats, and the names of tensors that they have beside or in the place of a weight: bitsandbytes'
``functional.py`` and ``nn/modules.py``, ComfyUI's ``quant_ops.py``, AutoGPTQ, nunchaku, optimum-quanto."""

_LONGEST_NAME = 1000
"""Characters of a parameter's name, which numbers of blocks are read from: those of published models have 100."""

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_FP8 = {"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)}
"""Types that are read where a caller knows of scales beside them."""


@dataclass(frozen=True)
class Header:
    """The header of a safetensors file: descriptions of tensors by name, not yet checked."""

    path: Path
    entries: dict[str, Any]
    start: int
    """Offset of the first tensor's data in bytes."""
    size: int
    """Bytes of the file."""
    notes: dict[str, str]
    """The writer's notes: ``__metadata__``."""

    @property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the tensors by name.

        Raises:
            BadModelError: a tensor has none.
        """
        return {name: _shape(self.path, name, entry) for name, entry in self.entries.items()}


def read_header(path: Path) -> Header:
    """The header of a safetensors file.

    Raises:
        BadModelError: the file cannot be read, is cut off, or has no header.
    """
    refuse_pointer(path)
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _broken(path, "the header does not fit into the file")
            if length > _MAX_HEADER:
                raise _too_large(
                    path, f"its header has {size_text(length)}, and one has at most {size_text(_MAX_HEADER)}"
                )
            header = file.read(length)
    except OSError as error:
        raise BadModelError(f"cannot read {path}: {error.strerror or error}") from error
    # Counted before millions of them are parsed; a name may hold these words too.
    if header.count(b'"data_offsets"') > 2 * _MOST_TENSORS:
        raise _too_large(path, f"it has more than {_MOST_TENSORS:,} tensors")
    entries = _parse(path, header)
    notes = entries.pop("__metadata__", {})
    if len(entries) > _MOST_TENSORS:
        raise _too_large(path, f"it has {len(entries):,} tensors, more than {_MOST_TENSORS:,}")
    _check_end(path, entries, size - 8 - length)
    return Header(path, entries, 8 + length, size, notes)


def read_tensors(path: Path, *, fp8: bool = False) -> dict[str, Stored]:
    """Every tensor of a safetensors file by name.

    Args:
        fp8: also those of 8 bits, and scales beside them (:func:`sdort.checkpoints.scaled_tensors.dequantized`).

    Raises:
        BadModelError: the file cannot be read, is truncated, or its header contradicts itself or the file.
    """
    # Imported here: whoever reads headers or adapters, to run a pipeline, needs no graph library.
    from sdort.graph.weights import Stored

    header = read_header(path)
    _refuse_quantized(header, {_SCALED} if fp8 else set())
    if long := next((name for name in header.entries if len(name) > _LONGEST_NAME), None):
        raise _broken(path, f"the name of a tensor has {len(long):,} characters")
    return {
        name: Stored(path, values.offset, values.shape, values.dtype)
        for name, values in describe_tensors(header, fp8=fp8).items()
    }


def _refuse_quantized(header: Header, known: Set[str]) -> None:
    """Raise where tensors stand beside the weights that only a quantized format has, which is not ``known``."""
    for kind, pattern in _QUANTIZED:
        if kind in known:
            continue
        match = re.compile(pattern).fullmatch
        if name := next((name for name in header.entries if match(name)), None):
            raise BadModelError(
                f"the weights of {header.path} are quantized ({kind}; it has {name!r}), which sdort does not read",
                hint="Get the same model in float32, float16 or bfloat16.",
            )


def write_tensors(path: Path, tensors: Mapping[str, Weight]) -> None:
    """Write a safetensors file of weights, each in its own dtype, which are computed piece by piece.

    Raises:
        OutputError: it cannot be written.
        BadModelError: a weight cannot be read.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, weight in tensors.items():
        dtype, span = _NAMES[weight.dtype], [end, end := end + weight.nbytes]
        entries[name] = {"dtype": dtype, "shape": weight.shape, "data_offsets": span}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for weight in tensors.values():
                for piece in weight.pieces():
                    file.write(np.ascontiguousarray(piece, weight.dtype).view(np.uint8).data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def describe_tensors(header: Header, *, fp8: bool = False) -> dict[str, StoredValues]:
    """Every tensor of the file of a header by name, for those who need no graph library.

    Args:
        fp8: as for :func:`read_tensors`.

    Raises:
        BadModelError: the header contradicts itself or the file.
    """
    dtypes = _DTYPES | _FP8 if fp8 else _DTYPES
    tensors = {
        name: _tensor(header.path, name, entry, header.start, header.size, dtypes)
        for name, entry in header.entries.items()
    }
    _check_cover(header, tensors)
    return tensors


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(header, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"the header is no JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise _broken(path, "the header is no table of tensors")
    notes = parsed.get("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _broken(path, "its __metadata__ are no texts")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands in it twice")
    return table


def _tensor(
    path: Path, name: str, entry: Any, start: int, size: int, dtypes: Mapping[str, np.dtype[Any]]
) -> StoredValues:
    shape = _shape(path, name, entry)
    dtype, offsets = entry.get("dtype"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise BadModelError(
            f"{path}: tensor {name!r} is stored as {dtype!r}, {_foreign(dtype)}which sdort does not read",
            hint="Save the checkpoint as float32, float16 or bfloat16.",
        )
    if not _naturals(offsets) or len(offsets) != 2:
        raise _broken(path, f"tensor {name!r} has shape {shape!r} and offsets {offsets!r}")
    begin, end = offsets
    if not begin <= end <= size - start:
        raise _broken(path, f"tensor {name!r} lies outside the file")
    if end - begin != math.prod(shape) * dtypes[dtype].itemsize:
        raise _broken(path, f"tensor {name!r} of shape {shape} has {end - begin} bytes")
    return StoredValues(path, start + begin, shape, dtypes[dtype])


def _foreign(dtype: Any) -> str:
    return "a quantized format, " if str(dtype).startswith(("F8", "F4", "F6")) else ""


def _shape(path: Path, name: str, entry: Any) -> list[int]:
    if not isinstance(entry, dict):
        raise _broken(path, f"tensor {name!r} is not described")
    shape = entry.get("shape")
    if not _naturals(shape):
        raise _broken(path, f"tensor {name!r} has shape {shape!r} and offsets {entry.get('data_offsets')!r}")
    return shape


def _check_end(path: Path, entries: dict[str, Any], has: int) -> None:
    """Raise where whole tensors are promised behind the end of the file: a download that stopped."""
    offsets = [entry.get("data_offsets") for entry in entries.values() if isinstance(entry, dict)]
    ends = [pair[1] for pair in offsets if _naturals(pair) and len(pair) == 2 and pair[0] <= pair[1]]
    promised = max(ends, default=0)
    if promised > has:
        raise BadModelError(
            f"{path} is not a valid safetensors file: {size_text(promised - has)} of the {size_text(promised)} of "
            "tensors that its header promises are missing at its end",
            hint="It is still being downloaded, or the download stopped. Download it again.",
        )


def _naturals(values: Any) -> TypeGuard[list[int]]:
    # Bounded in number and size: the product of a million huge dims would keep Python busy for hours.
    if not isinstance(values, list) or len(values) > 8:
        return False
    return all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _check_cover(header: Header, tensors: dict[str, StoredValues]) -> None:
    """Raise unless the tensors cover the file without overlaps and holes, as the format wants it."""
    end = header.start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if tensor.offset != end:
            what = "overlaps another one" if tensor.offset < end else "begins behind bytes of no tensor"
            raise _broken(header.path, f"tensor {name!r} {what}")
        end += tensor.nbytes
    if end != header.size:
        raise _broken(header.path, f"it has {header.size - end} bytes of no tensor")


def _too_large(path: Path, what: str) -> BadModelError:
    return BadModelError(f"{path} is no model that sdort reads: {what}", hint="Is it the right file?")


def _broken(path: Path, what: str) -> BadModelError:
    return BadModelError(f"{path} is not a valid safetensors file: {what}", hint="Copy or download it again.")
