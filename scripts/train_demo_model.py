#!/usr/bin/env python3
"""Train the demo model from nothing: a small Stable Diffusion pipeline that generates coloured shapes.

    scripts/train_demo_model.py OUT [--work FOLDER]

Minutes on one GPU. First the autoencoder, then the text encoder and the UNet together; OUT becomes a diffusers
directory with weights in fp16, and the score of the held-out prompts is printed. Nothing is downloaded: pictures and
captions are made on the device. With --work the state is kept there, and the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import diffusers
import torch
import transformers
from demo_batches import Sampler
from demo_score import report
from demo_words import caption_words, learn_merges
from measuring import Arguments
from safetensors.torch import load_file, save_file
from torch.nn.functional import l1_loss, mse_loss

from sdort.demo.random_pipeline import published_names
from sdort.demo.tokenizer import write_tokenizer
from sdort.families.family import CHUNK

SEED = 20
WIDTH = 128
UNET: dict[str, Any] = {
    "sample_size": 16,
    "block_out_channels": (64, 128),
    "down_block_types": ("CrossAttnDownBlock2D",) * 2,
    "up_block_types": ("CrossAttnUpBlock2D",) * 2,
    "layers_per_block": 1,
    "cross_attention_dim": WIDTH,
    # Heads, whatever the name says: their sizes are 32 and 64.
    "attention_head_dim": 2,
}
VAE: dict[str, Any] = {
    "sample_size": 64,
    "block_out_channels": (64, 64, 64),
    "layers_per_block": 1,
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
}
TEXT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CHUNK,
    "hidden_act": "quick_gelu",
    "projection_dim": WIDTH,
}
SCHEDULER: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
    # The velocity, as in Stable Diffusion 2.1: at the noisiest steps, where a picture's plan and its flat background
    # are made, an error in the predicted noise would be an error 15 times larger in the picture.
    "prediction_type": "v_prediction",
}
# Of the loss: keeps latents smooth enough to be predicted, at no visible cost.
KL_WEIGHT = 1e-4
DROPPED = 0.1
DECAY = 0.9995


def parse_arguments() -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, help="keep the state here, and go on from it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; go on with --work")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--vae-steps", type=int, default=12000)
    parser.add_argument("--vae-batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=14000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--scenes", type=int, default=400_000, help="pictures that the UNet is trained on")
    parser.add_argument("--sheet", type=Path, help="a PNG of the scored pictures")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    return parser.parse_args()


class Training:
    """The models, their data, and how far the training is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device: str = arguments.device
        self.started = time.monotonic()
        out: Path = arguments.out
        size = write_tokenizer(out / "tokenizer", learn_merges(caption_words()))
        vocabulary = json.loads((out / "tokenizer" / "vocab.json").read_text(encoding="utf-8"))
        self.sampler = Sampler(vocabulary, CHUNK, self.device, SEED)
        torch.manual_seed(SEED)
        tokens = {"vocab_size": size, "bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
        self.vae = self._place(diffusers.AutoencoderKL(**VAE))
        self.text = transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT, **tokens)).to(self.device)
        self.unet = self._place(diffusers.UNet2DConditionModel(**UNET))
        self.scheduler = diffusers.DDIMScheduler(**SCHEDULER)
        print(
            *(f"{type(model).__name__} {parameters(model):,}" for model in (self.vae, self.text, self.unet)), sep="\n"
        )

    def _place(self, model: Any) -> Any:
        return model.to(self.device, memory_format=torch.channels_last)

    def faster(self, model: Any) -> Any:
        """The model compiled, if that was asked for."""
        return torch.compile(model) if self.arguments.compile else model

    def out_of_time(self) -> bool:
        return time.monotonic() - self.started > float(self.arguments.seconds)

    def half(self) -> Any:
        """bf16 for what bears it."""
        return torch.autocast(self.device.partition(":")[0], torch.bfloat16)


def parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def optimizer(models: list[Any], rate: float, steps: int, device: str) -> tuple[Any, Any]:
    """AdamW, and its rate: 2 % of the steps up, then down to nothing along a cosine."""
    weights = [weight for model in models for weight in model.parameters()]
    adam = torch.optim.AdamW(weights, rate, betas=(0.9, 0.99), weight_decay=0.01, fused=device.startswith("cuda"))
    return adam, torch.optim.lr_scheduler.OneCycleLR(adam, rate, steps, pct_start=0.02, cycle_momentum=False)


