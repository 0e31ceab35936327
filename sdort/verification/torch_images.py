"""Reference images of diffusers' own pipeline, for exports, which have no ONNX original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdort.engines.torch import TorchEngine
from sdort.engines.torch_runners import PipelineRunner
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.graph.signature import TensorSpec
from sdort.providers import CPU
from sdort.workload.cases import WHOLE_PIPELINE


def generate_in_torch(
    checkpoint: Path, requests: Sequence[Request], context: TensorSpec | None = None
) -> dict[tuple[str, int], Generated]:
    """Images in fp32 on the CPU, by prompt and seed.

    Args:
        context: ``encoder_hidden_states`` of the UNet that they are compared with, which may read fewer tokens.

    Raises:
        BadModelError: diffusers does not load the checkpoint.
    """
    engine = TorchEngine(checkpoint, CPU, "float32")
    pipeline, (height, width) = engine.pipeline(WHOLE_PIPELINE), engine.default_size()
    images = {}
    for request in requests:
        for seed in range(request.seed, request.seed + request.num_images):
            one = replace(request, seed=seed, num_images=1)
            size = one.height or height, one.width or width
            runner = PipelineRunner(pipeline, one, size, engine.guard, context, engine.family.denoiser)
            runner()
            images[request.prompt, seed] = runner.result()[0]
    engine.close()
    return images
