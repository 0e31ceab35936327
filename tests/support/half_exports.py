"""The tiny models of :mod:`models` in half precision, as torch exports them and as converters make them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import onnx
import torch
from onnxconverter_common import float16 as converter
from onnxruntime.transformers import float16 as tool
from support import exports, models


def export_half(family: str, exporter: str, path: Path, dtype: Any = torch.float16) -> Path:
    """``model.half()`` traced by TorchScript (``ts17``, dynamic) or dynamo (``dy18``, static)."""
    built = models.build(family)
    built.module.to(dtype)
    inputs = {name: t.to(dtype) if t.is_floating_point() else t for name, t in built.inputs.items()}
    names: dict[str, Any] = {"input_names": list(inputs), "output_names": built.outputs}
    names["opset_version"] = int(exporter[2:])
    with exports.quiet(), torch.no_grad():
        if exporter.startswith("ts"):
            dynamic = {name: dims for name, dims in built.dynamic.items() if dims}
            torch.onnx.export(
                built.module, tuple(inputs.values()), str(path), dynamo=False, dynamic_axes=dynamic, **names
            )
        else:
            program = torch.export.export(built.module, tuple(inputs.values()))
            made = torch.onnx.export(program, (), None, dynamo=True, verbose=False, **names)
            made.save(str(path), external_data=False)
    return path


def convert_with_tool(source: Path, path: Path, keep_io: bool, block: Collection[str]) -> Path:
    """By ONNX Runtime's own conversion tool, which optimum uses too."""
    blocked = [*tool.DEFAULT_OP_BLOCK_LIST, *block]
    onnx.save(tool.convert_float_to_float16(onnx.load(source), keep_io_types=keep_io, op_block_list=blocked), path)
    return path


def convert_with_converter(source: Path, path: Path, keep_io: bool, block: Collection[str]) -> Path:
    """By onnxconverter-common's."""
    blocked = [*converter.DEFAULT_OP_BLOCK_LIST, *block]
    with exports.quiet():  # it warns of every number that it rounds or cuts off
        made = converter.convert_float_to_float16(onnx.load(source), keep_io_types=keep_io, op_block_list=blocked)
    onnx.save(made, path)
    return path


Convert = Callable[[Path, Path, bool, Collection[str]], Path]
