"""Headers of safetensors files at the edges of what they may claim, and files that sdort writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sdort.checkpoints.safetensors import describe_tensors, read_header, read_tensors, write_tensors
from sdort.errors import BadModelError, OutputError
from sdort.graph.weights import Inline


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    """A file with this header, which is JSON or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: Any, begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
    "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def test_every_dtype_is_read_where_it_lies(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {name: random.integers(0, 2, (2, 3, index + 1)).astype(kind) for index, (name, kind) in
              enumerate(DTYPES.items())}  # fmt: skip
    header, data = {}, b""
    for name, array in arrays.items():
        header[name] = entry(name, list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    header["__metadata__"] = {"format": "pt", "a": "b"}
    path = write(tmp_path / "a.safetensors", header, data)
    found = read_header(path)
    assert found.notes == {"format": "pt", "a": "b"}
    assert (found.size, found.start) == (path.stat().st_size, path.stat().st_size - len(data))
    assert found.shapes == {name: [2, 3, index + 1] for index, name in enumerate(DTYPES)}
    for tensors in (describe_tensors(found), read_tensors(path)):
        assert list(tensors) == list(DTYPES)
        for name, array in arrays.items():
            values = tensors[name].load()
            assert values.dtype == array.dtype
            np.testing.assert_array_equal(values, array)


def test_scalars_and_empty_tensors_lie_between_others(tmp_path: Path) -> None:
    header = {"b": entry("F32", [2], 4, 12), "none": entry("F32", [0, 7], 4, 4), "a": entry("F32", [], 0, 4)}
    header["last"] = entry("F16", [3, 0], 12, 12)
    tensors = read_tensors(write(tmp_path / "a.safetensors", header, np.array([1, 2, 3], np.float32).tobytes()))
    assert {name: tensor.load().tolist() for name, tensor in tensors.items()} == {
        "b": [2, 3], "none": [], "a": 1, "last": [[], [], []],
    }  # fmt: skip
    assert read_tensors(write(tmp_path / "b.safetensors", {})) == {}


EIGHT = [1] * 8
BROKEN: dict[str, tuple[Any, bytes, str]] = {
    "a hole at the begin": ({"a": entry("F32", [1], 4, 8)}, b"\0" * 8, "'a' begins behind bytes of no tensor"),
    "a hole between": (
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, b"\0" * 12, "'b' begins behind bytes",
    ),
    "a hole at the end": ({"a": entry("F32", [1], 0, 4)}, b"\0" * 7, "it has 3 bytes of no tensor"),
    "bytes of none": ({}, b"\0", "it has 1 bytes of no tensor"),
    "the same place": ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 0, 4)}, b"\0" * 4, "'b' overlaps"),
    "one byte too many": ({"a": entry("F32", [1], 0, 5)}, b"\0" * 5, "of shape .1. has 5 bytes"),
    "one byte too few": ({"a": entry("F64", [2, 3], 0, 47)}, b"\0" * 47, "has 47 bytes"),
    "of another dtype": ({"a": entry("F16", [2], 0, 8)}, b"\0" * 8, "has 8 bytes"),
    "nine axes": ({"a": entry("F32", [*EIGHT, 1], 0, 4)}, b"\0" * 4, "has shape"),
    "a side of 2^48": ({"a": entry("F32", [1 << 48, 0], 0, 0)}, b"", "has shape"),
    "a negative side": ({"a": entry("F32", [-1], 0, 4)}, b"\0" * 4, "has shape"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, b"\0" * 4, "has shape None"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4, "stored as None, which sdort"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4, "offsets None"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"\0" * 4, "offsets .0, 4, 8."),
    "one offset": ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4]}}, b"\0" * 4, "offsets .4."),
    "fp8": ({"a": entry("F8_E5M2", [4], 0, 4)}, b"\0" * 4, "stored as 'F8_E5M2', a quantized format, which"),
    "fp4": ({"a": entry("F4", [4], 0, 4)}, b"\0" * 4, "a quantized format"),
    "fp6": ({"a": entry("F6_E2M3", [4], 0, 4)}, b"\0" * 4, "a quantized format"),
    "complex": ({"a": entry("C64", [1], 0, 8)}, b"\0" * 8, "stored as 'C64', which sdort does not read"),
    "notes are no table": ({"__metadata__": []}, b"", "__metadata__ are no texts"),
    "a note is no text": ({"__metadata__": {"a": 1}}, b"", "__metadata__ are no texts"),
    "cut off": (
        {"a": entry("F32", [1], 0, 4), "b": entry("F32", [2], 4, 12)}, b"\0" * 10, "2 B of the 12 B of tensors",
    ),
    "cut off, in another order": (
        {"b": entry("F32", [2], 4, 12), "a": entry("F32", [1], 0, 4)}, b"\0" * 4, "8 B of the 12 B of tensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_a_header_may_not_claim(tmp_path: Path, case: str) -> None:
    header, data, words = BROKEN[case]
    path = write(tmp_path / "a.safetensors", header, data)
    with pytest.raises(BadModelError, match=words):
        read_tensors(path)


def test_the_edges_of_what_a_header_may_claim(tmp_path: Path) -> None:
    write(
        tmp_path / "a.safetensors",
        {"a": entry("F32", EIGHT, 0, 4), "b": entry("F32", [(1 << 48) - 1, 0], 4, 4)},
        b"1234",
    )
    assert read_tensors(tmp_path / "a.safetensors")["b"].shape == ((1 << 48) - 1, 0)
    for count, length in ((1000, None), (1001, "1,001 characters")):
        path = write(tmp_path / "b.safetensors", {"n" * count: entry("F32", [], 0, 4)}, b"1234")
        assert len(read_header(path).entries) == 1
        if length is None:
            assert len(read_tensors(path)) == 1
        else:
            with pytest.raises(BadModelError, match=length):
                read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, struct.pack("<Q", 1), struct.pack("<Q", 3) + b"{}", b"\xff" * 8])
