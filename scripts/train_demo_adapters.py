#!/usr/bin/env python3
"""Train the demo model's LoRA (chalk) or its ControlNet (edges), on the CPU or a GPU.

    scripts/train_demo_adapters.py lora OUT.safetensors
    scripts/train_demo_adapters.py control OUT

Minutes on one CPU core. The demo model itself stays as it is. The LoRA is written with the keys of kohya's sd-scripts;
OUT of the ControlNet is a diffusers directory. Both are in fp16, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from demo_batches import CLIP, Sampler
from measuring import Arguments
from safetensors.torch import save_file
from tour_images import edges
from train_demo_model import descend, diffusion_loss, optimizer, parameters

from sdort.demo import DEMO_FOLDER
from sdort.demo.scenes import BACKGROUNDS, RGB
from sdort.families.family import CHUNK

SEED = 16
RANK = 4
SCENES_AT_ONCE = 256
"""Pictures that are encoded together."""
PROJECTIONS = ("to_q", "to_k", "to_v", "to_out.0", "q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Ends of the names of the linear layers that the LoRA changes."""
CHALK = {
    "colours": dict.fromkeys(RGB, RGB["white"]),
    "backgrounds": dict.fromkeys(BACKGROUNDS, BACKGROUNDS["black"]),
}
"""What the LoRA makes of all colours: white shapes on black."""
LAYOUT = 250
"""The first timestep of the ControlNet's training: at less noise things stand where they are."""
CONTROL: dict[str, Any] = {
    # The first level without attention: edges say where things are, and 4 MB are enough.
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    # Halved twice, as the autoencoder's four pixels a latent ask for.
    "conditioning_embedding_out_channels": (16, 32, 32),
}


