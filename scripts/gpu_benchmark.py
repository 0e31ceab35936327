#!/usr/bin/env python3
"""UNet step and VAE decode on one GPU: sdort's graphs against torch and against ONNX Runtime's own optimizer.

Everything is checked against torch in fp32 before it is timed; both sides of every ratio come from one run.

    python scripts/gpu_benchmark.py --work DIR [--provider cuda|rocm] [--batch 2] [--size 512x512] [--checkpoint DIR]
        [--family sd15|sdxl|sdxl-refiner] [--engines sdort,torch,compile,ort] [--ort-optimized FILE] [--custom-ops FILE]
        [--json FILE]

Without --checkpoint a pipeline of Stable Diffusion 1.5's full architecture with seeded random weights is made in DIR;
with --family another one's UNet, to be run with --components unet, SDXL's at --size 1024x1024.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sdort

WARMUP, REPEAT = 5, 30


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = args.checkpoint or make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
    rows: list[dict[str, Any]] = []
    for component in args.components.split(","):
        rows += benchmark(component, checkpoint, args)
    show(rows)
    if args.json:
        args.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=2))
    return 0 if all(row["ok"] for row in rows) else 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--provider", default="cuda", choices=["cuda", "rocm"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--family", default="sd15", choices=["sd15", *UNETS])
    parser.add_argument("--components", default="unet,vae_decoder")
    parser.add_argument("--engines", default="sdort,torch,compile")
    parser.add_argument("--ort-optimized", type=Path, help="a UNet made by ONNX Runtime's own optimizer")
    parser.add_argument("--custom-ops", type=Path, help="libsdort_ops.so: sdort's rows with and without it")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


SDXL: dict[str, Any] = {
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
UNETS: dict[str, dict[str, Any]] = {
    "sdxl": {
        **SDXL,
        "sample_size": 128,
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": [1, 2, 10],
        "attention_head_dim": [5, 10, 20],
        "cross_attention_dim": 2048,
        "projection_class_embeddings_input_dim": 2816,
    },
    "sdxl-refiner": {
        **SDXL,
        "sample_size": 128,
        "block_out_channels": (384, 768, 1536, 1536),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": 4,
        "attention_head_dim": [6, 12, 24, 24],
        "cross_attention_dim": 1280,
        "projection_class_embeddings_input_dim": 2560,
    },
}
"""The released configs of UNets that are made alone."""


def make_checkpoint(family: str, folder: Path) -> Path:
    """A diffusers directory of the family's full architecture with seeded random weights."""
    if family == "sd15":
        return make_pipeline(folder)
    if not (folder / "model_index.json").exists():
        import diffusers

        torch.manual_seed(15)
        diffusers.UNet2DConditionModel(**UNETS[family]).save_pretrained(folder / "unet")
        index = {"_class_name": "StableDiffusionXLPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
        (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def make_pipeline(folder: Path) -> Path:
    """Stable Diffusion 1.5's architecture with seeded random weights, as a diffusers directory."""
    if (folder / "model_index.json").exists():
        return folder
    import diffusers
    import transformers

    from sdort.demo.tokenizer import write_tokenizer

    size = write_tokenizer(folder / "tokenizer")
    torch.manual_seed(15)
    text = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, projection_dim=768,
        vocab_size=size, bos_token_id=size - 2, eos_token_id=size - 1, pad_token_id=size - 1,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        sample_size=512, block_out_channels=(128, 256, 512, 512), layers_per_block=2,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer"),
        unet=diffusers.UNet2DConditionModel(sample_size=64, cross_attention_dim=768),
        scheduler=diffusers.PNDMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
        ),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip
    write_tokenizer(folder / "tokenizer")
    return folder


def optimized(component: str, checkpoint: Path, args: argparse.Namespace, *, static: bool, own: bool) -> Path:
    """The component as sdort exports and optimizes it, with its own operators if ``own``."""
    from sdort.exporter.command import export
    from sdort.exporter.export_options import StaticSize
    from sdort.optimizer.command import optimize

    height, width = map(int, args.size.split("x"))
    name = f"{component}-{'static' if static else 'dynamic'}"
    work: Path = args.work
    exported, out = work / f"{name}-onnx", work / f"{name}-{args.provider}{'-own' if own else ''}"
    if not out.exists():
        start = time.perf_counter()
        # A static UNet runs both halves of classifier-free guidance at once: two rows for each image.
        images = args.batch // 2 if component == "unet" else args.batch
        size = StaticSize(images, height, width) if static else None
        if not exported.exists():
            export(checkpoint, exported, components=[component], static=size)
        middle = time.perf_counter()
        report = optimize(exported, out, provider=args.provider, fp16=True, sdort_ops=own)
        print(f"{name}: export {middle - start:.1f} s, optimize {report.seconds:.1f} s", file=sys.stderr)
    return out / component / "model.onnx"


def torch_module(component: str, checkpoint: Path, dtype: torch.dtype) -> torch.nn.Module:
    import diffusers

    if component == "unet":
        model = diffusers.UNet2DConditionModel.from_pretrained(checkpoint / "unet", torch_dtype=dtype)

        class Step(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, sample: Any, timestep: Any, states: Any, text_embeds: Any = None, ids: Any = None) -> Any:
                added = None if text_embeds is None else {"text_embeds": text_embeds, "time_ids": ids}
                return self.model(sample, timestep, states, added_cond_kwargs=added, return_dict=False)[0]

        return Step().to("cuda").eval()
    vae = diffusers.AutoencoderKL.from_pretrained(checkpoint / "vae", torch_dtype=dtype)

    class Decode(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vae = vae

        def forward(self, latent_sample: Any) -> Any:
            return self.vae.decode(latent_sample, return_dict=False)[0]

    return Decode().to("cuda").eval()


def inputs(component: str, args: argparse.Namespace, checkpoint: Path) -> dict[str, torch.Tensor]:
    height, width = (int(d) // 8 for d in args.size.split("x"))
    generator = torch.Generator("cuda").manual_seed(int(time.time()))
    latent = torch.randn(args.batch, 4, height, width, device="cuda", generator=generator)
    if component == "vae_decoder":
        return {"latent_sample": latent}
    config = json.loads((checkpoint / "unet" / "config.json").read_text())
    states = torch.randn(args.batch, 77, config["cross_attention_dim"], device="cuda", generator=generator)
    feeds = {"sample": latent, "timestep": torch.tensor([481], device="cuda"), "encoder_hidden_states": states}
    if config.get("addition_embed_type") == "text_time":
        # Six sizes and crops beside the text, as the export of a UNet without text encoders takes them.
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        sizes = [height * 8, width * 8, 0, 0, height * 8, width * 8]
        feeds["text_embeds"] = torch.randn(args.batch, pooled, device="cuda", generator=generator)
        feeds["time_ids"] = torch.tensor([sizes] * args.batch, device="cuda", dtype=torch.float32)
    return feeds


class OrtRunner:
    """A session with inputs and outputs bound on the device, captured as a graph if asked."""

    def __init__(
        self,
        model: Path,
        args: argparse.Namespace,
        feeds: dict[str, torch.Tensor],
        *,
        graph: bool,
        ops: Path | None = None,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if ops:
            options.register_custom_ops_library(str(ops))
        name, settings = {
            "cuda": ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graph))}),
            "rocm": ("ROCMExecutionProvider", {"tunable_op_enable": "1", "tunable_op_tuning_enable": "1",
                                               "enable_hip_graph": str(int(graph))}),
        }[args.provider]  # fmt: skip
        self.session = onnxruntime.InferenceSession(model, options, providers=[(name, settings)])
        if name not in self.session.get_providers():
            raise SystemExit(f"{name} did not load: {self.session.get_providers()}")
        self.binding = self.session.io_binding()
        self.kept: list[torch.Tensor] = []
        for value in self.session.get_inputs():
            dtype = {"tensor(float16)": torch.float16, "tensor(float)": torch.float32, "tensor(int64)": torch.int64}[
                value.type
            ]
            tensor = feeds[value.name].to(dtype)
            if len(value.shape) == 0:
                tensor = tensor.reshape(())
            self._bind(self.binding.bind_input, value.name, tensor.contiguous())
        (out,) = self.session.get_outputs()
        shape = feeds["sample"].shape if "sample" in feeds else self._decoded(feeds["latent_sample"].shape)
        dtype = torch.float16 if "16" in out.type else torch.float32
        self.output = torch.full(tuple(shape), float("nan"), dtype=dtype, device="cuda")
        self._bind(self.binding.bind_output, out.name, self.output)

    @staticmethod
    def _decoded(shape: Any) -> tuple[int, ...]:
        return (shape[0], 3, shape[2] * 8, shape[3] * 8)

    def _bind(self, bind: Any, name: str, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)
        dtype = {torch.float16: np.float16, torch.float32: np.float32, torch.int64: np.int64}[tensor.dtype]
        bind(name, "cuda", 0, dtype, tuple(tensor.shape), tensor.data_ptr())

    def __call__(self) -> torch.Tensor:
        self.session.run_with_iobinding(self.binding)
        return self.output


