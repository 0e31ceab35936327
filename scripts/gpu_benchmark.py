#!/usr/bin/env python3
"""UNet step and VAE decode on one GPU: sdort's graphs against torch and against ONNX Runtime's own optimizer.

Everything is checked against torch in fp32 before it is timed; both sides of every ratio come from one run.

    python scripts/gpu_benchmark.py --work DIR [--provider cuda|rocm] [--batch 2,16] [--size 512x512,1024x1024]
        [--family sd15|sd21|sdxl|sdxl-refiner|...] [--components unet,vae_decoder]
        [--engines sdort,torch,compile,ort] [--custom-ops FILE] [--static] [--ablation] [--checkpoint DIR] [--json FILE]

Rows are printed, and written to FILE, as they are measured: a run that is stopped leaves what it has.

Without --checkpoint a pipeline of Stable Diffusion 1.5's shape with random weights is made in DIR, with --family
another one (sdort export random:NAME). A row of sdort is a session as `sdort run --graph` opens it, on a graph of
dynamic sizes; with --static one that was exported for its size follows. --ablation adds rows that lack one thing each.

The peers: torch eager and torch.compile in the mode reduce-overhead (CUDA graphs, no max-autotune), both in
channels-last and with cuDNN's own search, and what ONNX Runtime's own optimizer (onnxruntime.transformers.optimizer,
fp16) makes of a TorchScript export, with and without a graph of the device; for a full UNet that takes minutes and
17 GB of memory. An engine that fails has a row that says why, and the exit code is 5.

--provider cpu --family tiny tries all of it in seconds, without a GPU; its times say nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Arguments, in_turns, refuse_unknown

import sdort
from sdort.demo import RANDOM, write_demo
from sdort.options.number_ranges import parse_size
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.session import open_session

WARMUP, REPEAT = 5, 30
ENGINES = ("sdort", "torch", "compile", "ort")


def main() -> int:
    sdort.set_verbosity(0)
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    args.device = "cpu" if args.provider == "cpu" else "cuda"
    checkpoint = args.checkpoint or make_checkpoint(args.family, args.work / f"checkpoint-{args.family}")
    rows: list[dict[str, Any]] = []
    where = environment(args.device)
    print(json.dumps(where), HEADER, sep="\n", flush=True)
    for component in args.components.split(","):
        for size in args.sizes.split(","):
            for batch in map(int, args.batches.split(",")):
                args.size, args.batch = size, batch
                for row in benchmark(component, checkpoint, args):
                    rows.append(row)
                    print(line(row), flush=True)
                    if args.json:
                        args.json.write_text(json.dumps({"environment": where, "rows": rows}, indent=2))
    return 0 if all(row["ok"] for row in rows) else 5


def arguments() -> argparse.Namespace:
    parser = Arguments(
        __doc__, "--work --provider --checkpoint --family --custom-ops --json", providers="cuda rocm cpu"
    )
    parser.add_argument("--batch", dest="batches", default="2", help="samples, several by commas")
    parser.add_argument("--size", dest="sizes", default="512x512", help="of images, several by commas")
    parser.add_argument("--components", default="unet,vae_decoder")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--static", action="store_true", help="also graphs that are exported for their size")
    parser.add_argument("--ablation", action="store_true", help="also rows of sdort that lack one thing each")
    args = parser.parse_args()
    refuse_unknown(args.engines, ENGINES, "--engines", parser)
    return args


def make_checkpoint(family: str, folder: Path) -> Path:
    """A diffusers directory of the family's shape with random weights, made once."""
    if not (folder / "model_index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_demo(f"{RANDOM}{family}", folder)
    return folder


def optimized(
    component: str, checkpoint: Path, args: argparse.Namespace, *, static: bool, disable: Sequence[str] = ()
) -> Path:
    """The component as sdort exports and optimizes it, without the fusions in ``disable``."""
    from sdort.exporter.command import export
    from sdort.exporter.export_options import StaticSize
    from sdort.optimizer.command import optimize

    height, width = parse_size(args.size)
    name = f"{checkpoint.name}-{component}-{f'{args.batch}-{args.size}' if static else 'dynamic'}"
    work: Path = args.work
    exported, out = work / f"{name}-onnx", work / "-".join([name, args.provider, *disable])
    if not out.exists():
        start = time.perf_counter()
        # A static UNet runs both halves of classifier-free guidance at once: two rows for each image.
        images = args.batch // 2 if component == "unet" else args.batch
        size = StaticSize(images, height, width) if static else None
        if not exported.exists():
            export(checkpoint, exported, components=[component], static=size)
        middle = time.perf_counter()
        own = args.custom_ops != "off" and args.provider != "cpu"
        report = optimize(exported, out, provider=args.provider, fp16=True, sdort_ops=own, disable=disable)
        print(f"{name}: export {middle - start:.1f} s, optimize {report.seconds:.1f} s", file=sys.stderr)
    return out / component / "model.onnx"


def torch_module(component: str, checkpoint: Path, dtype: torch.dtype, device: str) -> torch.nn.Module:
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

        return Step().to(device).eval()
    vae = diffusers.AutoencoderKL.from_pretrained(checkpoint / "vae", torch_dtype=dtype)

    class Decode(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.vae = vae

        def forward(self, latent_sample: Any) -> Any:
            return self.vae.decode(latent_sample, return_dict=False)[0]

    return Decode().to(device).eval()


def ort_optimized(component: str, checkpoint: Path, args: argparse.Namespace, feeds: dict[str, torch.Tensor]) -> Path:
    """What ONNX Runtime's own optimizer makes of a TorchScript export, in fp16, as its Stable Diffusion script does."""
    import compare_ort_optimizer

    folder: Path = args.work / f"{checkpoint.name}-{component}-{args.provider}-ort"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        source, out = partial / "exported" / "model.onnx", partial / "model.onnx"
        shutil.rmtree(partial, ignore_errors=True)
        source.parent.mkdir(parents=True)
        # Sizes vary, so that a trace of 128x128 pixels does; it takes seconds where 1024x1024 take minutes.
        feeds = {k: v[..., :16, :16].cpu() if v.dim() == 4 else v.cpu() for k, v in feeds.items()}
        sizes = {4: {0: "batch", 2: "height", 3: "width"}, 3: {0: "batch", 1: "tokens"}, 2: {0: "batch"}}
        torch.onnx.export(
            torch_module(component, checkpoint, torch.float32, "cpu"), tuple(feeds.values()),
            str(source), input_names=[*feeds], output_names=["result"], opset_version=17, dynamo=False,
            dynamic_axes={name: sizes[each.dim()] for name, each in feeds.items() if each.dim() in sizes},
        )  # fmt: skip
        compare_ort_optimizer.pack(source)
        kind = "unet" if component == "unet" else "vae"
        words = [sys.executable, "-c", compare_ort_optimizer.ORT, str(source), str(out), kind, args.provider]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"ONNX Runtime's optimizer failed: {done.stderr.strip()[-300:]}")
        shutil.rmtree(source.parent)
        partial.rename(folder)
    return folder / "model.onnx"


def inputs(component: str, args: argparse.Namespace, checkpoint: Path) -> dict[str, torch.Tensor]:
    height, width = (side // 8 for side in parse_size(args.size))
    device = args.device
    generator = torch.Generator(device).manual_seed(int(time.time()))
    latent = torch.randn(args.batch, 4, height, width, device=device, generator=generator)
    if component == "vae_decoder":
        return {"latent_sample": latent}
    config = json.loads((checkpoint / "unet" / "config.json").read_text())
    states = torch.randn(args.batch, 77, config["cross_attention_dim"], device=device, generator=generator)
    feeds = {"sample": latent, "timestep": torch.tensor([481], device=device), "encoder_hidden_states": states}
    if config.get("addition_embed_type") == "text_time":
        # Six sizes and crops beside the text, as the export of a UNet without text encoders takes them.
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        sizes = [height * 8, width * 8, 0, 0, height * 8, width * 8]
        feeds["text_embeds"] = torch.randn(args.batch, pooled, device=device, generator=generator)
        feeds["time_ids"] = torch.tensor([sizes] * args.batch, device=device, dtype=torch.float32)
    return feeds


class OrtRunner:
    """A file that another tool made, in a session of ONNX Runtime's with inputs and output bound on the device."""

    def __init__(
        self, model: Path, args: argparse.Namespace, feeds: dict[str, torch.Tensor], shape: torch.Size, *, graph: bool
    ) -> None:
        import onnxruntime

        self.device = args.device

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        name, settings = {
            "cuda": ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graph))}),
            "rocm": ("ROCMExecutionProvider", {"tunable_op_enable": "1", "tunable_op_tuning_enable": "1",
                                               "enable_hip_graph": str(int(graph))}),
            "cpu": ("CPUExecutionProvider", {}),
        }[args.provider]  # fmt: skip
        self.session = onnxruntime.InferenceSession(model, options, providers=[(name, settings)])
        if name not in self.session.get_providers():
            raise RuntimeError(f"{name} did not load: {self.session.get_providers()}")
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
        dtype = torch.float16 if "16" in out.type else torch.float32
        self.output = torch.full(tuple(shape), float("nan"), dtype=dtype, device=args.device)
        self._bind(self.binding.bind_output, out.name, self.output)
        synchronize(self.device)  # the session runs on a stream of its own

    def _bind(self, bind: Any, name: str, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)
        dtype = {torch.float16: np.float16, torch.float32: np.float32, torch.int64: np.int64}[tensor.dtype]
        bind(name, self.device, 0, dtype, tuple(tensor.shape), tensor.data_ptr())

    def __call__(self) -> torch.Tensor:
        self.session.run_with_iobinding(self.binding)
        return self.output


