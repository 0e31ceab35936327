#!/usr/bin/env python3
"""ONNX Runtime's own optimizer and sdort on the same full Stable Diffusion 1.5 UNet: seconds, peak memory, operators.

    python scripts/compare_ort_optimizer.py --work DIR [--exporter torchscript|dynamo] [--rounds N] [--only-sdort]
                                            [--cold] [--json FILE] [--keep]

DIR needs 15 GB. The UNet has the full architecture and seeded random weights. Each optimizer runs in a process of its
own, one after the other, with the arguments of ONNX Runtime's Stable Diffusion script (fp16, packed QKV and KV). ONNX
Runtime's optimizer crashes with numpy 2.4 (``int()`` of an array of one element); the one line is patched in memory.

ONNX Runtime's optimizer runs once. sdort runs N times (3), in turn with what these bytes need at least: a copy (cp) of
the input, a copy of the result, and reading the input plus writing as many bytes as the result has. The input is in the
system's cache (with --cold it is not, and comes from the disk each time), and what one step wrote is on the disk before
the next one begins.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measuring import Arguments, timed

EXPORT = """
import sys, torch
from diffusers import UNet2DConditionModel
from sdort.demo.shapes import SHAPES
torch.manual_seed(15)
model = UNet2DConditionModel(**SHAPES["sd15"].denoiser).eval()
class Step(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = model
    def forward(self, sample, timestep, encoder_hidden_states):
        return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]
path, kind = sys.argv[1:]
args = (torch.randn(2, 4, 64, 64), torch.tensor([3]), torch.randn(2, 77, 768))
names = dict(input_names=["sample", "timestep", "encoder_hidden_states"], output_names=["out_sample"])
if kind == "torchscript":
    axes = {"sample": {0: "batch", 2: "height", 3: "width"}, "encoder_hidden_states": {0: "batch", 1: "sequence"}}
    torch.onnx.export(Step(), args, path, opset_version=17, dynamo=False, dynamic_axes=axes, **names)
else:
    dynamic = torch.export.Dim.DYNAMIC
    shapes = ({0: dynamic, 2: dynamic, 3: dynamic}, {}, {0: dynamic, 1: dynamic})
    program = torch.onnx.export(Step(), args, None, opset_version=18, dynamo=True, dynamic_shapes=shapes, **names)
    program.save(path, external_data=True)
"""

ORT = """
import inspect, sys, textwrap
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
# numpy 2.4 refuses int() of an array of one element, which get_num_heads relies on.
for name, module in list(sys.modules.items()):
    if name.endswith("fusion_attention_unet"):
        text = textwrap.dedent(inspect.getsource(module.FusionAttentionUnet.get_num_heads))
        exec(text.replace("int(num_heads)", "int(num_heads.item())"), vars(module))
        module.FusionAttentionUnet.get_num_heads = module.get_num_heads
source, out, kind, provider = sys.argv[1:]
options = FusionOptions(kind)
options.enable_packed_qkv = options.enable_packed_kv = options.enable_bias_add = provider != "cpu"
if provider == "cpu":  # which has no kernels for these
    options.enable_group_norm = options.enable_skip_group_norm = options.enable_nhwc_conv = False
    options.enable_bias_splitgelu = False
model = optimize_model(source, model_type=kind, num_heads=0, hidden_size=0, opt_level=0,
                       optimization_options=options, use_gpu=provider != "cpu")
model.convert_float_to_float16(keep_io_types=True, op_block_list=["RandomNormalLike"])
model.save_model_to_file(out, use_external_data_format=True)
"""


def main() -> int:
    parser = Arguments(__doc__, "--work --json")
    parser.add_argument("--exporter", choices=["torchscript", "dynamo"], default="torchscript")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-sdort", action="store_true", help="Compare with the copies only.")
    parser.add_argument("--cold", action="store_true", help="The input is read from the disk each time.")
    parser.add_argument("--keep", action="store_true", help="Leave the models in DIR.")
    args = parser.parse_args()
    source = args.work / args.exporter / "model.onnx"
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        measured([sys.executable, "-c", EXPORT, str(source), args.exporter])
        # In a process of its own: one that is started later would begin with this one's peak memory as its own.
        code = f"import compare_ort_optimizer as this, pathlib; this.pack(pathlib.Path({str(source)!r}))"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parent)
    result = {
        "exporter": args.exporter,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {p: version(p) for p in ("onnxruntime", "onnx", "numpy", "torch")},
        "sdort": run_sdort(source, args.work / "sdort", args.rounds, args.cold),
    }
    show_copies(result)
    if not args.only_sdort:
        result["ort"] = run_ort(source, args.work / "ort")
        show(result)
    finish(args, result)
    return 0


def finish(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write the result to ``--json``; remove the models without ``--keep``."""
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if not args.keep:
        shutil.rmtree(args.work)


def run_ort(source: Path, out: Path) -> dict[str, Any]:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.sync()
    return {
        **measured([sys.executable, "-c", ORT, str(source), str(out / "model.onnx"), "unet", "cuda"]),
        **described(out),
    }


