"""What torch.ops.sdort brings diffusers' models: eager and torch.compile, each without and with the operators.

All rows run in one process with random weights, in channels-last; every one is first compared with eager:

    python scripts/torch_operators_benchmark.py --family sd15 --size 512
    python scripts/torch_operators_benchmark.py --family sdxl --size 1024 --json sdxl.json
    python scripts/torch_operators_benchmark.py --family sd15 --size 512 --mode reduce-overhead
    python scripts/torch_operators_benchmark.py --family tiny --size 64 --repeats 3

Models: the UNet's step of two samples, the VAE's decoder, and one training step of a LoRA on the UNet (forward,
backward, AdamW). On a GPU in fp16, on the CPU in fp32. A row that torch cannot run here is "not measured", with the
reason, and the exit code is 5. Rows are printed, and written to the file, as they are measured. Where the host bounds
a step, --mode reduce-overhead (CUDA graphs) compares what the GPU does; compiled rows bear the mode in their names.
--overhead prints what a call costs the host beside torch's own, on tensors of a few elements.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from measuring import Arguments, in_turns

from sdort.demo.shapes import SHAPES
from sdort.families.family import CHUNK
from sdort.integrations.torch_operators import replace
from sdort.integrations.torch_operators.launching import serves

MODELS = ("unet", "vae", "lora")
ROWS = {
    "eager": (False, False),
    "eager + operators": (False, True),
    "compile": (True, False),
    "compile + operators": (True, True),
}
"""Row -> whether it is compiled, whether modules are replaced."""
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
WARM_UP = 3
LOSS_SCALE = 2.0**14
"""Times the loss in fp16: without it gradients of a mean over an image's latents are below fp16's normal numbers."""


def unet(args: argparse.Namespace) -> Any:
    return UNet2DConditionModel(**{**SHAPES[args.family].denoiser, "sample_size": args.size // 8})


def vae(args: argparse.Namespace) -> Any:
    return AutoencoderKL(**SHAPES[args.family].vae)


def unet_inputs(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    config, side = SHAPES[args.family].denoiser, args.size // 8

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=args.dtype, device=args.device)

    inputs: dict[str, Any] = {
        "sample": draw(batch, 4, side, side).to(memory_format=torch.channels_last),
        "timestep": torch.tensor([500], device=args.device),
        "encoder_hidden_states": draw(batch, CHUNK, config["cross_attention_dim"]),
    }
    if "addition_embed_type" in config:
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        inputs["added_cond_kwargs"] = {"text_embeds": draw(batch, pooled), "time_ids": draw(batch, 6)}
    return inputs


def made(make: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    with torch.device(args.device):
        model = make(args)
    return model.to(args.dtype, memory_format=torch.channels_last).eval().requires_grad_(False)


def forward_of(name: str, args: argparse.Namespace, compiled: bool, replaced: bool) -> Callable[[], torch.Tensor]:
    """The UNet's step, or the decoder."""
    model = made(unet if name == "unet" else vae, args)
    if replaced:
        replace(model)
    torch.manual_seed(1)
    if name == "unet":
        inputs, call = unet_inputs(args, 2), model
    else:
        latents = torch.randn(1, 4, args.size // 8, args.size // 8, dtype=args.dtype, device=args.device)
        inputs, call = {"z": latents.to(memory_format=torch.channels_last)}, model.decode
    call = torch.compile(call, backend=args.backend, mode=args.mode) if compiled else call

    def run() -> torch.Tensor:
        with torch.no_grad():
            return call(**inputs, return_dict=False)[0]

    return run


def training_of(_: str, args: argparse.Namespace, compiled: bool, replaced: bool) -> Callable[[], torch.Tensor]:
    """A step of a LoRA in fp32 on the UNet's attention; the result is the gradients before it."""
    from peft import LoraConfig

    model = made(unet, args)
    if replaced:
        replace(model)
    torch.manual_seed(2)
    model.add_adapter(
        # Both factors random: with the second at zero, as training begins, the first has no gradient to compare.
        LoraConfig(r=8, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v", "to_out.0"])
    )
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.data = weight.data.float()
    optimizer = torch.optim.AdamW(weights, lr=0.0)  # every step costs what the first one does, and gives its gradients
    torch.manual_seed(1)
    inputs = unet_inputs(args, 1)
    target = torch.randn_like(inputs["sample"])
    call = model.train()
    call = torch.compile(call, backend=args.backend, mode=args.mode) if compiled else call
    scale = LOSS_SCALE if args.dtype == torch.float16 else 1.0

    def run() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device.type, args.dtype, enabled=args.dtype != torch.float32):
            loss = F.mse_loss(call(**inputs, return_dict=False)[0].float(), target.float())
        (loss * scale).backward()
        gradients = torch.cat([weight.grad.flatten() for weight in weights]) / scale
        optimizer.step()
        return gradients

    return run


def milliseconds(run: Callable[[], Any], args: argparse.Namespace) -> float:
    """Median of a call, with the device waited for."""
    wait = torch.cuda.synchronize if args.device.type == "cuda" else lambda: None
    return 1000 * statistics.median(in_turns({"run": run}, args.repeats, wait=wait)["run"])


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in args.models:
        wanted = None
        for row, (compiled, replaced) in ROWS.items():
            torch._dynamo.reset()
            found: dict[str, Any] = {"model": name, "row": f"{row} ({args.mode})" if compiled else row}
            try:
                run = (training_of if name == "lora" else forward_of)(name, args, compiled, replaced)
                for _ in range(WARM_UP):
                    result = run().double()
                wanted = result if row == "eager" else wanted
                if wanted is None:
                    raise RuntimeError("eager, which it is compared with, was not measured")
                found["difference"] = float((result - wanted).norm() / wanted.norm())
                if not found["difference"] < math.inf:
                    raise RuntimeError("the result is not finite")
                found["ms"] = milliseconds(run, args)
            except (RuntimeError, ImportError, torch._dynamo.exc.TorchDynamoException) as error:  # no compiler, no peft
                found["not measured"] = str(error).strip().splitlines()[0][:200]
            yield found


def overhead() -> Iterator[tuple[str, float, float]]:
    """Operator, microseconds of a call, microseconds of torch's own operators for the same."""
    x, bias = torch.randn(1, 4, 8), torch.randn(8)
    image = torch.randn(1, 16, 2, 2).to(memory_format=torch.channels_last)
    weight, heads = torch.randn(16), torch.randn(1, 2, 4, 8)
    ops = torch.ops.sdort
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "bias_add": (lambda: ops.bias_add(x, bias, x), lambda: x + bias + x),
        "layer_norm": (lambda: ops.layer_norm(x, bias, bias), lambda: F.layer_norm(x, (8,), bias, bias)),
        "group_norm, SiLU": (
            lambda: ops.group_norm(image, 4, weight, weight, 1e-5, True),
            lambda: F.silu(F.group_norm(image, 4, weight, weight)),
        ),
        "attention": (lambda: ops.attention(heads, heads, heads), lambda: F.scaled_dot_product_attention(*[heads] * 3)),
    }
    for name, (ours, theirs) in pairs.items():
        yield name, _microseconds(ours), _microseconds(theirs)


