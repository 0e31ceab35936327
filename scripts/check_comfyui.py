"""Draws with ComfyUI itself, once with its own models and once with sdort's nodes, and compares latents and images.

    python scripts/check_comfyui.py COMFYUI WORK [CASE ...]

COMFYUI is a checkout of https://github.com/comfyanonymous/ComfyUI, whose requirements this Python has, beside sdort. It
is copied to WORK, where `sdort integrate comfyui` adds the nodes, and run as its server on the CPU in fp32; workflows
go through its HTTP API, from the checkpoint to the saved image. Checkpoints are single files in the original layout
with random weights of a fixed seed: text encoders and VAEs of their true sizes, UNets of the fewest blocks and channels
by which ComfyUI still knows the family. A row says how far sdort's latents are from ComfyUI's, in decibels of signal to
noise, and by how many of 255 steps the images differ. The exit code is 1 if a row is worse than LEAST, or an error does
not come in words.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, UNet2DConditionModel
from measuring import Arguments, refuse_unknown, timed
from PIL import Image
from safetensors.torch import load_file, save_file
from support.ldm_files import State, ldm_control, ldm_unet, ldm_vae, old_clip_names, open_clip, with_prefix
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from sdort.demo import shapes
from sdort.integrations.comfyui.node_folder import write_comfyui_nodes

LEAST = 80.0
"""Decibels of the latents after all steps: both compute in fp32, in another order."""
MOST = 1
"""Steps of 255 by which a pixel may differ: that of rounding."""
SEED = 0
STEPS = 4
SIDE = 128
PROMPT = "a lighthouse at dusk"
LONG = ", ".join(["blurry", "ugly", "deformed", "text", "watermark"] * 20)
"""More than 77 tokens: ComfyUI encodes it in two parts."""

CROSS, PLAIN, UP, PLAIN_UP = "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"
UNETS: dict[str, dict[str, Any]] = {
    "sd1": {
        **shapes.SD1_UNET, "block_out_channels": (320, 320), "layers_per_block": 1,
        "down_block_types": (CROSS, PLAIN), "up_block_types": (PLAIN_UP, UP),
    },
    "sd2": {
        **shapes.SD2_UNET, "block_out_channels": (320,) * 4, "attention_head_dim": 5,
        "down_block_types": (CROSS, PLAIN, PLAIN, PLAIN), "up_block_types": (PLAIN_UP, PLAIN_UP, PLAIN_UP, UP),
    },
    "sdxl": {
        **shapes.SDXL_UNET, "block_out_channels": (320,) * 3, "attention_head_dim": 5,
        "transformer_layers_per_block": (1, 1, 2),
    },
    "refiner": {**shapes.REFINER_UNET, "block_out_channels": (384,) * 4, "attention_head_dim": 6},
}  # fmt: skip
"""The SDXL is of Segmind Vega's depths, the shallowest that ComfyUI takes for one."""
_TOKENS = {"vocab_size": 49408, "bos_token_id": 0, "eos_token_id": 2}
CLIP_L = CLIPTextConfig(**_TOKENS, **shapes.CLIP_L, projection_dim=768)
CLIP_H = CLIPTextConfig(**{**_TOKENS, **shapes.OPENCLIP_H, "num_hidden_layers": 24}, projection_dim=1024)
CLIP_G = CLIPTextConfig(**_TOKENS, **shapes.OPENCLIP_G)

IN_FP32 = {"provider": "cpu", "precision": "fp32"}
"""Options of sdort's nodes."""
ON_CPU = ("--cpu", "--force-fp32", "--fp32-vae", "--fp32-text-enc")
"""Options of ComfyUI."""

Workflow = dict[str, dict[str, Any]]
"""A workflow of ComfyUI's API: id -> class and inputs."""


@dataclass
class Case:
    """A workflow, of a family."""

    family: str
    change: Callable[[Workflow], None] = field(default=lambda _: None)
    """Changes the family's plain workflow."""


