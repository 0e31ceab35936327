#!/usr/bin/env python3
"""A whole step of a UNet with its linear layers in FP8, beside the same step in FP16.

    python scripts/fp8_step.py PIPELINE --work DIR [--provider cuda|cpu] [--size 1024x1024] [--batch 2] [--repeat 30]
        [--json FILE]

PIPELINE is a folder of `sdort optimize --fp16`. Its UNet is written again with each product of a constant matrix and
what follows from the latents in E4M3: one scale a tensor, that of an input from recorded runs at several timesteps. On
CUDA the product is ONNX Runtime's GemmFloat8 (cuBLASLt) behind a QuantizeLinear; on the CPU the rounded values are
multiplied, which shows the same error and says nothing of time. Where a normalization or a GEGLU makes the input, that
kernel could write E4M3 itself: the row "as if" is FP8's step without any of its roundings, which no implementation
reaches. On a GPU a step is the sum of its kernels as a profiler times them: GemmFloat8 allocates in each call, so that
the host holds it up, and no CUDA graph takes it. The error is a norm over a norm, against FP16 after one step, on the
same random inputs; the exit code is 1 if it is more than MOST.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch  # loads the CUDA libraries that ONNX Runtime needs
from gpu_kernels import RUNS
from gpu_kernels import recorded as recorded_kernels
from measuring import Arguments, in_turns
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, set_external_data

import sdort
from sdort.options.number_ranges import parse_size
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import create_session
from sdort.runtime.probe import choose_provider
from sdort.runtime.session import Session
from sdort.workload.cases import Case, make_feeds

MOST = 0.2
"""The error of a step up to which the script believes its own rewriting."""
LARGEST = 448.0
"""E4M3's largest number."""
FUSABLE = ("LayerNormalization", "SkipLayerNormalization", "BiasSplitGelu", "Mul")
"""Operators whose kernel could write E4M3."""
TIMESTEPS = (981, 501, 21)


@dataclass
class Linear:
    """A product with a constant matrix in a step."""

    node: onnx.NodeProto
    weight: onnx.TensorProto
    fusable: bool
    """Whether the kernel that makes its input could write E4M3."""
    scale: float = 1.0
    """Of its input."""


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    provider = choose_provider(RuntimeOptions(args.provider))[0]
    folder = args.pipeline / "unet"
    args.work.mkdir(parents=True, exist_ok=True)
    data = args.work / "model.onnx.data"
    if not data.exists():
        shutil.copyfile(folder / "model.onnx.data", data)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    linears = find_linears(model)
    feeds = feeds_of(args, folder / "model.onnx", provider)
    for linear, largest in zip(linears, recorded(model, linears, args.work, provider, feeds), strict=True):
        linear.scale = largest / LARGEST
    paths = {"fp16": args.work / "fp16.onnx", "fp8": args.work / "fp8.onnx"}
    paths["fp16"].write_bytes(model.SerializeToString())
    paths["fp8"].write_bytes(in_fp8(model, linears, folder, args, provider).SerializeToString())
    steps = {name: opened(path, provider).bind(feeds[0]) for name, path in paths.items()}
    for step in steps.values():
        for _ in range(3):
            step.run()
    outputs = {name: next(iter(step.outputs().values())).astype(np.float64) for name, step in steps.items()}
    error = float(np.linalg.norm(outputs["fp8"] - outputs["fp16"]) / np.linalg.norm(outputs["fp16"]))
    kernels = {name: recorded_kernels(step.run) for name, step in steps.items()}
    roundings = [microseconds for name, microseconds in kernels["fp8"] if "Quantize" in name]
    if provider.on_gpu:
        median = {name: sum(microseconds for _, microseconds in found) / RUNS / 1e3 for name, found in kernels.items()}
    else:
        times = in_turns({name: step.run for name, step in steps.items()}, args.repeat, warmup=3)
        median = {name: 1e3 * statistics.median(each) for name, each in times.items()}
    median["as if"] = median["fp8"] - sum(roundings) / RUNS / 1e3
    print(f"{len(linears)} products, {sum(each.fusable for each in linears)} behind a normalization or a GEGLU")
    print(f"{len(roundings) / RUNS:.0f} roundings of {sum(roundings) / RUNS:,.0f} us")
    for name, milliseconds in median.items():
        print(f"{name:10} {milliseconds:9.3f} ms  {median['fp16'] / milliseconds:6.3f} times as fast")
    print(f"error of the output {error:.2e}")
    if args.json:
        args.json.write_text(json.dumps({"ms": median, "error": error, "products": len(linears)}, indent=2))
    return int(not error <= MOST)


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "pipeline --work --provider --size --repeat --json", "cuda cpu")
    parser.add_argument("--batch", type=int, default=2)
    return parser.parse_args()


