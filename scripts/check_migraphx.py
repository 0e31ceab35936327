#!/usr/bin/env python3
"""Graphs of ``sdort optimize --provider migraphx``, parsed, compiled and run by MIGraphX itself, without ONNX Runtime.

    python scripts/check_migraphx.py ORIGINAL OPTIMIZED [--target ref|gpu] [--size 8] [--component NAME]...

Both are pipeline folders, OPTIMIZED made from ORIGINAL. Needs libmigraphx_c.so.3 (ROCm's migraphx, Debian's
libmigraphx-c3) where the dynamic linker finds it. The target ``ref`` needs no GPU: MIGraphX's own plain loops. MIGraphX
fixes all sizes when it parses, so each size is a program of its own.

The reference is the original in float64, the limits are those of ``sdort verify``. What exceeds them is held to the
original itself: as the exporter wrote it, with nothing raised, fused or lowered, in the same precision on the same
target; the optimized graph may err twice as much, by the largest error and by the mean. Two such cases are known:

* where a UNet has two channels a group (the demo model's) and the image has shrunk to one pixel, a group normalization
  is the sign of a difference: float32 itself is 1e-3 off there, and fp16 means nothing;
* ``ref`` rounds after every single operator, where other kernels keep fp32 between them: a VAE decoder in fp16 is 3e-2
  off, fused or not.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from measuring import Arguments, timed
from onnx import TensorProto, helper, inliner, numpy_helper

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.components import find_components
from sdort.onnx_io.load import load_model
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.onnx_io.save import save_model
from sdort.providers import load_target
from sdort.rewrite.fusion import load_fusions
from sdort.verification.limits import TOLERANCES, Tolerance
from sdort.workload.judgement import Errors, limit_share, measure_errors
from sdort.workload.samples import Sample, declared_inputs, make_inputs

Array = npt.NDArray[Any]

# migraphx.h of MIGraphX 2.14: migraphx_shape_datatype_t, after two types that ONNX graphs do not have.
TYPES = ("bool", "float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "int32", "int64")
FIRST_TYPE = 2

UNKNOWN = ("GroupNormalization", "Attention", "Gelu")
"""Operators of opset 20 to 23 that MIGraphX's parser does not know; ONNX defines each by a function of older ones."""
ALLOWANCE = 2.0
"""Error allowed to the optimized graph, relative to the original's on the same target: its sums have another order."""


