"""A family that nothing knows of goes from a checkpoint to an image by one file: its own.

This file is also the program that drives the commands: families are found when they are first asked for, so that the
made-up one needs a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sdort.families.family import ComfyUI, Denoiser, Encoder, Family, Latents, PlainText, Roles

TESTS = Path(__file__).parents[1]
FOLDER = TESTS / "support" / "families"
PAGE = TESTS.parent / "docs" / "add-a-family.md"
PROMPT = "a red square above a blue circle"


def build_checkpoint(folder: Path) -> None:
    """A tiny checkpoint of the family, as diffusers saves a pipeline."""
    import torch
    from diffusers import AutoencoderTiny, EulerDiscreteScheduler
    from support import models, tiny_sdxl
    from support.tiny_pipeline import SCHEDULER, byte_tokenizer
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    mosaic: Any = sys.modules["sdort.families.data.mosaic"]
    torch.manual_seed(models.SEED)
    levels: dict[str, Any] = {f"{half}_block_out_channels": (8, 8) for half in ("encoder", "decoder")} | {
        f"num_{half}_blocks": (1, 1) for half in ("encoder", "decoder")
    }
    parts = {
        "tiler": mosaic.TilerModel(**mosaic.CONFIG),
        "vae": AutoencoderTiny(**levels, latent_channels=16),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**tiny_sdxl.TEXT)),
        "text_encoder_2": CLIPTextModelWithProjection(CLIPTextConfig(**tiny_sdxl.TEXT_2)),
    }
    index = {"_class_name": "MosaicPipeline", "scheduler": ["diffusers", "EulerDiscreteScheduler"]}
    for name, part in parts.items():
        models.randomize(part.eval())
        part.save_pretrained(folder / name)
        index[name] = ["transformers" if name.startswith("text") else "diffusers", type(part).__name__]
    for name in ("tokenizer", "tokenizer_2"):
        byte_tokenizer(folder / name).save_pretrained(folder / name)
        index[name] = ["transformers", "CLIPTokenizer"]
    beta = {key: value for key, value in SCHEDULER.items() if key.startswith(("beta", "num"))}
    EulerDiscreteScheduler(**beta).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(index))


def drive(root: Path, traces: str) -> None:
    """Every command of the way, in ``root``; what they made is told in ``seen.json``."""
    from sdort.families import data

    data.__path__.append(str(FOLDER))
    from sdort.cli import main

    def command(*words: str) -> None:
        sys.argv = ["sdort", *words]
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"{words}: exit code {ended.code}") from ended

    os.chdir(root)
    build_checkpoint(Path("checkpoint"))
    command("export", "checkpoint", "model", "--cache-dir", traces)
    command("optimize", "model", "fast", "--provider", "cpu", "--report", "optimized.json")
    command("run", "fast", "--provider", "cpu", "--prompt", PROMPT, "--steps", "3", "--seed", "1", "-o", "a.png")
    more = ("--negative-prompt", "blue", "--init-image", "a.png", "--size", "80x64")
    command("run", "fast", "--provider", "cpu", "--prompt", PROMPT, "--steps", "3", *more, "-o", "b.png")
    command("verify", "fast", "--provider", "cpu", "--steps", "2", "--seeds", "1", "--component", "tiler", "--images")
    few = ("--steps", "2", "--repeat", "2", "--warmup", "1")
    command("bench", "fast", "--provider", "cpu", "--component", "tiler", "--component", "pipeline", *few)
    Path("seen.json").write_text(json.dumps(_seen()))


def _seen() -> dict[str, Any]:
    from PIL import Image

    from sdort.pipelines.folder import PipelineFolder, open_folder
    from sdort.runtime.step.prepared_tensors import split_file

    folder = open_folder(Path("fast"))
    bare = PipelineFolder(Path("without configs"), folder.models)
    split = split_file(open_folder(Path("model")).file("tiler"))
    return {
        "family": folder.family.name,
        "needed": folder.needed,
        "latents": [folder.latent_channels, folder.sample_channels],
        "inputs": list(folder.file("tiler").signature.inputs),
        "usual": [bare.vae[key] for key in ("scaling_factor", "shift_factor")],
        "prepared": [split is not None and part is not None for part in (split and split.prompt, split and split.time)],
        "images": [Image.open(name).size for name in ("a.png", "b.png")],
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    from support.pipelines import locked, trace_folder

    root, traces = tmp_path_factory.mktemp("made-up"), trace_folder(request.config)
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with locked(traces):
        for stale in traces.glob("tiler*"):  # its class is in no package whose sources the cache hashes
            stale.unlink()
        done = subprocess.run(
            [sys.executable, __file__, str(root), str(traces)], capture_output=True, text=True, env=environment
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return root


def test_a_made_up_family_goes_from_checkpoint_to_image(made: Path) -> None:
    assert json.loads((made / "seen.json").read_text()) == {
        "family": "Mosaic",
        "needed": ["text_encoder", "text_encoder_2", "tiler", "vae_decoder"],
        "latents": [16, 16],
        "inputs": ["hidden_states", "noise_level", "words", "vector"],
        "usual": [0.36, 0.12],
        "prepared": [True, True],
        "images": [[64, 64], [80, 64]],
    }


def test_what_its_config_promises_is_fused(made: Path) -> None:
    report = json.loads((made / "optimized.json").read_text())
    assert report["components"]["tiler"]["operators"]["com.microsoft.MultiHeadAttention"] == 2


def test_the_page_shows_the_file_and_explains_every_field() -> None:
    page, source = PAGE.read_text(), (FOLDER / "mosaic.py").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert blocks
    assert [block for block in blocks if block not in source] == []
    explained = set(re.findall(r"`(\w+)`", page))
    wanted = {
        each.name for kind in (Family, Denoiser, Roles, Encoder, PlainText, Latents, ComfyUI) for each in fields(kind)
    }
    assert wanted - explained == set()


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2])