def feeds_of(args: argparse.Namespace, path: Path, provider: Provider) -> list[dict[str, Any]]:
    """Random inputs at each of :data:`TIMESTEPS`."""
    height, width = parse_size(args.size)
    session = opened(path, provider)
    found = []
    for time in TIMESTEPS:
        feeds = make_feeds(Case("unet", args.batch, height, width), session.inputs, 8)
        found.append({name: np.full_like(each, time) if name == "timestep" else each for name, each in feeds.items()})
    return found


def opened(path: Path, provider: Provider) -> Session:
    options = RuntimeOptions(provider.name)
    return Session(create_session(str(path), provider, options), path, "unet", provider, options)


def find_linears(model: onnx.ModelProto) -> list[Linear]:
    """The products with constant matrices of what follows from the latents, whose dimensions cuBLASLt takes."""
    weights = {each.name: each for each in model.graph.initializer}
    made = {name: node for node in model.graph.node for name in node.output}
    follows, found = {"sample"}, []
    for node in model.graph.node:
        if not follows & {*node.input}:
            continue
        follows |= {*node.output}
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or any(size % 16 for size in weight.dims):
            continue
        maker = made.get(node.input[0])
        found.append(Linear(node, weight, maker is not None and maker.op_type in FUSABLE))
    return found


def recorded(
    model: onnx.ModelProto, linears: Sequence[Linear], work: Path, provider: Provider, feeds: Iterable[dict[str, Any]]
) -> list[float]:
    """The largest magnitude of each product's input in runs on ``feeds``."""
    watched = copy_of(model)
    for number, linear in enumerate(linears):
        watched.graph.node.append(helper.make_node("Abs", [linear.node.input[0]], [f"watch.{number}.abs"]))
        watched.graph.node.append(
            helper.make_node("ReduceMax", [f"watch.{number}.abs"], [f"watch.{number}"], keepdims=0)
        )
        watched.graph.output.append(helper.make_tensor_value_info(f"watch.{number}", TensorProto.FLOAT16, []))
    (work / "watched.onnx").write_bytes(watched.SerializeToString())
    options = RuntimeOptions(provider.name)
    session = create_session(str(work / "watched.onnx"), provider, options)
    kept = Session(session, work, "unet", provider, options)
    runs = [kept.run(each) for each in feeds]
    return [max(float(run[f"watch.{number}"]) for run in runs) for number in range(len(linears))]


