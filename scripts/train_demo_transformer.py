#!/usr/bin/env python3
"""Train the demo transformer from nothing: a small Z-Image pipeline that generates coloured shapes.

    scripts/train_demo_transformer.py --out OUT --minutes 8 --compile

Text encoder and transformer together, on latents of the demo model's autoencoder, by flow matching. Every two minutes
and at the end the averaged weights, rounded to fp16, draw held-out prompts; OUT is a diffusers directory of the best
ones so far, and stays one where the training is stopped. Nothing is downloaded: pictures and captions are made on the
device.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import transformers
from demo_batches import CHAT, Sampler
from demo_score import sheet
from demo_words import chat_words, learn_merges
from measuring import Arguments
from safetensors.torch import save_file
from torch.nn.functional import mse_loss
from train_demo_model import DROPPED, descend, make_data, parameters, say

from sdort.checkpoints.pipeline_files import write_pipeline_files
from sdort.demo import DEMO_FOLDER
from sdort.demo.prompt_language import held_out
from sdort.demo.random_pipeline import stored_config
from sdort.demo.score import Score, score
from sdort.demo.tokenizer import write_letters
from sdort.families.data import z_image
from sdort.families.scheduler_configs import FLOW
from sdort.files.staging import staged_directory, temporary_folder
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.schedules.image_noise import SeededNormal

SEED = 20
SIDE = 16
"""Latents along a side of the pictures."""
LENGTH = 24
"""Tokens of the longest caption: sixteen words, and eight of the template."""
[PLAIN] = filter(None, (encoder.plain for encoder in z_image.FAMILY.encoders))
WARMING = 0.03
"""Share of the time in which the learning rate rises."""
USUAL = 8, 0.0
"""Steps and guidance of ``sdort run`` where nobody asks for others."""


def parse_arguments() -> argparse.Namespace:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the diffusers directory; new, or empty")
    parser.add_argument("--minutes", type=float, default=8, help="of training, with all that comes before it")
    parser.add_argument("--score-every", type=float, default=2, metavar="MINUTES")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=192, help="of the transformer")
    parser.add_argument("--head", type=int, default=32, help="width of an attention head")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--refiners", type=int, default=1, help="layers for the image and for the text alone")
    parser.add_argument("--text-width", type=int, default=128)
    parser.add_argument("--text-layers", type=int, default=3, help="the last of which is not read")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--scenes", type=int, default=600_000, help="pictures to train on")
    parser.add_argument("--rate", type=float, default=1e-3, help="the highest learning rate")
    parser.add_argument("--decay", type=float, default=0.999, help="of the averaged weights, a step")
    parser.add_argument("--shift", type=float, default=1.5, help="of the schedule, in training and in the scheduler")
    parser.add_argument("--guidance", type=float, default=3.0, help="of the scored pictures")
    parser.add_argument("--steps", type=int, default=20, help="of the scored pictures")
    parser.add_argument("--prompts", type=int, default=60, help="that are drawn every time; at the end all are")
    parser.add_argument("--sheet", type=Path, help="a PNG of the pictures that were scored last")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    arguments = parser.parse_args()
    if arguments.out.is_dir() and any(arguments.out.iterdir()):
        parser.error(f"--out: {arguments.out} is not empty")
    return arguments


class Training:
    """The models, their data, and how far the training is."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device: str = arguments.device
        self.started = time.monotonic()
        self.end = self.started + 60 * arguments.minutes
        self.merges = learn_merges(chat_words(), end="")
        with temporary_folder("tokenizer") as folder:
            write_letters(folder, PLAIN, self.merges)
            self.tokenizer = PlainTokenizer(folder, PLAIN)
            whole = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = {**whole["model"]["vocab"], **{each["content"]: each["id"] for each in whole["added_tokens"]}}
        self.sampler = Sampler(vocabulary, LENGTH, self.device, SEED, CHAT)
        torch.manual_seed(SEED)
        vae = diffusers.AutoencoderKL.from_pretrained(DEMO_FOLDER / "vae", torch_dtype=torch.float32)
        self.vae = vae.to(self.device, memory_format=torch.channels_last).eval().requires_grad_(False)
        self.text = transformers.Qwen3Model(self._text_config(len(vocabulary))).to(self.device)
        self.transformer = self._make_transformer().to(self.device)
        for model in (self.text, self.transformer):
            print(f"{type(model).__name__} {parameters(model):,}")

    def _text_config(self, vocabulary: int) -> Any:
        width = self.arguments.text_width
        return transformers.Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=self.arguments.text_layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 64,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=self.tokenizer.padding,
            eos_token_id=self.tokenizer.padding,
        )

    def _make_transformer(self) -> Any:
        width, head = self.arguments.width, self.arguments.head
        made = diffusers.ZImageTransformer2DModel(
            in_channels=self.vae.config.latent_channels,
            dim=width,
            n_layers=self.arguments.layers,
            n_refiner_layers=self.arguments.refiners,
            n_heads=width // head,
            n_kv_heads=width // head,
            cap_feat_dim=self.arguments.text_width,
            axes_dims=[head // 4, head * 3 // 8, head * 3 // 8],
            axes_lens=[1024, 128, 128],
        )
        # Blocks that change nothing at first (https://arxiv.org/abs/2212.09748, adaLN-Zero).
        last = made.all_final_layer["2-1"]
        for layer in (*(block.adaLN_modulation[0] for block in (*made.layers, *made.noise_refiner)), last.linear):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        return made

    def faster(self, function: Any) -> Any:
        """The function compiled, if that was asked for."""
        return torch.compile(function) if self.arguments.compile else function

    def half(self) -> AbstractContextManager[Any]:
        """bf16 for what bears it."""
        half: AbstractContextManager[Any] = torch.autocast(self.device.partition(":")[0], torch.bfloat16)
        return half


class Captioned:
    """A transformer for captions of different lengths in one batch.

    Args:
        transformer: diffusers' model.
        words: where a caption has tokens, [batch, tokens, 1]; elsewhere the transformer has its own one.
    """

    def __init__(self, transformer: Any, words: Any) -> None:
        self._transformer, self._words = transformer, words

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transformer, name)

    def cap_embedder(self, states: Any) -> Any:
        return torch.where(self._words, self._transformer.cap_embedder(states), self._transformer.cap_pad_token)


