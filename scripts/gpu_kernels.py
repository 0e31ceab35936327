#!/usr/bin/env python3
"""The GPU kernels of one run of a component: how often each runs and how long it takes, and what no kernel takes.

    python scripts/gpu_kernels.py FAST [--component unet] [--provider cuda|rocm] [--batch 2] [--size 512x512]
        [--top 30] [--custom-ops FILE] [--provider-option NAME=VALUE]... [--json FILE]

FAST is a folder of sdort optimize. The component runs as `sdort bench` runs it; torch's profiler (CUPTI, roctracer)
records every kernel of the process. The time of a run in a device graph stands beside the sum of the kernels: the
difference is gaps between kernels. The exit code is 5 if the profiler saw no kernel, or kernels that take longer than
twice the run.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch  # loads the CUDA libraries that ONNX Runtime needs
from measuring import Arguments, in_turns

import sdort
from sdort.engines.onnx import OnnxEngine
from sdort.errors import SdortError
from sdort.options.number_ranges import parse_size
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.workload.cases import Case

RUNS, WARMUP, REPEAT = 5, 5, 30
MOST = 2.0
"""Times the run in a graph that its kernels may take together when they run one by one."""


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    try:
        graph, kernels = timed(args), profiled(args)
    except SdortError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    total = sum(microseconds for _, microseconds in kernels.values())
    print(f"{device_name()}: {args.component}, batch {args.batch}, {args.size}")
    print(f"a run in a device graph {graph:,.0f} us; kernels {total:,.0f} us, the rest {graph - total:,.0f} us")
    print(f"{'us':>9} {'launches':>8}  kernel")
    ranked = sorted(kernels.items(), key=lambda item: -item[1][1])
    for name, (count, microseconds) in ranked[: args.top]:
        print(f"{microseconds:9.1f} {count:8.0f}  {name}")
    rest = ranked[args.top :]
    print(f"{sum(t for _, (_, t) in rest):9.1f} {sum(n for _, (n, _) in rest):8.0f}  {len(rest)} other kernels")
    if args.json:
        args.json.write_text(json.dumps({"graph_us": graph, "kernels": kernels}, indent=2))
    if not 0 < total < MOST * graph:
        print("the kernels are not those of these runs: was the profiler allowed to see them?", file=sys.stderr)
        return 5
    return 0


def device_name() -> str:
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "no GPU"


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "pipeline --provider --size --custom-ops --json")
    parser.add_argument("--component", default="unet")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--provider-option", action="append", default=[])
    return parser.parse_args()


def runner(args: argparse.Namespace, graph: bool) -> Any:
    """The component, ready to run on inputs on the device."""
    given = dict(option.split("=", 1) for option in args.provider_option)
    options = RuntimeOptions(args.provider, graph=graph, custom_ops=args.custom_ops, provider_options=given)
    height, width = parse_size(args.size)
    engine = OnnxEngine(args.pipeline, choose_provider(options)[0], options)
    run = engine.prepare(Case(args.component, args.batch, height, width), 1, None)
    for _ in range(WARMUP):
        run()
    return run


def timed(args: argparse.Namespace) -> float:
    """Microseconds of a run that a device graph replays, in the median; where there are no graphs, of a plain run."""
    graphs = bool(choose_provider(RuntimeOptions(args.provider))[0].graph)
    return 1e6 * statistics.median(in_turns({"run": runner(args, graph=graphs)}, REPEAT)["run"])


def profiled(args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Launches and microseconds of each kernel in a run, by a name without arguments."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in recorded(runner(args, graph=False)):
        found[short(name)].append(microseconds)
    return {name: (len(times) / RUNS, sum(times) / RUNS) for name, times in found.items()}


def recorded(run: Callable[[], object]) -> list[tuple[str, float]]:
    """The kernels of :data:`RUNS` runs in order, each with its microseconds, as a GPU's profiler sees them."""
    if not torch.cuda.is_available():
        return []
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    on_gpu = (event for event in profile.events() if event.device_type != torch.autograd.DeviceType.CPU)
    return [(event.name, event.device_time) for event in on_gpu]


def short(name: str) -> str:
    """A kernel's name without return type, arguments and most of its template parameters."""
    name = re.sub(r"^void ", "", name).split("(")[0] if not name.startswith("Mem") else name
    return re.sub(r"(onnxruntime::(contrib::)?cuda::)|(\(anonymous namespace\)::)", "", name)[:110]


if __name__ == "__main__":
    raise SystemExit(main())