def train_vae(training: Training) -> None:
    """The autoencoder alone: error of pixels, absolute and squared, of their differences, and a little KL."""
    arguments, vae = training.arguments, training.vae
    adam, rate = optimizer([vae], 1e-3, arguments.vae_steps, training.device)
    encode, decode = training.faster(vae.encoder), training.faster(vae.decoder)
    for step, images in zip(range(arguments.vae_steps), image_batches(training), strict=False):
        with training.half():
            mean, logvar = vae.quant_conv(encode(images)).float().chunk(2, dim=1)
            logvar = logvar.clamp(-30, 20)
            latents = mean + torch.randn_like(mean) * (logvar / 2).exp()
            decoded = decode(vae.post_quant_conv(latents)).float()
        divergence = (mean**2 + logvar.exp() - 1 - logvar).mean() / 2
        squared = mse_loss(decoded, images)
        loss = l1_loss(decoded, images) + squared + edges(decoded, images) + KL_WEIGHT * divergence
        descend(loss, adam, rate, [vae])
        if step % 500 == 0 or step + 1 == arguments.vae_steps:
            psnr = 10 * torch.log10(4 / squared)
            say(training, f"vae {step} loss {loss.item():.4f} kl {divergence.item():.2f} psnr {psnr.item():.1f}")
    normalize_latents(training)


def image_batches(training: Training) -> Iterator[Any]:
    """Pictures of new scenes without end; made many at once, which costs a GPU no more than a few."""
    batch = training.arguments.vae_batch
    while True:
        images = training.sampler.images(training.sampler.scenes(64 * batch))
        for some in images.split(batch):
            yield some.contiguous(memory_format=torch.channels_last)


def edges(decoded: Any, images: Any) -> Any:
    """Absolute error of the differences between neighbours, along rows and columns."""
    return sum(l1_loss(decoded.diff(dim=dim), images.diff(dim=dim)) for dim in (2, 3))


def descend(loss: Any, adam: Any, rate: Any, models: list[Any]) -> None:
    """One step of the optimizer."""
    adam.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weight for model in models for weight in model.parameters()], 1.0)
    adam.step()
    rate.step()


def normalize_latents(training: Training) -> None:
    """Give every latent channel the mean 0 and, after Stable Diffusion's own scaling factor, the deviation 1.

    The 1x1 convolutions on either side of the latents take it up, so that pictures stay what they are.
    """
    vae = training.vae.requires_grad_(False)
    latents = torch.cat([encode_batch(training, 256)[0] for _ in range(8)])
    mean = latents.mean((0, 2, 3))
    ratio = latents.std((0, 2, 3)) * vae.config.scaling_factor
    into, back = vae.quant_conv, vae.post_quant_conv
    channels = len(mean)
    into.weight[:channels] /= ratio[:, None, None, None]
    into.bias[:channels] = (into.bias[:channels] - mean) / ratio
    into.bias[channels:] -= 2 * ratio.log()
    back.bias += (back.weight[:, :, 0, 0] * mean).sum(1)
    back.weight *= ratio[None, :, None, None]


class Scenery(Protocol):
    """What pictures and captions are made with, and what for."""

    arguments: argparse.Namespace
    device: str
    started: float
    sampler: Sampler
    vae: Any

    def half(self) -> AbstractContextManager[Any]:
        """bf16 for what bears it."""


def encode_batch(training: Scenery, count: int) -> tuple[Any, Any]:
    """Latents [count, 4, 16, 16], not scaled, and caption ids [count, 77] of new scenes."""
    scenes = training.sampler.scenes(count)
    images = training.sampler.images(scenes).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), training.half():
        moments = training.vae.quant_conv(training.vae.encoder(images)).float()
    return moments[:, :4].contiguous(), training.sampler.captions(scenes)


