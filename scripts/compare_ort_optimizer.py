#!/usr/bin/env python3
"""ONNX Runtime's own optimizer and sdort on the same full Stable Diffusion 1.5 UNet: seconds, peak memory, operators.

    python scripts/compare_ort_optimizer.py --work DIR [--exporter torchscript|dynamo] [--json FILE] [--keep]

DIR needs 15 GB. The UNet has the full architecture and seeded random weights. Each optimizer runs in a process of its
own, one after the other, with the arguments of ONNX Runtime's Stable Diffusion script (fp16, packed QKV and KV). ONNX
Runtime's optimizer crashes with numpy 2.4 (``int()`` of an array of one element); the one line is patched in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

EXPORT = """
import sys, torch
from diffusers import UNet2DConditionModel
torch.manual_seed(15)
model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768).eval()
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
source, out = sys.argv[1:]
options = FusionOptions("unet")
options.enable_packed_qkv = options.enable_packed_kv = options.enable_bias_add = True
model = optimize_model(source, model_type="unet", num_heads=0, hidden_size=0, opt_level=0,
                       optimization_options=options, use_gpu=True)
model.convert_float_to_float16(keep_io_types=True, op_block_list=["RandomNormalLike"])
model.save_model_to_file(out, use_external_data_format=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--exporter", choices=["torchscript", "dynamo"], default="torchscript")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="Leave the models in DIR.")
    args = parser.parse_args()
    source = args.work / args.exporter / "model.onnx"
    if not source.exists():
        source.parent.mkdir(parents=True, exist_ok=True)
        measured([sys.executable, "-c", EXPORT, str(source), args.exporter])
        pack(source)
    ort, ours = args.work / "ort" / "model.onnx", args.work / "sdort"
    for folder in (ort.parent, ours):
        shutil.rmtree(folder, ignore_errors=True)
    ort.parent.mkdir(parents=True)
    theirs = measured([sys.executable, "-c", ORT, str(source), str(ort)])
    command = [sys.executable, "-m", "sdort", "-q", "optimize", str(source), str(ours), "--provider", "cuda", "--fp16"]
    mine = measured(command)
    copied = copy_seconds(ours / "model.onnx.data", args.work / "copy")
    result = {
        "exporter": args.exporter,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "versions": {p: version(p) for p in ("onnxruntime", "onnx", "numpy", "torch")},
        "ort": {**theirs, **described(ort)},
        "sdort": {**mine, **described(ours / "model.onnx")},
        "copy_seconds": copied,
        "speed_ratio": theirs["seconds"] / mine["seconds"],
        "memory_ratio": theirs["peak_mb"] / mine["peak_mb"],
        "times_copy": mine["seconds"] / copied,
    }
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if not args.keep:
        shutil.rmtree(args.work)
    return 0


def measured(command: list[str]) -> dict[str, float]:
    """Run a command to its end: wall seconds and the peak resident memory of its process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{command[:4]} failed with status {os.waitstatus_to_exitcode(status)}")
    return {"seconds": seconds, "peak_mb": usage.ru_maxrss / 1024}


def pack(source: Path) -> None:
    """TorchScript writes one file a tensor; both optimizers get one data file."""
    import onnx

    loose = [p for p in source.parent.iterdir() if p.name not in (source.name, f"{source.name}.data")]
    if loose:
        model = onnx.load(source)
        onnx.save(model, source, save_as_external_data=True, location=f"{source.name}.data")
        for path in loose:
            path.unlink()


def copy_seconds(source: Path, target: Path) -> float:
    """Seconds to copy a file's bytes on this disk, through to the disk as the writer does; the median of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        with open(source, "rb") as read, open(target, "wb") as write:
            while block := read.read(16 << 20):
                write.write(block)
            write.flush()
            os.fsync(write.fileno())
        times.append(time.perf_counter() - start)
        target.unlink()
    return sorted(times)[1]


def described(path: Path) -> dict[str, Any]:
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    size = sum(p.stat().st_size for p in path.parent.iterdir())
    return {"nodes": len(graph.node), "megabytes": size / 1e6, "operators": dict(sorted(counts.items()))}


def show(result: dict[str, Any]) -> None:
    shown = ("MultiHeadAttention", "GroupNorm", "SkipGroupNorm", "NhwcConv", "LayerNormalization",
             "SkipLayerNormalization", "BiasSplitGelu", "BiasAdd", "Transpose", "Shape", "Unsqueeze")  # fmt: skip
    ort, ours = result["ort"], result["sdort"]
    print(f"SD 1.5 UNet, {result['exporter']}, {result['machine']}, {result['versions']}\n")
    print("| | ONNX Runtime's optimizer | sdort | |\n|---|---|---|---|")
    print(f"| seconds | {ort['seconds']:.1f} | {ours['seconds']:.1f} | {result['speed_ratio']:.1f} x |")
    print(f"| peak memory, MB | {ort['peak_mb']:.0f} | {ours['peak_mb']:.0f} | {result['memory_ratio']:.1f} x |")
    print(f"| nodes | {ort['nodes']} | {ours['nodes']} | |")
    for name in shown:
        print(f"| {name} | {ort['operators'].get(name, 0)} | {ours['operators'].get(name, 0)} | |")
    print(f"\nCopying the {ours['megabytes']:.0f} MB of the result takes {result['copy_seconds']:.1f} s here; "
          f"sdort's whole run is {result['times_copy']:.2f} times that.")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