def reader(text: Any) -> Any:
    """A text encoder without its last layer and norm, on the same weights: its output are the states that are read."""
    short = copy.copy(text)
    short._modules = {**text._modules, "layers": text.layers[:-1], "norm": torch.nn.Identity()}
    return short


def encode(read: Any, ids: Any) -> Any:
    """The states [batch, tokens, width] that the transformer reads; causal, so that padding changes none before it.

    Args:
        read: of :func:`reader`.
        ids: token ids, [batch, tokens].
    """
    return read(input_ids=ids, use_cache=False).last_hidden_state


def predict(transformer: Any, latents: Any, levels: Any, states: Any, words: Any) -> Any:
    """The velocity from images to noise, [batch, 4, 16, 16].

    Args:
        transformer: diffusers' model.
        latents: with noise, [batch, 4, 16, 16].
        levels: of the noise, from 0 to 1, [batch].
        states: of the text encoder, [batch, tokens, width].
        words: where a caption has tokens, [batch, tokens, 1].
    """
    inputs = {"hidden_states": latents, "timestep": 1000 * levels, "encoder_hidden_states": states}
    return z_image.call(Captioned(transformer, words), inputs)


def shifted(levels: Any, shift: float) -> Any:
    """The levels of noise as the scheduler has them."""
    return shift * levels / (1 + (shift - 1) * levels)


def train(training: Training) -> None:
    """Descend until the time is over; score and save on the way."""
    arguments, device = training.arguments, training.device
    models = [training.text, training.transformer]
    averaged = [copy.deepcopy(model).eval().requires_grad_(False) for model in models]
    averages = [weight for model in averaged for weight in model.parameters()]
    weights = [weight for model in models for weight in model.parameters()]
    adam = torch.optim.AdamW(
        weights, arguments.rate, betas=(0.9, 0.99), weight_decay=0.01, fused=device.startswith("cuda")
    )
    latents, ids = make_data(training)
    empty, velocity, read = training.sampler.empty(), training.faster(predict), training.faster(reader(training.text))
    step, best, next_score = 0, -1.0, training.started + 60 * arguments.score_every
    clock = Clock(training.end)
    rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda _: clock.rate())
    for step in clock.steps():
        chosen = torch.randint(len(ids), (arguments.batch,), device=device)
        images, noise = latents[chosen].float(), torch.randn((arguments.batch, *latents.shape[1:]), device=device)
        dropped = torch.rand((arguments.batch, 1), device=device) < DROPPED
        captions = torch.where(dropped, empty, ids[chosen].long())
        levels = shifted(torch.rand(arguments.batch, device=device), arguments.shift)
        noisy = torch.lerp(images, noise, levels[:, None, None, None])
        words = (captions != training.sampler.padding)[:, :, None]
        with training.half():
            made = velocity(training.transformer, noisy, levels, encode(read, captions), words)
        loss = mse_loss(made.float(), noise - images)
        descend(loss, adam, rate, models)
        torch._foreach_lerp_(averages, weights, 1 - min(arguments.decay, (step + 1) / (step + 10)))
        if step == 0:
            clock.begin()
        if step % 100 == 0:
            say(training, f"step {step} loss {loss.item():.4f} rate {rate.get_last_lr()[0]:.2e}")
        if time.monotonic() >= next_score:
            next_score = time.monotonic() + 60 * arguments.score_every
            best = keep(training, averaged, step, best)
    keep(training, averaged, step, best, last=True)


class Clock:
    """The steps until a time, and the learning rate by how much of it is over."""

    def __init__(self, end: float) -> None:
        self._end = end
        self.begin()

    def begin(self) -> None:
        """Count from now on: the first step compiles."""
        self._first = time.monotonic()

    @property
    def share(self) -> float:
        """How much of the time is over, from 0 to 1."""
        return (time.monotonic() - self._first) / max(self._end - self._first, 1e-9)

    def rate(self) -> float:
        """The learning rate's factor: up along a line, then down to nothing along a cosine."""
        share = min(self.share, 1.0)
        return min(share / WARMING, (1 + math.cos(math.pi * share)) / 2)

    def steps(self) -> Iterator[int]:
        """Numbers of steps, until the time is over or the program is told to end."""
        step = 0
        while self.share < 1 and not STOP:
            yield step
            step += 1


