"""Reference images of diffusers' own pipeline, for exports, which have no ONNX original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdort.engines.torch import TorchEngine
from sdort.engines.torch_runners import PipelineRunner
from sdort.generation.images import Generated
from sdort.generation.request import Request
from sdort.providers import CPU
from sdort.workload.cases import WHOLE_PIPELINE


def generate_in_torch(checkpoint: Path, requests: Sequence[Request]) -> dict[tuple[str, int], Generated]:
    """Images in fp32 on the CPU, by prompt and seed.

    Raises:
        BadModelError: diffusers does not load the checkpoint.
    """
    engine = TorchEngine(checkpoint, CPU, "float32", compiled=False)
    pipeline, size = engine.pipeline(WHOLE_PIPELINE), engine.default_size()
    images = {}
    for request in requests:
        for seed in range(request.seed, request.seed + request.num_images):
            runner = PipelineRunner(pipeline, replace(request, seed=seed, num_images=1), size, engine.guard)
            runner()
            images[request.prompt, seed] = runner.result()[0]
    engine.close()
    return images
