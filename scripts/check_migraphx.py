#!/usr/bin/env python3
"""What ``sdort optimize --provider migraphx`` emits, parsed, compiled and run by MIGraphX itself, without ONNX Runtime.

    python scripts/check_migraphx.py ORIGINAL OPTIMIZED [--target ref|gpu] [--size 8] [--component NAME]...

Both are pipeline folders, OPTIMIZED made from ORIGINAL. Needs libmigraphx_c.so.3 (ROCm's migraphx, Debian's
libmigraphx-c3) where the dynamic linker finds it. The target ``ref`` needs no GPU: MIGraphX's own plain loops. The
reference is the original in ONNX Runtime on the CPU; the limits are those of ``sdort verify``. MIGraphX fixes all sizes
when it parses, so each size is a program of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from sdort.layout import find_components
from sdort.samples import Sample, declared_inputs, make_inputs
from sdort.verification.limits import TOLERANCES
from sdort.verify import open_session, precision

Array = npt.NDArray[Any]

# migraphx.h of MIGraphX 2.14: migraphx_shape_datatype_t, after two types that ONNX graphs do not have.
TYPES = ("bool", "float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "int32", "int64")
FIRST_TYPE = 2


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
        given = self.make("program_parameters_create")
        for name, value in feeds.items():
            argument = self.make("argument_create", self.shape(value), value.ctypes.data_as(ctypes.c_void_p))
            self.call("program_parameters_add", given, name.encode(), argument)
        results = self.make("program_run", program, given)
        count = self.make("arguments_size", results).value or 0
        return [self.array(self.make("arguments_get", results, ctypes.c_size_t(i))) for i in range(count)]


def sizes(array: Array) -> Any:
    return (ctypes.c_size_t * array.ndim)(*array.shape)


def check(library: Migraphx, component: str, original: Path, optimized: Path, sample: Sample, target: str) -> bool:
    """Run one component both ways, print a line per output, and say whether all are within their limits."""
    reference = onnx.load(original, load_external_data=False)
    candidate = onnx.load(optimized, load_external_data=False)
    feeds = make_inputs(declared_inputs(reference, component), sample, component, seed=0)
    dtypes = {item.name: item.dtype for item in declared_inputs(candidate, component)}
    cast = {name: np.ascontiguousarray(value.astype(dtypes[name])) for name, value in feeds.items()}
    session = open_session(reference, original.parent, component)
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(None, feeds), strict=True))
    started = time.perf_counter()
    program = library.compile(optimized, cast, target)
    compiled = time.perf_counter()
    results = library.run(program, cast)
    ended = time.perf_counter()
    dtype = precision(candidate)
    limit = TOLERANCES[dtype, component]
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in candidate.graph.node)
    fused = {name: count for name, count in operators.items() if name.startswith("com.microsoft")}
    print(f"{component}, {dtype}, batch {sample.batch}, {len(candidate.graph.node)} nodes ({fused or 'all standard'}): "
          f"parsed and compiled in {compiled - started:.1f} s, run in {ended - compiled:.1f} s")  # fmt: skip
    passed = True
    for output, actual in zip(candidate.graph.output, results, strict=True):
        expected = wanted[output.name].astype(np.float64)
        error = np.abs(actual.reshape(expected.shape) - expected) / expected.std()
        good = bool(error.max() <= limit.largest and error.mean() <= limit.mean)
        passed &= good
        print(f"  {output.name}: largest error {error.max():.1e} of {limit.largest:.1e}, mean {error.mean():.1e} of "
              f"{limit.mean:.1e}: {'passed' if good else 'FAILED'}")  # fmt: skip
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
