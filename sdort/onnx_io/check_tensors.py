"""Tensors of an untrusted file: their values must be exactly those that their dims and type ask for."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto

from sdort.errors import BadModelError

MAX_RANK = 32
"""numpy 1's limit; no operator of a diffusion model comes near it."""

ITEMSIZE: dict[int, int] = {
    TensorProto.FLOAT: 4,
    TensorProto.UINT8: 1,
    TensorProto.INT8: 1,
    TensorProto.UINT16: 2,
    TensorProto.INT16: 2,
    TensorProto.INT32: 4,
    TensorProto.INT64: 8,
    TensorProto.BOOL: 1,
    TensorProto.FLOAT16: 2,
    TensorProto.DOUBLE: 8,
    TensorProto.UINT32: 4,
    TensorProto.UINT64: 8,
    TensorProto.BFLOAT16: 2,
    TensorProto.FLOAT8E4M3FN: 1,
    TensorProto.FLOAT8E4M3FNUZ: 1,
    TensorProto.FLOAT8E5M2: 1,
    TensorProto.FLOAT8E5M2FNUZ: 1,
}
"""Supported element types and their bytes. Strings, complex numbers and packed 4-bit types are not among them."""

_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def tensor_nbytes(tensor: TensorProto, component: str) -> int:
    """Bytes that the tensor's dims and type ask for, without allocating them.

    Raises:
        BadModelError: an unsupported type or an impossible shape.
    """
    itemsize = ITEMSIZE.get(tensor.data_type)
    if itemsize is None:
        raise _bad(tensor, component, f"element type {type_name(tensor.data_type)} is not supported")
    if len(tensor.dims) > MAX_RANK:
        raise _bad(tensor, component, f"a tensor of rank {len(tensor.dims)}")
    if any(d < 0 for d in tensor.dims):
        raise _bad(tensor, component, f"negative dimension in {list(tensor.dims)}")
    # Also bounds (2**62, 2**62, 0), which holds no bytes but which numpy cannot represent.
    if math.prod(max(d, 1) for d in tensor.dims) * itemsize >= 2**62:
        raise _bad(tensor, component, f"impossible shape {list(tensor.dims)}")
    return int(math.prod(tensor.dims)) * itemsize


def check_tensor(tensor: TensorProto, component: str) -> None:
    """Refuse a tensor inside the file whose values do not fit its dims and type.

    Of external tensors only the description is checked; :mod:`sdort.onnx_io.external` looks at their file.
    """
    nbytes = tensor_nbytes(tensor, component)
    if tensor.HasField("segment"):
        raise _bad(tensor, component, "segmented tensors are not supported")
    typed = [field for field in _TYPED_FIELDS if len(getattr(tensor, field))]
    raw = len(tensor.raw_data)
    if tensor.data_location == TensorProto.EXTERNAL:
        if typed or raw:
            raise _bad(tensor, component, "values both inside and outside the file")
        return
    if tensor.external_data:
        raise _bad(tensor, component, "external data that is not marked as such")
    if (typed and tensor.HasField("raw_data")) or len(typed) > 1:
        raise _bad(tensor, component, "values given twice")
    present = _typed_nbytes(tensor, typed[0], component) if typed else raw
    if present != nbytes:
        name = type_name(tensor.data_type)
        raise _bad(
            tensor, component, f"shape {list(tensor.dims)} of {name} needs {nbytes} bytes, the file has {present}"
        )


def _typed_nbytes(tensor: TensorProto, field: str, component: str) -> int:
    if field != onnx.helper.tensor_dtype_to_field(tensor.data_type):
        raise _bad(tensor, component, f"{type_name(tensor.data_type)} values stand in {field}")
    return len(getattr(tensor, field)) * ITEMSIZE[tensor.data_type]


def type_name(data_type: int) -> str:
    """The ONNX name of an element type, or its number."""
    return TensorProto.DataType.Name(data_type) if data_type in TensorProto.DataType.values() else str(data_type)


def _bad(tensor: TensorProto, component: str, message: str) -> BadModelError:
    return BadModelError(message, component=component, node=tensor.name)