def main() -> int:
    args = arguments()
    home = copied(args.checkout, args.work)
    chosen = {name: CASES[name] for name in args.cases or CASES}
    for family in dict.fromkeys(case.family for case in chosen.values()):
        write_checkpoint(home / "models" / "checkpoints" / f"{family}.safetensors", family)
    write_extras(home)
    failed = False
    with server(home, args.work) as address:
        for name, case in chosen.items():
            failed |= not compare(name, case, address, home)
        if not args.cases:
            for name, change, expected in ERRORS:
                failed |= not refuses(name, change, expected, address, home)
    return int(failed)


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("checkout", type=Path, metavar="COMFYUI")
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    args = parser.parse_args()
    refuse_unknown(",".join(args.cases or CASES), [*CASES], "CASE", parser)
    return args


def copied(checkout: Path, work: Path) -> Path:
    """A copy of ComfyUI with sdort's nodes in it."""
    home = work / "ComfyUI"
    if not home.is_dir():
        shutil.copytree(checkout, home, ignore=shutil.ignore_patterns(".git", "output", "temp", "user"))
    write_comfyui_nodes(home, overwrite=True)
    return home


def decibels_of(values: Any, other: Any) -> float:
    """Signal to noise of values whose noise is the distance to the others."""
    return 10 * float(np.log10(np.square(values).mean() / max(np.square(values - other).mean(), 1e-30)))


def compare(name: str, case: Case, address: str, home: Path) -> bool:
    """Print the row of a case; whether it is good."""
    found = []
    for own in (True, False):
        workflow = plain_workflow(case.family, own)
        case.change(workflow)
        error, seconds = timed(partial(run, workflow, address))
        if error:
            print(f"{name:24} {'ComfyUI' if own else 'sdort'} failed: {error}", flush=True)
            return False
        found.append((*results(home), seconds))
    (latents, image, seconds), (ours, our_image, our_seconds) = found
    decibels = decibels_of(latents, ours)
    steps = int(np.abs(image.astype(int) - our_image.astype(int)).max())
    contrast = float(image.std())
    print(
        f"{name:24} {decibels:6.1f} dB {steps:3} of 255  (deviation of pixels {contrast:4.1f};"
        f" {seconds:.1f} s and {our_seconds:.1f} s)",
        flush=True,
    )
    return decibels >= LEAST and steps <= MOST and contrast > 1


def refuses(name: str, change: Callable[[Workflow], None], expected: str, address: str, home: Path) -> bool:
    """Print whether a workflow ends in an error that says what is expected, and writes no image."""
    workflow = plain_workflow("sd1", False)
    change(workflow)
    error = run(workflow, address) or "no error"
    written = list((home / "output").glob("*.png"))
    good = expected in error and not written
    print(f"{name:24} {'refused' if good else 'NOT REFUSED'}: {error}", flush=True)
    return good


def plain_workflow(name: str, own: bool, options: Mapping[str, Any] = IN_FP32) -> Workflow:
    """Text to image of ComfyUI's own nodes, or with sdort's in the places of Load Checkpoint and its VAE.

    Args:
        name: the checkpoint's.
        options: of sdort's nodes.
    """
    checkpoint = f"{name}.safetensors"
    loader = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": checkpoint}}
    if not own:
        loader = {"class_type": "SdortLoadCheckpoint", "inputs": {"ckpt_name": checkpoint, **options}}
    vae = {"class_type": "SdortLoadVAE", "inputs": {"vae_name": checkpoint, **options}}
    return {
        "model": loader,
        **({} if own else {"vae": vae}),
        "positive": {"class_type": "CLIPTextEncode", "inputs": {"text": PROMPT, "clip": ["model", 1]}},
        "negative": {"class_type": "CLIPTextEncode", "inputs": {"text": "blurry", "clip": ["model", 1]}},
        "empty": {"class_type": "EmptyLatentImage", "inputs": {"width": SIDE, "height": SIDE, "batch_size": 1}},
        "sampler": {
            "class_type": "KSampler",
            "inputs": {
                "seed": 7,
                "steps": STEPS,
                "cfg": 5.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                "denoise": 1.0,
                "model": ["model", 0],
                "positive": ["positive", 0],
                "negative": ["negative", 0],
                "latent_image": ["empty", 0],
            },
        },
        "decode": {
            "class_type": "VAEDecode",
            "inputs": {"samples": ["sampler", 0], "vae": ["model", 2] if own else ["vae", 0]},
        },
        "save": {"class_type": "SaveImage", "inputs": {"images": ["decode", 0], "filename_prefix": "image"}},
        "latent": {"class_type": "SaveLatent", "inputs": {"samples": ["sampler", 0], "filename_prefix": "latent"}},
    }


