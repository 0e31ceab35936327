#!/usr/bin/env python3
"""Convolutional networks with the channels-last regions that sdort chooses, and without any, side by side.

    python scripts/layout_benchmark.py --work DIR [--provider cuda|rocm|cpu] [--nets rrdb,taesd] [--size 256]
        [--scale 1] [--json FILE]

Networks that run beside Stable Diffusion, with their true widths and depths and seeded random weights, fp16, static
sizes: an upscaler (RRDBNet, Real-ESRGAN), TAESD's decoder and encoder, a line extractor (ResNet generator), a mobile
classifier with squeeze and excitation, and a U-shaped segmenter. Each output is compared with torch in fp32 first.
--scale 8 divides the widths of those networks that are written here and their depths. On the CPU there are no regions:
that only tries the script.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from measuring import Arguments, environment, in_turns, why
from ort_peer import OrtRunner
from torch import nn

from sdort.benchmark.timing import statistics

NO_REGIONS = ("nhwc",)
WARMUP, REPEAT = 5, 30
MOST = 2e-2
"""Of a difference from torch in fp32, norm over norm."""


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, **more: Any) -> nn.Module:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, **more)


class Residual(nn.Module):  # type: ignore[misc]
    """x + scale * body(x)."""

    def __init__(self, *body: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.body, self.scale = nn.Sequential(*body), scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) * self.scale


class Dense(nn.Module):  # type: ignore[misc]
    """Five convolutions, each of all that was computed before (https://arxiv.org/abs/1809.00219)."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        outputs = (growth, growth, growth, growth, width)
        self.convs = nn.ModuleList(conv(width + i * growth, out) for i, out in enumerate(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x]
        for layer in self.convs[:-1]:
            parts.append(nn.functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + self.convs[-1](torch.cat(parts, 1)) * 0.2


def rrdb(scale: int) -> nn.Module:
    """RRDBNet: 23 blocks of three dense ones, four times the size."""
    width = 64 // scale
    block = [Residual(*(Dense(width, width // 2) for _ in range(3)), scale=0.2) for _ in range(max(1, 23 // scale))]
    larger = [layer for _ in range(2) for layer in (nn.Upsample(scale_factor=2), conv(width, width), nn.LeakyReLU(0.2))]
    end = [conv(width, width), nn.LeakyReLU(0.2), conv(width, 3)]
    return nn.Sequential(conv(3, width), Residual(*block, conv(width, width)), *larger, *end)


def lineart(scale: int) -> nn.Module:
    """The generator of informative drawings: instance norms, three residual blocks."""
    width = 64 // scale

    def normed(layer: nn.Module, channels: int) -> list[nn.Module]:
        return [layer, nn.InstanceNorm2d(channels), nn.ReLU()]

    def reflected(inputs: int, outputs: int, size: int) -> nn.Module:
        return nn.Sequential(nn.ReflectionPad2d(size // 2), nn.Conv2d(inputs, outputs, size))

    def residual() -> nn.Module:
        first, second = (normed(reflected(width * 4, width * 4, 3), width * 4) for _ in range(2))
        return Residual(*first, *second[:-1])

    down = [layer for n in (1, 2) for layer in normed(conv(width * n, width * 2 * n, 3, 2), width * 2 * n)]
    up = [
        layer for n in (2, 1) for layer in normed(nn.ConvTranspose2d(width * 2 * n, width * n, 3, 2, 1, 1), width * n)
    ]
    start = normed(reflected(3, width, 7), width)
    blocks = [residual() for _ in range(3)]
    return nn.Sequential(*start, *down, *blocks, *up, reflected(width, 1, 7), nn.Sigmoid())


class Excitation(nn.Module):  # type: ignore[misc]
    """x times a gate for each channel (https://arxiv.org/abs/1709.01507)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        narrow = max(1, width // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), conv(width, narrow, 1), nn.ReLU(), conv(narrow, width, 1), nn.Hardsigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


def mobile(scale: int) -> nn.Module:
    """Inverted residual blocks as MobileNet V3 has them."""
    width, wide = 64 // scale, 256 // scale

    def block() -> nn.Module:
        middle = [conv(wide, wide, groups=wide), nn.Hardswish(), Excitation(wide)]
        return Residual(conv(width, wide, 1), nn.Hardswish(), *middle, conv(wide, width, 1))

    return nn.Sequential(conv(3, width, 3, 2), nn.Hardswish(), *(block() for _ in range(8)))


class Segmenter(nn.Module):  # type: ignore[misc]
    """Four levels of convolutions that meet again on the way up (https://arxiv.org/abs/1505.04597)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start = conv(3, width)
        self.down = nn.ModuleList(conv(width, width) for _ in range(4))
        self.up = nn.ModuleList(conv(2 * width, width) for _ in range(4))
        self.end = conv(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, levels = self.start(x).relu(), []
        for layer in self.down:
            levels.append(layer(x).relu())
            x = nn.functional.max_pool2d(levels[-1], 2)
        for layer in self.up:
            x = layer(torch.cat([nn.functional.interpolate(x, scale_factor=2), levels.pop()], 1)).relu()
        return self.end(x).sigmoid()


def taesd(half: str) -> nn.Module:
    from diffusers import AutoencoderTiny

    return getattr(AutoencoderTiny(), half)


NETS: dict[str, tuple[Callable[[int], nn.Module], int, int]] = {
    "rrdb": (rrdb, 3, 1),
    "taesd": (lambda scale: taesd("decoder"), 4, 8),
    "taesd-encoder": (lambda scale: taesd("encoder"), 3, 1),
    "lineart": (lineart, 3, 1),
    "mobile": (mobile, 3, 1),
    "segmenter": (lambda scale: Segmenter(64 // scale), 3, 1),
}
"""How a network is made, the channels of its input, and how often the side of that goes into --size."""


def main() -> int:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    args.device = "cpu" if args.provider == "cpu" else "cuda"
    where = environment(args.provider)
    print(json.dumps(where), flush=True)
    rows = [row for name in args.nets.split(",") for row in benchmark(name, args)]
    if args.json:
        args.json.write_text(json.dumps({"environment": where, "rows": rows}, indent=2))
    return 0 if all(row["ok"] for row in rows) else 1


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--work --provider --json", providers="cuda rocm cpu")
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--scale", type=int, default=1)
    return parser.parse_args()


def benchmark(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a network, each as soon as it is measured."""
    make, channels, smaller = NETS[name]
    side = args.size // smaller
    torch.manual_seed(0)
    net = make(args.scale).eval()
    x = torch.randn(1, channels, side, side)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 indeed
    with torch.inference_mode():
        reference = net.to(args.device)(x.to(args.device)).float()
    exported = export(net.cpu(), x, args.work / f"{name}-{args.size}-{args.scale}")
    for layout, disable in (("as chosen", ()), ("channels first", NO_REGIONS)):
        row: dict[str, Any] = {"net": name, "size": args.size, "layout": layout}
        try:
            model = optimized(exported, args, disable)
            row |= counts(model)
            runner = OrtRunner(model, args.provider, {"x": x}, reference.shape, graph=args.provider != "cpu")
            row |= measure(runner, reference.cpu())
        except Exception as error:  # one failure leaves the others their numbers
            row |= {"ok": False, "error": why(error)}
        print(line(row), flush=True)
        yield row


def measure(run: OrtRunner, reference: torch.Tensor) -> dict[str, Any]:
    """Times in milliseconds, and how far the output is from the reference and from itself once it ran again."""
    run()
    (output,) = map(torch.from_numpy, run.result().values())
    error = float((output - reference).norm() / reference.norm())
    times = statistics([1e3 * each for each in in_turns({"run": run}, REPEAT, warmup=WARMUP)["run"]])
    (again,) = map(torch.from_numpy, run.result().values())
    return {
        "median_ms": times.median, "min_ms": times.minimum, "p90_ms": times.p90, "error": error,
        "rerun": float((again - output).norm() / reference.norm()), "ok": error < MOST,
    }  # fmt: skip


def export(net: nn.Module, x: torch.Tensor, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), folder / "model.onnx", input_names=["x"], output_names=["y"], opset_version=17, dynamo=False
        )
    return folder / "model.onnx"


def optimized(exported: Path, args: argparse.Namespace, disable: Sequence[str]) -> Path:
    from sdort.optimizer.command import optimize

    out = exported.parent / "-".join([args.provider, *disable])
    optimize(
        exported, out, provider=args.provider, fp16=True, any_graph=True, allow_misses=True, sdort_ops=False,
        disable=disable, overwrite=True,
    )  # fmt: skip
    return next(out.rglob("*.onnx"))


def counts(model: Path) -> dict[str, int]:
    operators = Counter(node.op_type for node in onnx.load(model, load_external_data=False).graph.node)
    return {"nodes": operators.total(), "transposes": operators["Transpose"], "nhwc": operators["NhwcConv"]}


def line(row: dict[str, Any]) -> str:
    what = f"{row['net']:14} {row['size']:5} {row['layout']:16}"
    if "median_ms" not in row:
        return f"{what} {row['error']}"
    graph = f"{row['nodes']:5} nodes {row['transposes']:3} transposes {row['nhwc']:4} NhwcConv"
    return f"{what} {graph} {row['median_ms']:9.3f} ms  error {row['error']:.1e}{'' if row['ok'] else '  WRONG'}"


if __name__ == "__main__":
    raise SystemExit(main())