def make_data(training: Scenery) -> tuple[Any, Any]:
    """The denoiser's data on the device: scaled latents in fp16, and ids."""
    scale, count = training.vae.config.scaling_factor, min(2048, training.arguments.scenes)
    batches = [encode_batch(training, count) for _ in range(training.arguments.scenes // count)]
    latents = torch.cat([(latents * scale).half() for latents, _ in batches])
    say(training, f"data: {len(latents)} scenes, deviation {latents[:4096].float().std().item():.3f}")
    return latents, torch.cat([ids.short() for _, ids in batches])


class Diffusion(Protocol):
    """The noise, and the captions that are left out."""

    device: str
    scheduler: Any
    sampler: Sampler

    def half(self) -> AbstractContextManager[Any]:
        """bf16 for what bears it."""


def diffusion_loss(
    training: Diffusion, encode: Callable[..., Any], predict: Callable[..., Any], first: int = 0
) -> Callable[..., Any]:
    """The mean squared error of the predicted velocity (Salimans and Ho, https://arxiv.org/abs/2202.00512).

    Args:
        training: what is trained.
        encode: the text encoder.
        predict: the UNet.
        first: the timestep with the least noise.
    """
    signal = training.scheduler.alphas_cumprod.to(training.device).sqrt()[:, None, None, None]
    noise_part = (1 - signal**2).sqrt()
    empty = training.sampler.empty()

    def loss(latents: Any, ids: Any) -> Any:
        dropped = torch.rand(len(ids), device=training.device) < DROPPED
        ids = torch.where(dropped[:, None], empty, ids.long())
        times = torch.randint(first, len(signal), (len(ids),), device=training.device)
        noise = torch.randn_like(latents)
        noisy = signal[times] * latents + noise_part[times] * noise
        with training.half():
            text = encode(input_ids=ids).last_hidden_state
            velocity = predict(noisy, times, text).sample
        return mse_loss(velocity.float(), signal[times] * noise - noise_part[times] * latents)

    return loss


def train_unet(training: Training) -> int:
    """Text encoder and UNet, from where the state says; returns the step at which they are."""
    arguments, models = training.arguments, [training.text, training.unet]
    weights = [weight for model in models for weight in model.parameters()]
    adam, rate = optimizer(models, 1e-3, arguments.steps, training.device)
    averages = [weight.detach().clone() for weight in weights]
    first = load_state(training, adam, rate, averages)
    latents, ids = make_data(training)
    loss_of = diffusion_loss(training, training.faster(training.text), training.faster(training.unet))
    step = first
    while step < arguments.steps and not (step % 50 == 0 and training.out_of_time()):
        chosen = torch.randint(len(ids), (arguments.batch,), device=training.device)
        batch = latents[chosen].float().contiguous(memory_format=torch.channels_last)
        loss = loss_of(batch, ids[chosen])
        descend(loss, adam, rate, models)
        torch._foreach_lerp_(averages, weights, 1 - min(DECAY, (step + 1) / (step + 10)))
        if step % 500 == 0:
            say(training, f"unet {step} loss {loss.item():.4f}")
        step += 1
    save_state(training, adam, rate, averages, step)
    for weight, average in zip(weights, averages, strict=True):
        weight.data.copy_(average)
    say(training, f"unet {step} of {arguments.steps}")
    return step


def state_file(training: Training) -> Path | None:
    work: Path | None = training.arguments.work
    return work / "state.pt" if work else None


def save_state(training: Training, adam: Any, rate: Any, averages: list[Any], step: int) -> None:
    if path := state_file(training):
        path.parent.mkdir(parents=True, exist_ok=True)
        models = {name: getattr(training, name).state_dict() for name in ("vae", "text", "unet")}
        extra = {"adam": adam.state_dict(), "rate": rate.state_dict(), "averages": averages, "step": step}
        torch.save({**models, **extra}, path)


def load_state(training: Training, adam: Any, rate: Any, averages: list[Any]) -> int:
    """Go on where the last run stopped; the next step."""
    path = state_file(training)
    if path is None or not path.is_file():
        return 0
    state = torch.load(path, map_location=training.device, weights_only=True)
    training.text.load_state_dict(state["text"])
    training.unet.load_state_dict(state["unet"])
    adam.load_state_dict(state["adam"])
    rate.load_state_dict(state["rate"])
    torch._foreach_copy_(averages, state["averages"])
    # Other scenes, noises and times than before.
    torch.manual_seed(SEED + state["step"])
    training.sampler.random.manual_seed(SEED + state["step"])
    return int(state["step"])


def load_vae(training: Training) -> bool:
    """The autoencoder of an earlier run; whether there is one."""
    path = state_file(training)
    if path is None or not path.is_file():
        return False
    training.vae.load_state_dict(torch.load(path, map_location=training.device, weights_only=True)["vae"])
    return True


def save_pipeline(training: Training, out: Path) -> None:
    """A diffusers directory with weights in fp16, and nothing in it of this machine."""
    diffusers.StableDiffusionPipeline(
        vae=training.vae.half(),
        text_encoder=training.text.half(),
        tokenizer=transformers.CLIPTokenizer.from_pretrained(out / "tokenizer"),
        unet=training.unet.half(),
        scheduler=training.scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(out)
    weights = out / "text_encoder" / "model.safetensors"
    save_file(published_names(load_file(weights)), weights, metadata={"format": "pt"})
    # transformers saves its newest format only; these files are what every version reads.
    for file in (out / "tokenizer").iterdir():
        file.unlink()
    write_tokenizer(out / "tokenizer", learn_merges(caption_words()))


def say(training: Scenery, line: str) -> None:
    print(f"{time.monotonic() - training.started:7.1f} s  {line}", flush=True)


def main() -> None:
    arguments = parse_arguments()
    torch.set_float32_matmul_precision("high")
    training = Training(arguments)
    if not load_vae(training):
        train_vae(training)
    training.vae.requires_grad_(False)
    train_unet(training)
    save_pipeline(training, arguments.out)
    say(training, "saved")
    report(arguments.out, training.device, arguments.sheet, seeds=4)
    say(training, "scored")


if __name__ == "__main__":
    main()
