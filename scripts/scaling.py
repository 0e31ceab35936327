#!/usr/bin/env python3
"""The growth of the cost of optimizing: UNets of one, two and four times the blocks, seconds for each step.

    python scripts/scaling.py [--layers 2,5,11] [--json FILE]

The graphs have no weights, so nothing but the passes is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

REPEAT = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="2,5,11", help="layers a block; SD 1.5 has 2")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [measure(int(layers)) for layers in args.layers.split(",")]
    steps = list(rows[0]["seconds"])
    print("| step | " + " | ".join(f"{r['nodes']:,} nodes" for r in rows) + " |\n|---|" + "---|" * len(rows))
    for step in steps:
        print(f"| {step} | " + " | ".join(f"{r['seconds'][step]:.3f}" for r in rows) + " |")
    print("| all, s | " + " | ".join(f"{sum(r['seconds'].values()):.2f}" for r in rows) + " |")
    print("| ms a node | " + " | ".join(f"{1e3 * sum(r['seconds'].values()) / r['nodes']:.3f}" for r in rows) + " |")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


def measure(layers: int) -> dict[str, Any]:
    """Medians over a few runs on one graph: load, then every step."""
    import time

    from sdort.lowering.steps import OptimizeOptions, optimize_model
    from sdort.onnx_io.load import load_model
    from sdort.providers import load_target

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(layers, path)
        runs = []
        for _ in range(REPEAT):
            start = time.perf_counter()
            model = load_model(path, "unet")
            loaded = time.perf_counter() - start
            report = optimize_model(model, OptimizeOptions(load_target("cuda"), fp16=True))
            runs.append({"load": loaded, **report.seconds})
    seconds = {step: statistics.median(run[step] for run in runs) for step in runs[0]}
    return {"layers": layers, "nodes": report.nodes_before, "after": report.nodes_after, "seconds": seconds}


def export(layers: int, path: Path) -> None:
    """A narrow UNet of SD 1.5's structure with ``layers`` layers a block, as TorchScript writes it."""
    import warnings

    import torch
    from diffusers import UNet2DConditionModel

    torch.manual_seed(15)
    unet = UNet2DConditionModel(
        sample_size=16, cross_attention_dim=64, block_out_channels=(64, 64, 64, 64), layers_per_block=layers,
        attention_head_dim=4,
    ).eval()  # fmt: skip

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.unet = unet

        def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any) -> Any:
            return self.unet(sample, timestep, encoder_hidden_states, return_dict=False)[0]

    inputs = (torch.randn(2, 4, 16, 16), torch.tensor([3]), torch.randn(2, 7, 64))
    axes = {"sample": {0: "batch", 2: "height", 3: "width"}, "encoder_hidden_states": {0: "batch", 1: "sequence"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Step(), inputs, path, opset_version=14, dynamo=False, dynamic_axes=axes,
            input_names=["sample", "timestep", "encoder_hidden_states"], output_names=["out_sample"],
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