class Migraphx:
    """The C API, as far as it takes to run a file. What it returns lives as long as the process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libmigraphx_c.so.3")

    def make(self, name: str, *args: Any) -> Any:
        """A function that hands out an object, or a number, through its first argument.

        Raises:
            RuntimeError: it failed; MIGraphX has printed why.
        """
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *args)
        return made

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, f"migraphx_{name}")(*args)
        if status:
            raise RuntimeError(f"migraphx_{name} failed ({status})")

    def shape(self, array: Array) -> Any:
        return self.make(
            "shape_create", FIRST_TYPE + TYPES.index(array.dtype.name), sizes(array), ctypes.c_size_t(array.ndim)
        )

    def array(self, argument: Any) -> Array:
        """An argument's content, copied."""
        shape = self.make("argument_shape", argument)
        kind = TYPES[(self.make("shape_type", shape).value or 0) - FIRST_TYPE]
        lengths, rank = ctypes.POINTER(ctypes.c_size_t)(), ctypes.c_size_t()
        self.call("shape_lengths", ctypes.byref(lengths), ctypes.byref(rank), shape)
        dims = lengths[: rank.value]
        size = self.make("shape_bytes", shape).value or 0
        content = ctypes.string_at(self.make("argument_buffer", argument), size)
        return np.frombuffer(content, kind).reshape(dims)

    def compile(self, path: Path, feeds: Mapping[str, Array], target: str) -> Any:
        """The program of an ONNX file at the sizes of ``feeds``."""
        options = self.make("onnx_options_create")
        for name, value in feeds.items():
            count = ctypes.c_size_t(value.ndim)
            self.call("onnx_options_set_input_parameter_shape", options, name.encode(), sizes(value), count)
        program = self.make("parse_onnx", str(path).encode(), options)
        settings = self.make("compile_options_create")
        self.call("compile_options_set_offload_copy", settings, ctypes.c_bool(target != "ref"))
        self.call("program_compile", program, self.make("target_create", target.encode()), settings)
        return program

    def run(self, program: Any, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs, in the file's order."""
        parameters = self.make("program_parameters_create")
        for name, value in feeds.items():
            argument = self.make("argument_create", self.shape(value), value.ctypes.data_as(ctypes.c_void_p))
            self.call("program_parameters_add", parameters, name.encode(), argument)
        results = self.make("program_run", program, parameters)
        count = self.make("arguments_size", results).value or 0
        return [self.array(self.make("arguments_get", results, ctypes.c_size_t(i))) for i in range(count)]


def sizes(array: Array) -> Any:
    return (ctypes.c_size_t * array.ndim)(*array.shape)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, changed in place, with all of its float32 tensors in float64."""
    for tensor in [
        *model.graph.initializer,
        *(a.t for n in model.graph.node for a in n.attribute if a.name == "value"),
    ]:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    for attribute in (a for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"):
        attribute.i = TensorProto.DOUBLE if attribute.i == TensorProto.FLOAT else attribute.i
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del model.graph.value_info[:]
    return model


def reference(path: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of an original in float64, by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    model = in_float64(onnx.load(path))
    inputs = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    return dict(zip([o.name for o in model.graph.output], ReferenceEvaluator(model).run(None, inputs), strict=True))


def unfused(path: Path, component: str, fp16: bool, folder: Path) -> Path:
    """An original in operators that MIGraphX knows, tidied, in fp16 on request; nothing raised, fused or lowered."""
    model = onnx.load(path)
    light = onnx.load(path, load_external_data=False)
    model.graph.value_info.extend(onnx.shape_inference.infer_shapes(light).graph.value_info)
    weights = [helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in model.graph.initializer]
    model.graph.value_info.extend(weights)
    expanded = inliner.inline_selected_functions(
        model, [("", name) for name in UNKNOWN], exclude=False, inline_schema_functions=True
    )
    onnx.save(expanded, folder / "expanded.onnx", save_as_external_data=True, location="expanded.data")
    tidied = load_model(folder / "expanded.onnx", component)
    optimize_model(tidied, OptimizeOptions(load_target("migraphx"), fp16=fp16, disable=set(load_fusions())))
    save_model(tidied, folder / "model.onnx")
    return folder / "model.onnx"


OutputErrors = dict[str, Errors]
"""Errors of every output."""


def measure(
    library: Migraphx,
    path: Path,
    component: str,
    feeds: Mapping[str, Array],
    expected_outputs: Mapping[str, Array],
    target: str,
) -> OutputErrors:
    """Run one model; a line about it."""
    model = onnx.load(path, load_external_data=False)
    dtypes = {item.name: item.dtype for item in declared_inputs(model, component)}
    cast = {name: np.ascontiguousarray(value.astype(dtypes[name])) for name, value in feeds.items()}
    program, compiling = timed(lambda: library.compile(path, cast, target))
    results, running = timed(lambda: library.run(program, cast))
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node)
    fused = {name: count for name, count in operators.items() if name.startswith("com.microsoft")}
    print(f"{len(model.graph.node)} nodes ({fused or 'all standard'}): "
          f"parsed and compiled in {compiling:.1f} s, run in {running:.1f} s")  # fmt: skip
    errors = {}
    for output, actual in zip(model.graph.output, results, strict=True):
        expected = expected_outputs[output.name]
        errors[output.name] = measure_errors(actual.reshape(expected.shape), expected)
    return errors


def exceeding(errors: OutputErrors, limits: Mapping[str, Tolerance]) -> list[str]:
    """The outputs that are not within their limits; NaN is within none."""
    return [name for name, error in errors.items() if not limit_share(error, limits[name]) <= 1]


def tell(errors: OutputErrors, limits: Mapping[str, Tolerance], whose: str) -> bool:
    """A line per output; whether all are within ``limits``."""
    outside = exceeding(errors, limits)
    for name, error in errors.items():
        limit = limits[name]
        print(f"  {name}: largest error {error.largest_share:.1e} of {limit.largest:.1e}, "
              f"mean {error.mean_share:.1e} of {limit.mean:.1e} ({whose}): "
              f"{'exceeded' if name in outside else 'passed'}")  # fmt: skip
    return not outside


def check(library: Migraphx, component: str, original: Path, optimized: Path, sample: Sample, target: str) -> bool:
    """Run one component, and the original too where it exceeds the limits; say whether it holds."""
    feeds = make_inputs(
        declared_inputs(onnx.load(original, load_external_data=False), component), sample, component, seed=0
    )
    expected_outputs = reference(original, feeds)
    dtype = stored_dtype(onnx.load(optimized, load_external_data=False))
    print(f"{component}, {dtype}, batch {sample.batch}: ", end="")
    errors = measure(library, optimized, component, feeds, expected_outputs, target)
    if tell(errors, dict.fromkeys(errors, TOLERANCES[dtype, component]), "sdort verify's limit"):
        return True
    with tempfile.TemporaryDirectory() as folder:
        print("  the original, unfused: ", end="")
        plain = unfused(original, component, dtype == "float16", Path(folder))
        own = measure(library, plain, component, feeds, expected_outputs, target)
    limits = {name: Tolerance(each.largest_share, each.mean_share).times(ALLOWANCE) for name, each in own.items()}
    return tell(errors, limits, "twice the original's own")


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("original", type=Path)
    parser.add_argument("optimized", type=Path)
    parser.add_argument("--target", default="ref", choices=["ref", "gpu"])
    parser.add_argument("--size", type=int, default=8, help="latents a side (pixels of the VAE encoder)")
    parser.add_argument("--component", action="append", default=[])
    args = parser.parse_args()
    library = Migraphx()
    originals, made = find_components(args.original), find_components(args.optimized)
    passed = []
    for name in args.component or made:
        side = args.size * (8 if name == "vae_encoder" else 1)
        for sample in (Sample(1, side, side), Sample(2, side, side + 8, 13)):
            try:
                passed.append(check(library, name, originals[name], made[name], sample, args.target))
            except RuntimeError as error:
                print(f"{name}: {error}")
                passed.append(False)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
