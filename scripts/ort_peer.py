"""ONNX Runtime without anything of sdort's, as an engine to be timed beside it; no program of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import why

from sdort.engines.torch import TorchEngine
from sdort.errors import ProviderError
from sdort.families.denoiser_arguments import module_arguments
from sdort.families.unet import UNET
from sdort.graph.signature import Array
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.workload.cases import Case, make_feeds


class OrtRunner:
    """A file that another tool made, in a session of ONNX Runtime's with inputs and output bound on the device."""

    def __init__(
        self, model: Path, provider: str, feeds: Mapping[str, torch.Tensor], shape: Sequence[int], *, graph: bool
    ) -> None:
        import onnxruntime

        self.device = "cpu" if provider == "cpu" else "cuda"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        name, settings = {
            "cuda": ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(graph))}),
            "rocm": ("ROCMExecutionProvider", {"tunable_op_enable": "1", "tunable_op_tuning_enable": "1",
                                               "enable_hip_graph": str(int(graph))}),
            "cpu": ("CPUExecutionProvider", {}),
        }[provider]  # fmt: skip
        self.session = onnxruntime.InferenceSession(model, options, providers=[(name, settings)])
        if name not in self.session.get_providers():
            raise ProviderError(f"{name} did not load: {self.session.get_providers()}")
        self.binding = self.session.io_binding()
        self.kept: list[torch.Tensor] = []
        for value in self.session.get_inputs():
            dtype = {"tensor(float16)": torch.float16, "tensor(float)": torch.float32, "tensor(int64)": torch.int64}[
                value.type
            ]
            tensor = feeds[value.name].to(self.device, dtype)
            if len(value.shape) == 0:
                tensor = tensor.reshape(())
            self._bind(self.binding.bind_input, value.name, tensor.contiguous())
        (out,) = self.session.get_outputs()
        dtype = torch.float16 if "16" in out.type else torch.float32
        self.output = torch.full(tuple(shape), float("nan"), dtype=dtype, device=self.device)
        self._bind(self.binding.bind_output, out.name, self.output)
        self.wait()  # the session runs on a stream of its own

    def _bind(self, bind: Any, name: str, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)
        dtype = {torch.float16: np.float16, torch.float32: np.float32, torch.int64: np.int64}[tensor.dtype]
        bind(name, self.device, 0, dtype, tuple(tensor.shape), tensor.data_ptr())

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)
        self.wait()

    def result(self) -> dict[str, Array]:
        return {"output": self.output.float().cpu().numpy()}


class OrtEngine(TorchEngine):
    """A checkpoint's component as ONNX Runtime's own optimizer leaves it, in a session without anything of sdort's."""

    name = "onnxruntime"

    def __init__(self, checkpoint: Path, provider: Provider, work: Path, shape: Sequence[int], graph: bool) -> None:
        super().__init__(checkpoint, provider, "float16")
        self.work, self.shape, self.graph = work, shape, graph

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> OrtRunner:
        try:
            model = ort_optimized(case.component, self.path, self.provider.name, self.work)
            feeds = tensors_of(case, self)
            return OrtRunner(model, self.provider.name, feeds, self.shape, graph=self.graph)
        except Exception as error:  # of onnxruntime's many classes
            raise ProviderError(why(error)) from error


def tensors_of(case: Case, engine: TorchEngine) -> dict[str, torch.Tensor]:
    """The inputs of a component; a timestep is a whole number, as a scheduler gives it."""
    feeds = make_feeds(case, engine.inputs(case.component), engine.factor)
    tensors = {name: torch.as_tensor(x) for name, x in feeds.items()}
    return {name: x.long() if name == UNET.roles.timestep else x for name, x in tensors.items()}


class Traced(torch.nn.Module):  # type: ignore[misc]
    """A component with the inputs of its graph, as torch.onnx.export takes it."""

    def __init__(self, component: str, engine: TorchEngine, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
        self.part = getattr(engine.pipeline(component), "vae" if component == "vae_decoder" else component)

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        if hasattr(self.part, "decode"):
            return self.part.decode(*tensors, return_dict=False)[0]
        return self.part(**module_arguments(self.names, tensors, UNET.arguments), return_dict=False)[0]


def ort_optimized(component: str, checkpoint: Path, provider: str, work: Path) -> Path:
    """What ONNX Runtime's own optimizer makes of a TorchScript export, in fp16, as its Stable Diffusion script does."""
    import compare_ort_optimizer

    folder = work / f"{checkpoint.name}-{component}-{provider}-ort"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        source, out = partial / "exported" / "model.onnx", partial / "model.onnx"
        shutil.rmtree(partial, ignore_errors=True)
        source.parent.mkdir(parents=True)
        engine = TorchEngine(checkpoint, CPU, "float32")
        # Sizes vary, so that a trace of 128x128 pixels does; it takes seconds where 1024x1024 take minutes.
        feeds = tensors_of(Case(component, 2, 128, 128), engine)
        sizes = {4: {0: "batch", 2: "height", 3: "width"}, 3: {0: "batch", 1: "tokens"}, 2: {0: "batch"}}
        with torch.inference_mode():
            torch.onnx.export(
                Traced(component, engine, [*feeds]), tuple(feeds.values()),
                str(source), input_names=[*feeds], output_names=["result"], opset_version=17, dynamo=False,
                dynamic_axes={name: sizes[each.dim()] for name, each in feeds.items() if each.dim() in sizes},
            )  # fmt: skip
        compare_ort_optimizer.pack(source)
        kind = "unet" if component == "unet" else "vae"
        words = [sys.executable, "-c", compare_ort_optimizer.ORT, str(source), str(out), kind, provider]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"ONNX Runtime's optimizer failed: {done.stderr.strip()[-300:]}")
        shutil.rmtree(source.parent)
        partial.rename(folder)
    return folder / "model.onnx"
