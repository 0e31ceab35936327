#!/usr/bin/env python3
"""What a UNet's linear layers take in FP16, and what FP8 and a GEGLU in its product's end would take.

    python scripts/linears_benchmark.py [--family sdxl|sd15|tiny] [--provider cuda|rocm|cpu] [--size 1024x1024]
        [--batch 2] [--repeat 20] [--json FILE]

The layers are those of the transformer blocks that run in each step: keys and values of the prompt are made before.
Every shape is timed alone, in a CUDA or HIP graph, each call with weights of its own, which come from memory as they do
in a step. FP8 is E4M3 with one scale a tensor and the bias in the product (torch._scaled_mm). Of layers that read a
normalization or a GEGLU the rounding to FP8 is counted as free, as that kernel would write FP8; where an input comes
from attention or a sum, a kernel that rounds is timed. So the FP8 column is a bound that a perfect implementation
reaches. GEGLU in the product's end is a kernel of Triton, beside the product of the GPU's library and a kernel of
TorchInductor. The exit code is 1 if a result is further from one in float64 than its bound.

--provider cpu --family tiny --size 64x64 tries it without a GPU; its times say nothing, and it has no Triton.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from measuring import Arguments, timed
from torch import Tensor, nn
from torch.nn import functional

from sdort.console import show
from sdort.demo.shapes import SHAPES
from sdort.options.number_ranges import parse_size
from sdort.tables import Table

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

FP8 = torch.float8_e4m3fn
MOST = {"fp16": 2e-3, "fp8": 6e-2, "geglu": 3e-3}
"""Distances from float64 (norm over norm) on normal values. E4M3 has three bits: 3 % a factor."""
COLUMNS = ("fp16", "fp8", "rounding", "apart", "joined")
"""Microseconds of a call; the last two are of GEGLU's layers."""
COLD = 128 * 2**20
"""Bytes of weights that a replay goes through: more than a cache holds."""


@dataclass(frozen=True)
class Layer:
    """A linear layer of a step: ``rows`` x ``inner`` to ``rows`` x ``outer``; ``reads`` is what made its input."""

    rows: int
    inner: int
    outer: int
    reads: str
    geglu: bool = False


@dataclass
class Row:
    layer: Layer
    count: int
    fp16: float = 0.0
    fp8: float = 0.0
    rounding: float = 0.0
    apart: float = 0.0
    """GEGLU as the product of the library and a kernel, microseconds."""
    joined: float | None = None
    """GEGLU in the product's end, microseconds."""


def layers_of(family: str, batch: int, size: tuple[int, int]) -> Counter[Layer]:
    """The layers of one step, and how often each runs."""
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.transformers.transformer_2d import Transformer2DModel

    with torch.device("meta"):
        unet = UNet2DConditionModel(**SHAPES[family].denoiser)
        found: Counter[Layer] = Counter()

        def watch(module: nn.Linear, reads: str, geglu: bool = False) -> None:
            def seen(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
                found[Layer(inputs[0].shape[:-1].numel(), inputs[0].shape[-1], output.shape[-1], reads, geglu)] += 1

            module.register_forward_hook(seen)

        for block in unet.modules():
            if isinstance(block, BasicTransformerBlock):
                own = block.attn1
                for module in (own.to_q, own.to_k, own.to_v, block.attn2.to_q):
                    watch(module, "normalization")
                watch(block.ff.net[0].proj, "normalization", geglu=True)
                watch(block.ff.net[2], "GEGLU")
                for attention in (own, block.attn2):
                    watch(attention.to_out[0], "attention")
            elif isinstance(block, Transformer2DModel) and isinstance(block.proj_in, nn.Linear):
                watch(block.proj_in, "normalization")
                watch(block.proj_out, "sum")
        width, height = size[0] // 8, size[1] // 8
        sample = torch.empty(batch, unet.config.in_channels, height, width)
        words = torch.empty(batch, 77, unet.config.cross_attention_dim)
        added = None
        if unet.config.addition_embed_type == "text_time":
            numbers = unet.config.projection_class_embeddings_input_dim - 6 * unet.config.addition_time_embed_dim
            added = {"text_embeds": torch.empty(batch, numbers), "time_ids": torch.empty(batch, 6)}
        unet(sample, torch.ones(batch), words, added_cond_kwargs=added)
    return found


class Clock:
    """Microseconds of one call among many, replayed as a graph where there is a GPU."""

    def __init__(self, device: str, repeat: int) -> None:
        self.device, self.repeat = device, repeat

    def __call__(self, calls: Iterable[Callable[[], object]]) -> float:
        work = list(calls)
        for call in work[:2]:
            call()
        if self.device == "cpu":
            return 1e6 * float(statistics.median(timed(work[0])[1] for _ in range(self.repeat)))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in work:
                call()
        times = []
        for _ in range(self.repeat + 3):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / len(work))
        return float(statistics.median(times[3:]))


def rounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Values in FP8 and their scale, a tensor of one float."""
    scale = (values.abs().max().float() / torch.finfo(FP8).max).reshape(())
    return (values.float() / scale).to(FP8), scale


def fp8_product(x: Tensor, x_scale: Tensor, w: Tensor, w_scale: Tensor, bias: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), x_scale, w_scale, bias=bias, out_dtype=bias.dtype, use_fast_accum=True)


def geglu(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * functional.gelu(gate)


def error(got: Tensor, right: Tensor) -> float:
    return float((got.double() - right).norm() / right.norm())


def measure(layer: Layer, count: int, clock: Clock, dtype: torch.dtype, joined: Any, worst: dict[str, float]) -> Row:
    device, row = clock.device, Row(layer, count)
    copies = 1 if device == "cpu" else max(4, min(64, COLD // (2 * layer.inner * layer.outer)))
    placed: Any = {"device": device, "dtype": dtype}
    weights = [torch.randn(layer.outer, layer.inner, **placed) / layer.inner**0.5 for _ in range(copies)]
    x, bias = torch.randn(layer.rows, layer.inner, **placed), torch.randn(layer.outer, **placed)
    right = x.double() @ weights[0].double().t() + bias.double()

    def note(name: str, got: Tensor, wanted: Tensor) -> None:
        worst[name] = max(worst.get(name, 0.0), error(got, wanted))

    note("fp16", functional.linear(x, weights[0], bias), right)
    row.fp16 = clock(partial(functional.linear, x, weight, bias) for weight in weights)
    x8, scale = rounded(x)
    eights = [rounded(weight) for weight in weights]
    note("fp8", fp8_product(x8, scale, *eights[0], bias), right)
    row.fp8 = clock(partial(fp8_product, x8, scale, *weight, bias) for weight in eights)
    if layer.reads in ("attention", "sum"):
        compiled = torch.compile(lambda values, by: (values * by).to(FP8), disable=device == "cpu")
        row.rounding = clock([partial(compiled, x, (1 / scale).to(dtype))] * copies)
    if layer.geglu:
        gated = torch.compile(geglu, disable=device == "cpu")

        def apart(weight: Tensor) -> Tensor:
            return gated(functional.linear(x, weight, bias))

        row.apart = clock(partial(apart, weight) for weight in weights)
        if joined:
            row.joined = joined(x, weights, bias, clock, partial(note, "geglu", wanted=geglu(right)))
    return row


def triton_geglu() -> Any:
    """The kernel of GEGLU in a product's end; None without Triton."""
    if triton is None:
        return None
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit  # type: ignore[untyped-decorator]
    def kernel(  # type: ignore[no-untyped-def]
        x, w, y, bias, rows, outer, inner,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    ):  # fmt: skip
        number, across, down = tl.program_id(0), tl.cdiv(outer, BN), tl.cdiv(rows, BM)
        first = number // (GROUP * across) * GROUP
        height = min(down - first, GROUP)
        row = (first + number % (GROUP * across) % height) * BM
        column = number % (GROUP * across) // height * BN
        value = tl.zeros((BM, BN), tl.float32)
        gate = tl.zeros((BM, BN), tl.float32)
        for k in range(0, inner, BK):
            tile = x.load([row, k])
            value = tl.dot(tile, w.load([column, k]).T, value)
            gate = tl.dot(tile, w.load([outer + column, k]).T, gate)
        columns = column + tl.arange(0, BN)
        value += tl.load(bias + columns)[None, :].to(tl.float32)
        gate += tl.load(bias + outer + columns)[None, :].to(tl.float32)
        gated = value * (0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476)))
        y.store([row, column], gated.to(tl.float16))

    tried = [(128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 64, 64, 4, 4), (256, 64, 64, 8, 3), (64, 128, 64, 4, 4)]

    def run(x: Tensor, weights: list[Tensor], bias: Tensor, clock: Clock, check: Callable[[Tensor], None]) -> float:
        (rows, inner), outer = x.shape, weights[0].shape[0] // 2
        y = torch.empty(rows, outer, device=x.device, dtype=x.dtype)
        best = float("inf")
        for bm, bn, bk, warps, stages in tried:
            blocks = (triton.cdiv(rows, bm) * triton.cdiv(outer, bn),)
            described, how = TensorDescriptor.from_tensor, (bm, bn, bk, warps, stages)
            ends = described(x, [bm, bk]), described(y, [bm, bn])

            def call(weight: Any, blocks: Any = blocks, ends: Any = ends, how: Any = how) -> None:
                kernel[blocks](
                    ends[0], weight, ends[1], bias, rows, outer, inner,
                    BM=how[0], BN=how[1], BK=how[2], GROUP=8, num_warps=how[3], num_stages=how[4],
                )  # fmt: skip

            try:
                call(described(weights[0], [bn, bk]))
            except Exception as problem:  # a shape that the GPU has no room for
                print(f"{bm}x{bn}x{bk}, {stages} stages: {type(problem).__name__}: {problem}", file=sys.stderr)
                continue
            check(y)
            best = min(best, clock(partial(call, described(weight, [bn, bk])) for weight in weights))
        return best

    return run