def in_fp8(
    model: onnx.ModelProto, linears: Sequence[Linear], folder: Path, args: argparse.Namespace, provider: Provider
) -> onnx.ModelProto:
    """The model, whose weights lie in ``folder``, with its products in FP8."""
    changed = copy_of(model)
    graph, nodes = changed.graph, {}
    rounded: dict[str, str] = {}
    with (args.work / "fp8.data").open("wb") as file:
        for number, linear in enumerate(linears):
            nodes[linear.node.output[0]] = number
            values = weight_values(linear.weight, folder)
            scale = float(np.abs(values).max()) / LARGEST
            stored = torch.from_numpy(values / scale).to(torch.float8_e4m3fn)
            if provider.device:
                # Transposed, as cuBLASLt takes a product of two matrices in FP8.
                content = stored.T.contiguous().view(torch.uint8).numpy()
                kind, dims = TensorProto.FLOAT8E4M3FN, content.shape
            else:
                content = (stored.float() * scale).to(torch.float16).numpy()
                kind, dims = TensorProto.FLOAT16, content.shape
            graph.initializer.append(external(f"fp8.{number}", kind, dims, content.tobytes(), file))
            graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), f"fp8.{number}.scale"))
    old = list(graph.node)
    del graph.node[:]
    for node in old:
        found = nodes.get(node.output[0])
        if found is None:
            graph.node.append(node)
            continue
        source = node.input[0]
        if source not in rounded:
            rounded[source] = f"rounded.{len(rounded)}"
            quantize(graph, rounded[source], source, linears[found].scale)
        shape = (args.batch, *linears[found].weight.dims)
        product(graph, node, rounded[source], found, shape, bool(provider.device))
    return changed


def quantize(graph: onnx.GraphProto, name: str, source: str, scale: float) -> None:
    """Add a QuantizeLinear of ``source`` to ``{name}.fp8``."""
    graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float16), f"{name}.scale16"))
    graph.initializer.append(numpy_helper.from_array(np.array(scale, np.float32), f"{name}.scale"))
    zero = helper.make_tensor(f"{name}.zero", TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True)
    graph.initializer.append(zero)
    graph.node.append(helper.make_node("QuantizeLinear", [source, f"{name}.scale16", f"{name}.zero"], [f"{name}.fp8"]))


def product(
    graph: onnx.GraphProto, node: onnx.NodeProto, rounded: str, number: int, sizes: tuple[int, int, int], device: bool
) -> None:
    """Add the product of a rounded input and matrix ``number`` in the place of ``node``.

    Args:
        sizes: of the batch, and of the matrix.
    """
    if not device:
        scales = [f"{rounded}.scale16", f"{rounded}.zero"]
        graph.node.append(helper.make_node("DequantizeLinear", [f"{rounded}.fp8", *scales], [f"{node.output[0]}.a"]))
        graph.node.append(helper.make_node("MatMul", [f"{node.output[0]}.a", f"fp8.{number}"], [node.output[0]]))
        return
    name = node.output[0]
    batch, inner, outer = sizes
    for end, shape in (("flat", [-1, inner]), ("wide", [batch, -1, outer])):
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{name}.{end}.shape"))
    graph.node.append(helper.make_node("Reshape", [f"{rounded}.fp8", f"{name}.flat.shape"], [f"{name}.flat"]))
    graph.node.append(
        helper.make_node(
            "GemmFloat8",
            [f"{name}.flat", f"fp8.{number}", "", f"{rounded}.scale", f"fp8.{number}.scale"],
            [f"{name}.product"],
            domain="com.microsoft",
            transB=1,
            dtype=TensorProto.FLOAT16,
        )
    )
    graph.node.append(helper.make_node("Reshape", [f"{name}.product", f"{name}.wide.shape"], [name]))


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with the operators of opset 19, which has E4M3."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for each in copied.opset_import:
        if each.domain == "":
            each.version = max(each.version, 19)
    return copied


def weight_values(tensor: onnx.TensorProto, folder: Path) -> np.ndarray[Any, Any]:
    loaded = onnx.TensorProto()
    loaded.CopyFrom(tensor)
    if loaded.data_location == TensorProto.EXTERNAL:
        load_external_data_for_tensor(loaded, str(folder))
    return np.asarray(numpy_helper.to_array(loaded), np.float32)


def external(name: str, kind: int, dims: Sequence[int], content: bytes, file: Any) -> onnx.TensorProto:
    """A tensor whose bytes are appended to ``file``."""
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=dims)
    file.write(b"\0" * (-file.tell() % 4096))
    tensor.raw_data = b""
    set_external_data(tensor, Path(file.name).name, file.tell(), len(content))
    tensor.ClearField("raw_data")
    file.write(content)
    return tensor


if __name__ == "__main__":
    sys.exit(main())