def parse_arguments() -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("what", choices=("lora", "control"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="default: 200 for the LoRA, 350 for the ControlNet")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--scenes", type=int, default=768, help="pictures to train on")
    return parser.parse_args()


class Training:
    """The demo model, which is not trained, and scenes for it."""

    def __init__(self, arguments: argparse.Namespace, **colours: dict[str, tuple[int, int, int]]) -> None:
        torch.manual_seed(SEED)
        self.device: str = arguments.device
        self.started = time.monotonic()
        self.vae = self._load(diffusers.AutoencoderKL, "vae")
        self.text = self._load(transformers.CLIPTextModel, "text_encoder")
        self.unet = self._load(diffusers.UNet2DConditionModel, "unet")
        self.scheduler = diffusers.DDIMScheduler.from_pretrained(DEMO_FOLDER / "scheduler")
        vocabulary = json.loads((DEMO_FOLDER / "tokenizer" / "vocab.json").read_text(encoding="utf-8"))
        self.sampler = Sampler(vocabulary, CHUNK, self.device, SEED, CLIP, **colours)

    def _load(self, kind: Any, folder: str) -> Any:
        model = kind.from_pretrained(DEMO_FOLDER / folder, torch_dtype=torch.float32)
        return model.to(self.device).eval().requires_grad_(False)

    def half(self) -> AbstractContextManager[Any]:
        """bf16 where it is faster."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.startswith("cuda") else nullcontext()

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.started:7.1f} s  {line}", flush=True)


def make_data(training: Training, count: int) -> tuple[Any, Any, Any]:
    """Images [count, 3, 64, 64], uint8, their scaled latents and the ids of their captions."""
    images, latents, ids = [], [], []
    for _ in range(0, count, SCENES_AT_ONCE):
        scenes = training.sampler.scenes(SCENES_AT_ONCE)
        pictures = training.sampler.images(scenes)
        with torch.no_grad(), training.half():
            encoded = training.vae.encode(pictures).latent_dist.mode() * training.vae.config.scaling_factor
        images.append(((pictures + 1) * 127.5).round().to(torch.uint8))
        latents.append(encoded.float())
        ids.append(training.sampler.captions(scenes))
    training.say(f"data: {count} scenes")
    return torch.cat(images), torch.cat(latents), torch.cat(ids)


def train(
    training: Training, arguments: argparse.Namespace, models: list[Any], rate: float, steps: int,
    loss_of: Callable[[Any, Any, Any], Any],
) -> None:  # fmt: skip
    """Train ``models`` to predict the velocity; ``loss_of`` takes images, latents and ids."""
    data = make_data(training, arguments.scenes)
    adam, schedule = optimizer(models, rate, steps, training.device)
    recent: list[float] = []
    for step, chosen in zip(range(1, steps + 1), batches(training, arguments), strict=False):
        loss = loss_of(*(part[chosen] for part in data))
        descend(loss, adam, schedule, models)
        recent.append(loss.item())
        if step % 20 == 0 or step == steps:
            training.say(f"step {step} of {steps}, loss {np.mean(recent[-20:]):.4f}")


def batches(training: Training, arguments: argparse.Namespace) -> Iterator[Any]:
    while True:
        yield from torch.randperm(arguments.scenes, device=training.device).split(arguments.batch)


# ---- the LoRA ----


class LowRank(torch.nn.Module):  # type: ignore[misc]
    """A linear layer and a product of two matrices beside it (Hu et al., https://arxiv.org/abs/2106.09685)."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.down = torch.nn.Linear(layer.in_features, RANK, bias=False)
        self.up = torch.nn.Linear(RANK, layer.out_features, bias=False)
        torch.nn.init.normal_(self.down.weight, std=1 / RANK)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.layer(x) + self.up(self.down(x))


def add_low_rank(model: Any, device: str) -> dict[str, LowRank]:
    """Replace the layers of :data:`PROJECTIONS`; module name -> what stands there now."""
    names = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
    added = {}
    for name in (name for name in names if name.endswith(PROJECTIONS)):
        owner, _, leaf = name.rpartition(".")
        added[name] = LowRank(model.get_submodule(name)).to(device)
        setattr(model.get_submodule(owner), leaf, added[name])
    return added


def train_lora(arguments: argparse.Namespace) -> None:
    training = Training(arguments, **CHALK)
    added = {
        f"{prefix}_{name.replace('.', '_')}": layer
        for prefix, model in (("lora_unet", training.unet), ("lora_te", training.text))
        for name, layer in add_low_rank(model, training.device).items()
    }
    layers = [part for layer in added.values() for part in (layer.down, layer.up)]
    training.say(f"{len(added)} layers, {sum(map(parameters, layers)):,} parameters")
    loss = diffusion_loss(training, training.text, training.unet)
    train(training, arguments, layers, 3e-3, arguments.steps or 200, lambda _, latents, ids: loss(latents, ids))
    tensors = {}
    for name, layer in added.items():
        tensors[f"{name}.lora_down.weight"] = layer.down.weight.detach().half().cpu().contiguous()
        tensors[f"{name}.lora_up.weight"] = layer.up.weight.detach().half().cpu().contiguous()
        tensors[f"{name}.alpha"] = torch.tensor(float(RANK)).half()
    save_file(tensors, arguments.out, {"ss_network_module": "networks.lora", "ss_network_dim": str(RANK)})


# ---- the ControlNet ----


def train_control(arguments: argparse.Namespace) -> None:
    training = Training(arguments)
    control = make_control(training.unet).to(training.device)
    training.say(f"{parameters(control):,} parameters")
    hints: list[Any] = []

    def predict(noisy: Any, times: Any, text: Any) -> Any:
        down, middle = control(noisy, times, text, hints[0], return_dict=False)
        return training.unet(
            noisy, times, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
        )

    diffusion = diffusion_loss(training, training.text, predict, first=LAYOUT)

    def loss(images: Any, latents: Any, ids: Any) -> Any:
        drawn = edges(images.permute(0, 2, 3, 1).cpu().numpy())
        hints[:] = [(torch.from_numpy(drawn).to(training.device).float() / 255)[:, None].expand(-1, 3, -1, -1)]
        return diffusion(latents, ids)

    train(training, arguments, [control], 1e-3, arguments.steps or 350, loss)
    control.half().save_pretrained(arguments.out)


def make_control(unet: Any) -> Any:
    """An untrained ControlNet of the UNet, from the UNet's own weights (https://arxiv.org/abs/2302.05543)."""
    shared = ("block_out_channels", "layers_per_block", "cross_attention_dim", "attention_head_dim", "norm_num_groups")
    control = diffusers.ControlNetModel(**{name: unet.config[name] for name in shared}, **CONTROL)
    copied = {name: tensor for name, tensor in unet.state_dict().items() if not name.startswith("up_")}
    own = control.state_dict()
    control.load_state_dict({**own, **{name: copied[name] for name in own.keys() & copied.keys()}})
    return control


def main() -> None:
    given = parse_arguments()
    {"lora": train_lora, "control": train_control}[given.what](given)


if __name__ == "__main__":
    main()