def main() -> int:
    args = arguments()
    if args.provider != "cpu" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here: try --provider cpu --family tiny --size 64x64")
    torch.manual_seed(0)
    device = "cpu" if args.provider == "cpu" else "cuda"
    clock, dtype = Clock(device, args.repeat), torch.bfloat16 if device == "cpu" else torch.float16
    joined = triton_geglu() if device == "cuda" else None
    worst: dict[str, float] = {}
    table = Table("", [">rows", ">inner", ">outer", "reads", ">times", *(f">{name}" for name in COLUMNS)])
    rows = []
    for layer, count in sorted(layers_of(args.family, args.batch, parse_size(args.size)).items(), key=str):
        row = measure(layer, count, clock, dtype, joined, worst)
        rows.append(row)
        times = [f"{getattr(row, name):.1f}" if getattr(row, name) else "" for name in COLUMNS]
        table.add_row(str(layer.rows), str(layer.inner), str(layer.outer), layer.reads, str(count), *times)
    show(table)
    sums = {name: sum((getattr(row, name) or 0.0) * row.count for row in rows) for name in COLUMNS}
    for name, total in sums.items():
        print(f"{name:12} {total:10.0f} us a step")
    for name, value in worst.items():
        print(f"{name:12} {value:10.1e} from float64, at most {MOST[name] if dtype == torch.float16 else 1e-1:.0e}")
    if args.json:
        args.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "sums": sums, "errors": worst}))
    return int(any(value > (MOST[name] if dtype == torch.float16 else 1e-1) for name, value in worst.items()))


def arguments() -> argparse.Namespace:
    names = "--family --provider --size --repeat --json"
    parser = Arguments(__doc__, names, "cuda rocm cpu", family="sdxl", size="1024x1024", repeat=20)
    parser.add_argument("--batch", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