def long_negative(workflow: Workflow) -> None:
    workflow["negative"]["inputs"]["text"] = LONG


def batch(workflow: Workflow) -> None:
    workflow["empty"]["inputs"] |= {"batch_size": 2, "width": 192}
    workflow["sampler"]["inputs"] |= {"sampler_name": "dpmpp_2m", "scheduler": "karras"}


def image_to_image(workflow: Workflow) -> None:
    workflow["photo"] = {"class_type": "LoadImage", "inputs": {"image": "photo.png"}}
    vae = workflow["decode"]["inputs"]["vae"]
    workflow["empty"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["photo", 0], "vae": vae}}
    workflow["sampler"]["inputs"]["denoise"] = 0.6


def lora(workflow: Workflow) -> None:
    for number, strength in enumerate((0.8, -0.4)):
        before = workflow["sampler"]["inputs"]["model"]
        name = f"lora-{number}"
        workflow[name] = {
            "class_type": "LoraLoaderModelOnly",
            "inputs": {"lora_name": f"{name}.safetensors", "strength_model": strength, "model": before},
        }
        workflow["sampler"]["inputs"]["model"] = [name, 0]


def controlnet(workflow: Workflow) -> None:
    workflow["photo"] = {"class_type": "LoadImage", "inputs": {"image": "photo.png"}}
    workflow["net"] = {"class_type": "ControlNetLoader", "inputs": {"control_net_name": "control.safetensors"}}
    workflow["control"] = {
        "class_type": "ControlNetApplyAdvanced",
        "inputs": {
            "strength": 0.9, "start_percent": 0.0, "end_percent": 0.7, "positive": ["positive", 0],
            "negative": ["negative", 0], "control_net": ["net", 0], "image": ["photo", 0],
        },
    }  # fmt: skip
    workflow["sampler"]["inputs"] |= {"positive": ["control", 0], "negative": ["control", 1]}


def both(workflow: Workflow) -> None:
    lora(workflow)
    controlnet(workflow)


def regions(workflow: Workflow) -> None:
    area = {"width": 64, "height": 96, "x": 32, "y": 0, "strength": 1.0, "conditioning": ["positive", 0]}
    workflow["area"] = {"class_type": "ConditioningSetArea", "inputs": area}
    workflow["rest"] = {"class_type": "CLIPTextEncode", "inputs": {"text": LONG, "clip": ["model", 1]}}
    both_areas = {"conditioning_1": ["area", 0], "conditioning_2": ["rest", 0]}
    workflow["combined"] = {"class_type": "ConditioningCombine", "inputs": both_areas}
    workflow["sampler"]["inputs"]["positive"] = ["combined", 0]


def sizes(workflow: Workflow) -> None:
    given = {"width": 1000, "height": 704, "crop_w": 16, "crop_h": 3, "target_width": 1024, "target_height": 768}
    texts = {"text_g": PROMPT, "text_l": "an oil painting"}
    workflow["positive"] = {"class_type": "CLIPTextEncodeSDXL", "inputs": {"clip": ["model", 1], **given, **texts}}


def score(workflow: Workflow) -> None:
    given = {"ascore": 6.37, "width": 1000, "height": 704, "text": PROMPT, "clip": ["model", 1]}
    workflow["positive"] = {"class_type": "CLIPTextEncodeSDXLRefiner", "inputs": given}