def _microseconds(call: Callable[[], Any], calls: int = 2000) -> float:
    """Median of the thread's processor time, which other programs do not add to."""
    times = []
    with torch.no_grad():  # as diffusers' pipelines call them
        for _ in range(7):
            start = time.thread_time()
            for _ in range(calls):
                call()
            times.append(time.thread_time() - start)
    return 1e6 * statistics.median(times) / calls


def arguments() -> argparse.Namespace:
    parser = Arguments(__doc__, "--family --json")
    parser.add_argument("--size", type=int, default=512, help="side of the image in pixels")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--mode", choices=MODES, default="default", help="of torch.compile")
    parser.add_argument("--overhead", action="store_true", help="the cost of a call, nothing else")
    args = parser.parse_args()
    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    args.dtype = torch.float16 if args.device.type == "cuda" else torch.float32
    return args


def main() -> int:
    args = arguments()
    if args.overhead:
        torch.set_num_threads(1)
        for name, ours, theirs in overhead():
            print(f"{name:17} {ours:6.1f} µs   torch's own {theirs:6.1f} µs")
        return 0
    if not serves(torch.empty(1, device=args.device).get_device()):
        sys.exit("there is nothing to measure without kernels")
    place = torch.cuda.get_device_name() if args.device.type == "cuda" else "CPU"
    print(f"{args.family} {args.size}x{args.size}, {args.dtype}, {place}, torch {torch.__version__}")
    rows = []
    for found in measure(args):
        rows.append(found)
        time_text = f"{found['ms']:9.2f} ms" if "ms" in found else f"not measured: {found['not measured']}"
        difference = f"   differs by {found['difference']:.1e}" if "difference" in found else ""
        print(f"{found['model']:5} {found['row']:48} {time_text}{difference}", flush=True)
        if args.json:
            args.json.write_text(json.dumps({"device": place, "torch": torch.__version__, "rows": rows}, indent=1))
    return 5 if any("not measured" in row for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