def benchmark(component: str, checkpoint: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    feeds = inputs(component, args, checkpoint)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with torch.inference_mode():
        reference = torch_module(component, checkpoint, torch.float32)(*feeds.values())
        torch.cuda.empty_cache()
        rows = []
        for name, make in runners(component, checkpoint, args, feeds):
            try:
                rows.append(measure(component, name, make(), reference, args))
            except Exception as error:  # one engine's failure leaves the others their numbers
                print(f"{component} {name}: {type(error).__name__}: {str(error)[:400]}", file=sys.stderr)
                rows.append({"component": component, "engine": name, "ok": False, "error": str(error)[:400]})
            torch.cuda.empty_cache()
    return rows


def runners(component: str, checkpoint: Path, args: argparse.Namespace, feeds: dict[str, torch.Tensor]) -> list[Any]:
    engines = args.engines.split(",")
    half = {k: v.half() if v.is_floating_point() else v for k, v in feeds.items()}
    rows: list[Any] = []
    if "torch" in engines:

        def eager() -> Any:
            model = torch_module(component, checkpoint, torch.float16).to(memory_format=torch.channels_last)
            return lambda: model(*half.values())

        rows.append(("torch eager", eager))
    if "compile" in engines:

        def compiled() -> Any:
            model = torch_module(component, checkpoint, torch.float16).to(memory_format=torch.channels_last)
            fast = torch.compile(model, mode="reduce-overhead")
            return lambda: fast(*half.values())

        rows.append(("torch.compile", compiled))
    if args.ort_optimized and component == "unet":
        for graph in (False, True):
            rows.append(
                (
                    f"ORT optimizer{' + graph' if graph else ''}",
                    lambda g=graph: OrtRunner(args.ort_optimized, args, feeds, graph=g),
                )
            )
    if "sdort" in engines:
        for static, graph in ((False, False), (True, False), (True, True)):
            how = f"sdort {'static' if static else 'dynamic'}{' + graph' if graph else ''}"
            for own, ops in kinds(component, args):
                label = f"{how}{' + ops' if ops else ''}{' (--sdort-ops)' if own else ''}"
                make = partial(sdort_runner, component, checkpoint, args, feeds, static, graph, own, ops)
                rows.append((label, make))
    return rows


def kinds(component: str, args: argparse.Namespace) -> list[tuple[bool, Path | None]]:
    """Whether the graph has sdort's own operators, and the library, for each of sdort's rows."""
    if not args.custom_ops:
        return [(False, None)]
    own = [(True, None), (True, args.custom_ops)] if component == "unet" else []  # a VAE has nothing for them
    return [(False, None), (False, args.custom_ops), *own]


def sdort_runner(
    component: str,
    checkpoint: Path,
    args: argparse.Namespace,
    feeds: dict[str, torch.Tensor],
    static: bool,
    graph: bool,
    own: bool,
    ops: Path | None,
) -> OrtRunner:
    model = optimized(component, checkpoint, args, static=static, own=own)
    if ops:
        # The kernels' variants are timed once, outside of any graph; SDORT_OPS_TUNING keeps what was found.
        os.environ.setdefault("SDORT_OPS_TUNING", str(args.work / "tuning.tsv"))
        os.environ["SDORT_OPS_TUNE"] = "1"
        OrtRunner(model, args, feeds, graph=False, ops=ops)()
        os.environ["SDORT_OPS_TUNE"] = "0"
    return OrtRunner(model, args, feeds, graph=graph, ops=ops)


def measure(component: str, name: str, run: Any, reference: torch.Tensor, args: argparse.Namespace) -> dict[str, Any]:
    output = run().float()
    error = float((output - reference).norm() / reference.norm())
    worst = float((output - reference).abs().max() / reference.std())
    times = []
    for index in range(WARMUP + REPEAT):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        clock = time.perf_counter()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if index >= WARMUP:
            times.append((time.perf_counter() - clock) * 1e3)
    again = float((run().float() - output).norm() / reference.norm())
    return {
        "component": component, "engine": name, "batch": args.batch, "size": args.size,
        "median_ms": statistics.median(times), "min_ms": min(times), "p90_ms": sorted(times)[int(0.9 * len(times))],
        "error": error, "worst": worst, "rerun": again, "ok": bool(np.isfinite(error) and error < 2e-2),
    }  # fmt: skip


def environment() -> dict[str, str]:
    import onnxruntime

    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "onnxruntime": onnxruntime.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    print(json.dumps(environment()))
    print(
        f"{'component':12} {'engine':36} {'median ms':>10} {'min':>8} {'p90':>8} "
        f"{'error':>9} {'max/std':>9} {'rerun':>9}"
    )
    for row in rows:
        if "median_ms" not in row:
            print(f"{row['component']:12} {row['engine']:36} failed: {row['error'][:300]}")
            continue
        mark = "" if row["ok"] else "  WRONG"
        print(
            f"{row['component']:12} {row['engine']:36} "
            f"{row['median_ms']:10.3f} {row['min_ms']:8.3f} {row['p90_ms']:8.3f} "
            f"{row['error']:9.1e} {row['worst']:9.1e} {row['rerun']:9.1e}{mark}"
        )


if __name__ == "__main__":
    raise SystemExit(main())