def run_sdort(source: Path, out: Path, rounds: int, cold: bool) -> dict[str, Any]:
    """Optimize, and copy as many bytes, in turn; the medians."""
    data, made, copied = source.with_name(f"{source.name}.data"), out / "model.onnx.data", out.with_name("copy")
    command = [sys.executable, "-m", "sdort", "-q", "optimize", str(source), str(out), "--provider", "cuda", "--fp16"]
    command += ["--overwrite", "--report", str(out.with_name("report.json"))]
    read_and_write(data, Path(os.devnull), 0)
    runs: list[dict[str, float]] = []
    for _ in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        ready(data, cold)
        run = measured(command)
        steps = json.loads(out.with_name("report.json").read_text())["components"]["unet"]["seconds"]
        run |= {"graph_seconds": sum(steps.values()) - steps["write"], "write_seconds": steps["write"]}
        ready(data, cold)
        run["copy_input_seconds"] = made_in(copied, lambda: subprocess.run(["cp", data, copied], check=True))
        ready(made, cold)
        run["copy_result_seconds"] = made_in(copied, lambda: subprocess.run(["cp", made, copied], check=True))
        ready(data, cold)
        run["read_and_write_seconds"] = made_in(copied, lambda: read_and_write(data, copied, made.stat().st_size))
        runs.append(run)
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    least = {key: min(run[key] for run in runs) for key in runs[0]}
    size = data.stat().st_size / 1e6
    return {**medians, **described(out), "input_megabytes": size, "least": least, "rounds": runs}


def ready(data: Path, cold: bool) -> None:
    """Put on the disk what was written; take ``data`` out of the cache if ``cold``."""
    os.sync()
    if cold:
        with open(data, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def made_in(made: Path, work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes; what it made is removed."""
    seconds = timed(work)[1]
    made.unlink()
    return seconds


def read_and_write(source: Path, target: Path, size: int) -> None:
    """Read all of ``source`` and write ``size`` bytes, in blocks that stay in the processor's cache."""
    buffer = memoryview(bytearray(1 << 18))
    with open(source, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    with open(target, "wb", buffering=0) as file:
        while size:
            size -= file.write(buffer[:size])


def measured(command: list[str]) -> dict[str, float]:
    """Run a command to its end: wall seconds and the peak resident memory of its process."""

    def run() -> tuple[int, int, Any]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        return os.wait4(process.pid, 0)

    (_, status, usage), seconds = timed(run)
    if status:
        raise SystemExit(f"{command[:4]} failed with status {os.waitstatus_to_exitcode(status)}")
    return {"seconds": seconds, "peak_mib": usage.ru_maxrss / 1024}


def pack(source: Path) -> None:
    """TorchScript writes one file a tensor; both optimizers get one data file."""
    import onnx

    loose = [p for p in source.parent.iterdir() if p.name not in (source.name, f"{source.name}.data")]
    if loose:
        model = onnx.load(source)
        onnx.save(model, source, save_as_external_data=True, location=f"{source.name}.data")
        for path in loose:
            path.unlink()


def described(folder: Path) -> dict[str, Any]:
    import onnx

    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    size = sum(p.stat().st_size for p in folder.iterdir())
    return {"nodes": len(graph.node), "megabytes": size / 1e6, "operators": dict(sorted(counts.items()))}


def show_copies(result: dict[str, Any]) -> None:
    ours = result["sdort"]
    print(f"SD 1.5 UNet, {result['exporter']}, {result['machine']}, {result['versions']}\n")
    print(f"| {len(ours['rounds'])} rounds | median s | sdort takes | least s | sdort takes |\n|---|---|---|---|---|")
    rows = {
        "sdort optimize --fp16, the whole process": "seconds",
        "of it: reading the graph, passes": "graph_seconds",
        "of it: reading, rounding, writing weights": "write_seconds",
        f"cp of the input's {ours['input_megabytes']:.0f} MB": "copy_input_seconds",
        f"cp of the result's {ours['megabytes']:.0f} MB": "copy_result_seconds",
        "reading the input, writing as much as the result": "read_and_write_seconds",
    }
    for row, key in rows.items():
        cells = [f"{run[key]:.2f} | {run['seconds'] / run[key]:.2f} x" for run in (ours, ours["least"])]
        print(f"| {row} | {' | '.join(cells)} |")
    print(f"\nPeak memory of sdort: {ours['peak_mib']:.0f} MiB.\n")


def show(result: dict[str, Any]) -> None:
    shown = ("MultiHeadAttention", "GroupNorm", "SkipGroupNorm", "NhwcConv", "LayerNormalization",
             "SkipLayerNormalization", "BiasSplitGelu", "BiasAdd", "Transpose", "Shape", "Unsqueeze")  # fmt: skip
    ort, ours = result["ort"], result["sdort"]
    print("| | ONNX Runtime's optimizer | sdort | |\n|---|---|---|---|")
    for row, key, digits in (("seconds", "seconds", 1), ("peak memory, MiB", "peak_mib", 0)):
        print(f"| {row} | {ort[key]:.{digits}f} | {ours[key]:.{digits}f} | {ort[key] / ours[key]:.1f} x |")
    print(f"| nodes | {ort['nodes']} | {ours['nodes']} | |")
    for name in shown:
        print(f"| {name} | {ort['operators'].get(name, 0)} | {ours['operators'].get(name, 0)} | |")


if __name__ == "__main__":
    raise SystemExit(main())