class SdortRunner:
    """A session as sdort's commands open it, with what does not change from step to step prepared."""

    def __init__(self, model: Path, component: str, options: RuntimeOptions, feeds: dict[str, torch.Tensor]) -> None:
        self.device = next(iter(feeds.values())).device
        session = open_session(model, component, choose_provider(options)[0], options)
        self.binding = session.bind({name: value.cpu().numpy() for name, value in feeds.items()})

    def __call__(self) -> SdortRunner:
        self.binding.run()
        return self

    def float(self) -> torch.Tensor:
        """The output of the last run."""
        (output,) = self.binding.outputs().values()
        return torch.from_numpy(output).float().to(self.device)


def benchmark(component: str, checkpoint: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a component at one size, each as soon as it is measured."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # the reference is fp32 indeed
    row = {"component": component, "batch": args.batch, "size": args.size}
    with torch.inference_mode():
        free(args.device)
        torch.backends.cudnn.benchmark = False
        try:
            feeds = inputs(component, args, checkpoint)
            reference = one_by_one(torch_module(component, checkpoint, torch.float32, args.device), feeds, args.batch)
        except Exception as error:  # no memory for this size, say; the other sizes keep their rows
            yield {**row, "engine": "reference", "ok": False, "error": why(error)}
            return
        torch.backends.cudnn.benchmark = True  # torch's rows have the fastest convolutions that cuDNN finds
        for name, make in runners(component, checkpoint, args, feeds, reference.shape):
            free(args.device)
            row["engine"] = name
            try:
                found = {**row, **measure(make(), reference, args.device)}
            except Exception as error:  # one engine's failure leaves the others their numbers
                found = {**row, "ok": False, "error": why(error)}
            yield found


def one_by_one(model: torch.nn.Module, feeds: dict[str, torch.Tensor], batch: int) -> torch.Tensor:
    """The outputs of samples that are computed one by one.

    All at once torch 2.11 got eight of 1024x1024 wrong in fp32 on an H200: torch's own fp16 was as far off as sdort's.
    """
    samples = [{name: x[i : i + 1] if len(x) == batch else x for name, x in feeds.items()} for i in range(batch)]
    return torch.cat([model(*each.values()) for each in samples])


def free(device: str) -> None:
    """Give back what the last row held: what torch compiled, its CUDA graphs with their memory, and sessions.

    A graph that was compiled for another size would also have the next one compiled for sizes that vary.
    """
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:400]


