"""ComfyUI's MODEL of an optimized UNet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdort.errors import UsageError
from sdort.families.unet import UNET
from sdort.integrations.comfyui.unet_folder import UnetFolder
from sdort.pipelines.folder import open_folder
from sdort.providers.provider import Provider

_TRAINED = {"beta_schedule": "scaled_linear", "num_train_timesteps": 1000, "trained_betas": None}
"""Assumptions of ComfyUI's sampling of these families."""


def make_patcher(path: Path, provider: Provider) -> Any:
    """ComfyUI's ``ModelPatcher`` on an optimized UNet, which is open then.

    LoRA nodes leave their patches in it, which the session's weights get before it samples.

    Args:
        path: a folder of ``sdort optimize`` with a UNet.

    Raises:
        BadModelError: the folder has no UNet, or lacks what ComfyUI needs to know of it.
        UsageError: the model was trained with another schedule of noise than ComfyUI's sampling takes for given.
        ProviderError: it cannot be opened.
    """
    import comfy.model_management
    import comfy.model_patcher
    import comfy.patcher_extension

    unet = UnetFolder(open_folder(path, (UNET.component,)), provider)
    model = _model(unet)
    device = comfy.model_management.get_torch_device()
    if provider.on_gpu:  # ONNX Runtime's memory is none of torch's: room is made as for a model of ComfyUI's own
        files = unet.folder.models[UNET.component].parent.iterdir()
        comfy.model_management.free_memory(sum(file.stat().st_size for file in files), device)
    model.diffusion_model = unet.denoiser()
    model.memory_required = lambda *_, **__: 0  # of what it takes ComfyUI can give back nothing
    patcher = comfy.model_patcher.ModelPatcher(model, device, comfy.model_management.unet_offload_device(), size=1)
    patcher.add_callback(comfy.patcher_extension.CallbacksMP.ON_PRE_RUN, _before_sampling)
    return patcher


def _before_sampling(patcher: Any) -> None:
    """Let the UNet have the patches of the patcher that samples now: its clones share the UNet."""
    if patcher.hook_patches:
        raise UsageError(
            "a hook changes the weights of the UNet while it samples, which an exported graph does not do",
            hint="Load the LoRA with a plain LoRA node, or the model with ComfyUI's own loader.",
        )
    patcher.model.diffusion_model.use_patches(patcher.patches, patcher.patches_uuid)


def _model(unet: UnetFolder) -> Any:
    """ComfyUI's ``BaseModel`` of the family, without a UNet."""
    import comfy.model_base
    import comfy.model_detection
    import comfy.supported_models

    schedule = unet.folder.scheduler
    described = comfy.model_detection.detect_unet_config(unet.empty, "")
    described["disable_unet_model_creation"] = True
    classes = unet.comfyui
    chosen = classes.linear_config if described["use_linear_in_transformer"] else classes.config
    config = getattr(comfy.supported_models, chosen)(described)
    config.sampling_settings.update(_sampling_settings(schedule, unet.folder.path))
    kinds = {"epsilon": "EPS", "v_prediction": "V_PREDICTION"}
    kind = schedule.get("prediction_type", "epsilon")
    if kind not in kinds:
        raise UsageError(f"{unet.folder.path}: ComfyUI samples no model of this family that predicts {kind}")
    model_class = getattr(comfy.model_base, classes.model)
    model = model_class(config, model_type=getattr(comfy.model_base.ModelType, kinds[kind]))
    if config.inpaint_model():
        model.set_inpaint()
    return model


def _sampling_settings(schedule: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """ComfyUI's settings of the schedule of noise that the model was trained with.

    Raises:
        UsageError: ComfyUI has none for it.
    """
    other = [name for name, usual in _TRAINED.items() if schedule.get(name, usual) != usual]
    if "EDM" in str(schedule.get("_class_name")):
        other.append("EDM")
    if other:
        raise UsageError(
            f"{path} was trained with another schedule of noise ({', '.join(other)}) than ComfyUI takes for given",
            hint="Load it with ComfyUI's own loader.",
        )
    settings = {"linear_start": schedule.get("beta_start", 0.00085), "linear_end": schedule.get("beta_end", 0.012)}
    return settings | {"zsnr": bool(schedule.get("rescale_betas_zero_snr"))}