def tiled(workflow: Workflow) -> None:
    workflow["empty"]["inputs"] |= {"width": 640}
    workflow["decode"]["class_type"] = "VAEDecodeTiled"
    workflow["decode"]["inputs"] |= {"tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8}


CASES = {
    "sd1": Case("sd1"),
    "sd1 long negative": Case("sd1", long_negative),
    "sd1 batch, other sampler": Case("sd1", batch),
    "sd1 image to image": Case("sd1", image_to_image),
    "sd1 lora": Case("sd1", lora),
    "sd1 controlnet": Case("sd1", controlnet),
    "sd1 lora, controlnet": Case("sd1", both),
    "sd1 regions": Case("sd1", regions),
    "sd1 tiles": Case("sd1", tiled),
    "sd1 again": Case("sd1"),
    "sd2 v": Case("sd2"),
    "sd2 v long negative": Case("sd2", long_negative),
    "sdxl": Case("sdxl"),
    "sdxl sizes": Case("sdxl", sizes),
    "sdxl long negative": Case("sdxl", long_negative),
    "refiner": Case("refiner", image_to_image),
    "refiner score": Case("refiner", score),
}


def _set(node: str, **inputs: Any) -> Callable[[Workflow], None]:
    def change(workflow: Workflow) -> None:
        workflow[node]["inputs"] |= inputs

    return change


def free_u(workflow: Workflow) -> None:
    values = {"b1": 1.3, "b2": 1.4, "s1": 0.9, "s2": 0.2, "model": ["model", 0]}
    workflow["freeu"] = {"class_type": "FreeU_V2", "inputs": values}
    workflow["sampler"]["inputs"]["model"] = ["freeu", 0]


def other_family(workflow: Workflow) -> None:
    workflow["other"] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sdxl.safetensors"}}
    workflow["positive"]["inputs"]["clip"] = workflow["negative"]["inputs"]["clip"] = ["other", 1]


def merged(workflow: Workflow) -> None:
    workflow["own"] = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd1.safetensors"}}
    halves = {"model1": ["own", 0], "model2": ["model", 0], "ratio": 0.5}
    workflow["merge"] = {"class_type": "ModelMergeSimple", "inputs": halves}
    workflow["sampler"]["inputs"]["model"] = ["merge", 0]


ERRORS = (
    ("a provider that is not here", _set("model", provider="rocm"), "ROCMExecutionProvider"),
    ("prompts of SDXL", other_family, "of another family of models"),
    ("FreeU", free_u, "patches inside of the UNet"),
    ("a merge", merged, "nodes that read or merge its weights need ComfyUI's own loader"),
)
"""Workflows that sdort's nodes refuse, and what they say."""


def run(workflow: Workflow, address: str) -> str | None:
    """Run a workflow to its end; the error that ends it, if one does."""
    messages = messages_of(workflow, address)
    return str(messages["execution_error"]["exception_message"]) if "execution_error" in messages else None


def messages_of(workflow: Workflow, address: str) -> dict[str, dict[str, Any]]:
    """Run a workflow to its end: the last message of each kind, whose ``timestamp`` is in milliseconds."""
    body = json.dumps({"prompt": workflow}).encode()
    request = urllib.request.Request(f"{address}/prompt", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            number = json.load(answer)["prompt_id"]
    except urllib.error.HTTPError as error:
        return {"execution_error": {"exception_message": error.read().decode()}}
    while True:
        with urllib.request.urlopen(f"{address}/history/{number}") as answer:
            done = json.load(answer).get(number)
        if done:
            return dict(done["status"]["messages"])
        time.sleep(0.2)


def results(home: Path) -> tuple[Any, Any]:
    """The latents and the image that a workflow wrote, which go."""
    output = home / "output"
    [latent], [*images] = output.glob("latent*"), sorted(output.glob("image*"))
    values = load_file(latent)["latent_tensor"].numpy()
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in images])
    for path in (latent, *images):
        path.unlink()
    return values, pixels