def runners(
    component: str, checkpoint: Path, args: argparse.Namespace, feeds: dict[str, torch.Tensor], shape: torch.Size
) -> list[Any]:
    engines = args.engines.split(",")
    half = {k: v.half() if v.is_floating_point() else v for k, v in feeds.items()}
    rows: list[Any] = []
    if "torch" in engines:

        def eager() -> Any:
            model = torch_module(component, checkpoint, torch.float16, args.device)
            model = model.to(memory_format=torch.channels_last)
            return lambda: model(*half.values())

        rows.append(("torch eager", eager))
    if "compile" in engines:

        def compiled() -> Any:
            model = torch_module(component, checkpoint, torch.float16, args.device)
            model = model.to(memory_format=torch.channels_last)
            fast = torch.compile(model, mode="reduce-overhead", dynamic=False)
            return lambda: fast(*half.values())

        rows.append(("torch.compile", compiled))
    for graph in (False, True) if "ort" in engines else ():
        rows.append(
            (
                f"ORT optimizer{' + graph' if graph else ''}",
                lambda g=graph: OrtRunner(
                    ort_optimized(component, checkpoint, args, feeds), args, feeds, shape, graph=g
                ),
            )
        )
    if "sdort" in engines:
        lacking: list[tuple[str, dict[str, Any], Sequence[str]]] = [("", {}, ())]
        if args.ablation:
            lacking += [(f", without {what}", *lack) for what, lack in LACKING.items()]
        for static in (False, True) if args.static else (False,):
            for what, options, disable in lacking:
                make = partial(sdort_runner, component, checkpoint, args, feeds, static, options, disable)
                rows.append((f"sdort{', static' if static else ''}{what}", make))
    return rows


