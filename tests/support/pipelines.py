"""Tiny diffusers directories of every family, and their exports, shared by the tests of ``sdort export``.

Exports go through the real command path. Traces live in pytest's cache folder under a hash of the exporter's
sources, so test processes and later runs share them; ``pytest --cache-clear`` drops them.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import parsed_once

from sdort.exporter.command import export
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.template import Template
from sdort.exporter.trace_cache import TraceCache

UNETS: dict[str, dict[str, Any]] = {
    # Linear projections and nine channels, as in SD 2's inpainting model; without a VAE, which is that of all families.
    # One level, which takes half as long to trace: SDXL's has two, and a number of heads for each.
    "sd2_inpainting": {
        "block_out_channels": (32,),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D",),
        "up_block_types": ("CrossAttnUpBlock2D",),
        "use_linear_projection": True,
        "attention_head_dim": [4],
        "in_channels": 9,
        "cross_attention_dim": 48,
    },
}
TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
    "bos_token_id": 298,
    "eos_token_id": 299,
    "pad_token_id": 0,
}


def make_pipeline(family: str, folder: Path) -> None:
    """Save a tiny pipeline of a family as diffusers does; all parameters are random and distinct."""
    from diffusers import UNet2DConditionModel
    from support.models import randomize
    from transformers import CLIPTextConfig, CLIPTextModel

    if family == "sd1":
        from sdort.demo.random_pipeline import make_random

        make_random("tiny", folder)
        return
    if family == "sdxl":
        from support import tiny_sdxl

        tiny_sdxl.build_diffusers(folder)
        edit_index(folder, _name_or_path="/home/somebody/checkpoint")
        return
    if family.startswith("flux-"):
        from support import tiny_flux

        tiny_flux.build_diffusers(folder, family.removeprefix("flux-"))
        return
    if family == "chroma":
        from support import tiny_chroma

        tiny_chroma.build_diffusers(folder)
        return
    parts: dict[str, Any] = {
        "unet": UNet2DConditionModel(**UNETS[family]),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT)),
    }
    for name, part in parts.items():
        randomize(part)
        part.save_pretrained(folder / name)
    index: dict[str, Any] = {
        "_class_name": "StableDiffusionInpaintPipeline",
        **{name: [type(part).__module__.partition(".")[0], type(part).__name__] for name, part in parts.items()},
    }
    (folder / "model_index.json").write_text(json.dumps(index))


def edit_index(folder: Path, **entries: Any) -> None:
    """Set entries of a pipeline's ``model_index.json``."""
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@dataclass
class Exported:
    """A checkpoint and its export."""

    family: str
    checkpoint: Path
    out: Path
    traces: Path

    def load(self, component: str) -> Any:
        """The component as a torch model, read by diffusers or transformers."""
        import diffusers
        import transformers

        folder = "vae" if component.startswith("vae") else component
        library, name = json.loads((self.checkpoint / "model_index.json").read_text())[folder]
        model = getattr(diffusers if library == "diffusers" else transformers, name).from_pretrained(
            self.checkpoint / folder
        )
        return model.eval()

    def run(self, component: str, **inputs: Any) -> dict[str, Any]:
        """The ONNX component's outputs by name."""
        return run_onnx(self.out / component / "model.onnx", **inputs)


def run_onnx(path: Path, **inputs: Any) -> dict[str, Any]:
    """Run a model with ONNX Runtime on the CPU; inputs are torch tensors or arrays."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {key: np.asarray(value) for key, value in inputs.items()}), strict=True))


def trace_folder(config: pytest.Config) -> Path:
    """Where the exporter keeps its traces during tests."""
    return Path(config.cache.mkdir("traces"))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Exports of this process and of others wait for each other's traces: two would trace the same graph.

    Each graph has a lock of its own, from the look for its trace until that is kept; graphs of other architectures are
    traced meanwhile. One is held at a time, so none waits in a circle.
    """
    locks = folder.with_name("trace-locks")
    locks.mkdir(exist_ok=True)
    load, store = TraceCache.load, TraceCache.store
    with ExitStack() as held, pytest.MonkeyPatch.context() as patch:

        def load_or_lock(cache: TraceCache, component: ComponentSpec, opset: int) -> Template | None:
            name = cache._traces.path(component.name, cache._key(component, opset)).name
            fcntl.flock(held.enter_context(open(locks / name, "w")), fcntl.LOCK_EX)
            template = load(cache, component, opset)
            if template:
                held.close()
            else:
                parsed_once.keep_signatures()
            return template

        def store_and_unlock(cache: TraceCache, component: ComponentSpec, opset: int, template: Template) -> None:
            store(cache, component, opset, template)
            held.close()

        patch.setattr(TraceCache, "load", load_or_lock)
        patch.setattr(TraceCache, "store", store_and_unlock)
        yield


def export_family(family: str, folder: Path, traces: Path) -> Exported:
    """Make a family's checkpoint in ``folder`` and export all of it."""
    made = Exported(family, folder / "checkpoint", folder / "onnx", traces)
    made.checkpoint.mkdir()
    make_pipeline(family, made.checkpoint)
    with locked(traces):
        export(made.checkpoint, made.out, cache_dir=traces)
    return made