@contextmanager
def server(home: Path, work: Path, options: Sequence[str] = ON_CPU) -> Iterator[str]:
    """ComfyUI's server on a free port; its messages go to a file in ``work``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shutil.rmtree(home / "output", ignore_errors=True)
    (home / "output").mkdir()
    command = [sys.executable, "main.py", *options, "--disable-api-nodes", "--port", str(port)]
    with (work / "comfyui.log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
        address = f"http://127.0.0.1:{port}"
        try:
            while not _answers(address):
                if process.poll() is not None:
                    raise SystemExit(f"ComfyUI ended: see {log.name}")
                time.sleep(0.5)
            yield address
        finally:
            process.terminate()
            process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/object_info/SdortLoadCheckpoint") as answer:
            known = bool(json.load(answer))
    except OSError:
        return False
    if not known:
        raise SystemExit("ComfyUI could not load sdort's nodes: see comfyui.log")
    return True


def write_checkpoint(path: Path, family: str, config: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint in the original layout, in fp16.

    Args:
        config: the UNet's, if it is another than the family's in :data:`UNETS`.
    """
    if path.is_file():
        return
    config = config or UNETS[family]
    with torch.device("meta"):  # the constructor's own values take minutes
        empty = UNet2DConditionModel(**config)
    unet = ldm_unet(_state(empty), empty.config.layers_per_block)
    state = with_prefix("model.diffusion_model.", unet)
    state |= with_prefix("first_stage_model.", ldm_vae(_state(AutoencoderKL(**shapes.VAE))))
    if family == "sd1":
        state |= with_prefix("cond_stage_model.transformer.", old_clip_names(_state(CLIPTextModel(CLIP_L))))
    if family == "sd2":
        state |= with_prefix("cond_stage_model.model.", open_clip(_state(CLIPTextModelWithProjection(CLIP_H))))
    if family == "sdxl":
        state |= with_prefix("conditioner.embedders.0.transformer.", old_clip_names(_state(CLIPTextModel(CLIP_L))))
    if family in ("sdxl", "refiner"):
        prefix = f"conditioner.embedders.{int(family == 'sdxl')}.model."
        state |= with_prefix(prefix, open_clip(_state(CLIPTextModelWithProjection(CLIP_G))))
    _save(state, path)


def write_extras(home: Path) -> None:
    """Write two LoRAs, a ControlNet and a picture for the SD 1.x."""
    config, models = UNETS["sd1"], home / "models"
    generator = torch.Generator().manual_seed(SEED + 1)
    names = {
        0: "lora_unet_input_blocks_1_1_transformer_blocks_0_attn1_to_q",  # as in the original
        1: "lora_unet_up_blocks_1_attentions_0_transformer_blocks_0_attn2_to_out_0",  # as in diffusers
    }
    for number, name in names.items():
        down, up = (torch.randn(shape, generator=generator) * 0.1 for shape in ((4, 320), (320, 4)))
        tensors = {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": torch.tensor(2.0)}
        convolution = "lora_unet_input_blocks_1_0_in_layers_2"
        tensors[f"{convolution}.lora_down.weight"] = torch.randn((4, 320, 3, 3), generator=generator) * 0.05
        tensors[f"{convolution}.lora_up.weight"] = torch.randn((320, 4, 1, 1), generator=generator) * 0.05
        save_file(tensors, models / "loras" / f"lora-{number}.safetensors")
    shared = {key: config[key] for key in config if key != "up_block_types"}
    control = _state(ControlNetModel(**shared))
    _save(with_prefix("control_model.", ldm_control(control, 1)), models / "controlnet" / "control.safetensors")
    ramp = np.linspace(0, 255, SIDE, dtype=np.uint8)
    picture = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], np.uint8(96)), -1)
    (home / "input").mkdir(exist_ok=True)
    Image.fromarray(picture).save(home / "input" / "photo.png")


def _state(module: Any) -> State:
    """Random weights of a fixed seed: norms around 1, biases around 0, matrices of unit gain."""
    generator, state = torch.Generator().manual_seed(SEED), module.state_dict()
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            continue
        values = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim == 1:
            values = values * 0.2 + (1.0 if name.endswith("weight") else 0.0)
        else:
            values /= tensor[0].numel() ** 0.5
        state[name] = values
    return dict(state)


def _save(state: State, path: Path) -> None:
    halves = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    save_file({name: tensor.contiguous() for name, tensor in halves.items()}, path)


if __name__ == "__main__":
    raise SystemExit(main())