def test_a_header_lies_within_its_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(BadModelError, match="the header does not fit into the file"):
        read_header(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    assert read_header(tmp_path / "b.safetensors").entries == {}


QUANTIZED = {
    "bitsandbytes, 4 bits": (
        "a.absmax", "a.quant_map", "a.nested_absmax", "a.nested_quant_map", "a.weight.quant_state.bitsandbytes__nf4",
    ),
    "bitsandbytes, int8": ("a.SCB", "a.CB", "a.weight_format"),
    "scaled fp8 or int8": (
        "scaled_fp8", "a.scaled_fp8", "a.scale_weight", "a.scale_input", "a.weight_scale", "a.weight_scale_2",
        "a.input_scale", "a.comfy_quant",
    ),
    "GPTQ, AWQ or SVDQuant": ("a.qweight", "a.qzeros", "a.g_idx", "a.wscales"),
    "quanto": ("a.weight._data", "a.weight._scale", "a.weight._shift"),
}  # fmt: skip


def test_tensors_that_only_a_quantized_format_has(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    one = np.ones(1, np.float32)
    for kind, names in QUANTIZED.items():
        for name in names:
            save_file({"a.weight": one, name: one}, path)
            with pytest.raises(BadModelError, match=rf"are quantized \({kind}; it has '{name}'\)"):
                read_tensors(path)
    usual = ("a.scale", "absmax", "a.weight_scale_3", "a.CBA", "a.data", "a.weight.data", "xscaled_fp8", "a.wscale")
    save_file(dict.fromkeys(usual, one), path)
    assert read_tensors(path).keys() == set(usual)


def test_what_is_written_is_what_others_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "a": random.standard_normal((3, 5)).astype(np.float32),
        "none": np.zeros((0, 2), np.float32),
        "half": random.standard_normal((2, 2, 3)).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "count": np.arange(5),
        "long name " * 3: random.standard_normal(7).astype(np.float32),
    }
    path = tmp_path / "a.safetensors"
    for count in range(1, len(weights) + 1):
        part = dict(list(weights.items())[:count])
        write_tensors(path, {name: Inline(array) for name, array in part.items()})
        found = load_file(path)
        assert found.keys() == part.keys()
        for name, array in part.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
        assert read_header(path).start % 8 == 0
        assert read_header(path).notes == {"format": "pt"}
    with pytest.raises(OutputError, match=r"cannot write .*nowhere"):
        write_tensors(tmp_path / "nowhere" / "a.safetensors", {})