STOP: list[int] = []
"""Signals to end that have come."""


def keep(training: Training, averaged: list[Any], step: int, best: float, *, last: bool = False) -> float:
    """Score the averaged weights as they are stored, and save them if they are the best so far.

    Returns:
        The best score: right pictures with guidance and without it, out of the prompts.
    """
    arguments = training.arguments
    text, transformer = (copy.deepcopy(model).half().float() for model in averaged)
    prompts = held_out()
    some = prompts if last else prompts[:: max(len(prompts) // arguments.prompts, 1)]
    found = {}
    for steps, guidance in ((arguments.steps, arguments.guidance), USUAL):
        with torch.no_grad():
            pictures = draw(training, text, transformer, some, steps, guidance)
        found[steps, guidance] = score(zip(some, pictures, strict=True))
        if arguments.sheet and (steps, guidance) == (arguments.steps, arguments.guidance):
            sheet(pictures, 12).save(arguments.sheet, optimize=True)
    for (steps, guidance), scored in found.items():
        counts = "  ".join(f"{kind} {right}/{of}" for kind, (right, of) in vars(scored).items())
        say(training, f"step {step}, {steps} steps, guidance {guidance:g}: {right_of(scored)}/{len(some)}  {counts}")
    # By both settings: weights that need no guidance are worth more than one picture. The last ones draw more prompts.
    right = sum(map(right_of, found.values())) / len(some)
    if right >= best:
        save(training, text, transformer)
        size = sum(file.stat().st_size for file in arguments.out.rglob("*") if file.is_file())
        say(training, f"saved {arguments.out}, {size / 1e6:.2f} MB")
    return max(right, best)


def right_of(scored: Score) -> int:
    """Pictures whose shapes, colours and relation are right."""
    return scored.single[0] + scored.pair[0]


def draw(
    training: Training, text: Any, transformer: Any, prompts: list[str], steps: int, guidance: float, seed: int = 0
) -> Any:
    """Pictures [prompts, 64, 64, 3], uint8, as diffusers' pipeline draws them.

    The seed of a prompt is ``seed`` plus its place in the list.
    """
    device, count = training.device, len(prompts)
    rows = [training.tokenizer.row(prompt).ids for prompt in (*prompts, *[""] * count * (guidance > 0))]
    ids = torch.tensor([[*row, *[training.tokenizer.padding] * (LENGTH - len(row))] for row in rows], device=device)
    states, words = encode(reader(text), ids), (ids != training.tokenizer.padding)[:, :, None]
    shape = transformer.config.in_channels, SIDE, SIDE
    noise = np.stack([SeededNormal(seed + place).draw(shape) for place in range(count)])
    latents = torch.from_numpy(noise).to(device)
    levels = shifted(torch.arange(steps, 0, -1) / steps, training.arguments.shift).tolist()
    for level, after in pairwise([*levels, 0.0]):
        many = latents.repeat(len(rows) // count, 1, 1, 1)
        made = predict(transformer, many, torch.full((len(rows),), level, device=device), states, words)
        velocity = made[:count]
        if guidance > 0:
            velocity = velocity + guidance * (velocity - made[count:])
        latents = latents + (after - level) * velocity
    decoded = training.vae.decode(latents / training.vae.config.scaling_factor).sample
    return ((decoded / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def save(training: Training, text: Any, transformer: Any) -> None:
    """A diffusers directory with weights in fp16, in the place of the one before."""
    vae = json.loads((DEMO_FOLDER / "vae" / "config.json").read_text(encoding="utf-8"))
    configs = {
        "text_encoder": stored_config(text),
        "transformer": {**json.loads(transformer.to_json_string()), "sample_size": SIDE},
        "vae": {**vae, "shift_factor": 0.0},  # which diffusers' pipeline adds
    }
    scheduler = {**FLOW, "shift": training.arguments.shift}
    with staged_directory(training.arguments.out, overwrite=True, why_foreign=lambda _: None) as folder:
        write_pipeline_files(z_image.FAMILY, None, configs, scheduler, folder)
        write_letters(folder / "tokenizer", PLAIN, training.merges)
        for file, model in (
            ("text_encoder/model.safetensors", text),
            ("transformer/diffusion_pytorch_model.safetensors", transformer),
        ):
            tensors = {name: tensor.half().cpu().contiguous() for name, tensor in model.state_dict().items()}
            save_file(tensors, folder / file, metadata={"format": "pt"})
        shutil.copy(DEMO_FOLDER / "vae" / "diffusion_pytorch_model.safetensors", folder / "vae")


def main() -> None:
    arguments = parse_arguments()
    torch.set_float32_matmul_precision("high")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: STOP.append(number))
    train(Training(arguments))


if __name__ == "__main__":
    main()