LACKING: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "operator library": ({"custom_ops": "off"}, ()),
    "prepared tensors": ({"split": False}, ()),
    "separate Q, K, V": ({}, ["separate_qkv"]),
    "moved biases": ({}, ["conv_bias"]),
    "fused upsampling": ({}, ["upsampling_convolution"]),
    "group norms of two parts": ({}, ["concat_group_norm"]),
    "wide attention": ({}, ["wide_attention"]),
    "group norms with a skip": ({}, ["skip_group_norm"]),
    "layer norms with a skip": ({}, ["skip_layer_normalization"]),
    "channels last": ({}, ["nhwc"]),
    "device graph": ({"graph": False}, ()),
}
"""Rows of --ablation by what they lack: options of the runtime, and what --disable takes."""


def sdort_runner(
    component: str,
    checkpoint: Path,
    args: argparse.Namespace,
    feeds: dict[str, torch.Tensor],
    static: bool,
    lacking: dict[str, Any],
    disable: Sequence[str],
) -> SdortRunner:
    model = optimized(component, checkpoint, args, static=static, disable=disable)
    graph = args.provider != "cpu"
    options = replace(RuntimeOptions(args.provider, graph=graph, custom_ops=args.custom_ops), **lacking)
    if options.custom_ops != "off" and graph:
        # The kernels' variants are timed once, outside of any graph; SDORT_OPS_TUNING keeps what was found.
        os.environ.setdefault("SDORT_OPS_TUNING", str(args.work / "tuning.tsv"))
        os.environ["SDORT_OPS_TUNE"] = "1"
        SdortRunner(model, component, replace(options, graph=False), feeds)()
        os.environ["SDORT_OPS_TUNE"] = "0"
    return SdortRunner(model, component, options, feeds)


def measure(run: Any, reference: torch.Tensor, device: str) -> dict[str, Any]:
    """Times in milliseconds, and how far the output is from the reference and from itself once it ran again."""
    output = run().float()
    error = float((output - reference).norm() / reference.norm())
    worst = float((output - reference).abs().max() / reference.std())
    seconds = in_turns({"run": run}, REPEAT, warmup=WARMUP, wait=partial(synchronize, device))["run"]
    times = [1e3 * each for each in seconds]
    again = float((run().float() - output).norm() / reference.norm())
    return {
        "median_ms": statistics.median(times), "min_ms": min(times), "p90_ms": sorted(times)[int(0.9 * len(times))],
        "error": error, "worst": worst, "rerun": again, "ok": bool(np.isfinite(error) and error < 2e-2),
    }  # fmt: skip


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def environment(device: str) -> dict[str, str]:
    import onnxruntime

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "torch": torch.__version__,
        **{name: number for name in ("cuda", "hip") if (number := getattr(torch.version, name))},
        "onnxruntime": onnxruntime.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


HEADER = (
    f"{'component':12} {'batch':>5} {'size':10} {'engine':36} {'median ms':>10} {'min':>8} {'p90':>8} "
    f"{'error':>9} {'max/std':>9} {'rerun':>9}"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table; one without times says why."""
    what = f"{row['component']:12} {row['batch']:5} {row['size']:10} {row['engine']:36}"
    if "median_ms" not in row:
        return f"{what} {' '.join(row['error'].split())}"
    return (
        f"{what} {row['median_ms']:10.3f} {row['min_ms']:8.3f} {row['p90_ms']:8.3f} "
        f"{row['error']:9.1e} {row['worst']:9.1e} {row['rerun']:9.1e}{'' if row['ok'] else '  WRONG'}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
