"""Diffusers' pipelines, put together of components that run as ONNX graphs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import transformers

from sdort.checkpoints.tokenizer_files import MAX_TEXT_FILE
from sdort.console import quiet_libraries, warn
from sdort.engines.original import checkpoint_of
from sdort.engines.torch import TorchEngine
from sdort.errors import BadModelError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.families.component_names import DECODER, ENCODER, SAFETY_CHECKER
from sdort.families.family import Encoder, PlainText
from sdort.families.known_families import TEXT_ENCODERS, TOKENIZERS
from sdort.families.unet import UNET
from sdort.files.input_file import read_input
from sdort.files.staging import temporary_folder
from sdort.generation.prompts.plain_tokenizer import PLAIN_FILES
from sdort.generation.requests.tokenizers import load_plain_tokenizer, load_tokenizer
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.integrations.diffusers.first_use import Precision, optimized_checkpoint
from sdort.integrations.torch.control_module import load_controlnet
from sdort.integrations.torch.graph_module import reloader
from sdort.integrations.torch.opened_component import open_components
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.integrations.torch.text_module import load_text_encoder, text_encoder_of
from sdort.integrations.torch.transformer_module import (
    TRANSFORMER,
    TRANSFORMERS,
    check_no_adapters,
    load_transformer,
    transformer_of,
)
from sdort.integrations.torch.unet_module import load_unet, unet_of
from sdort.integrations.torch.vae_module import load_vae, vae_of
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers import CPU
from sdort.providers.runtime_options import LoadOptions
from sdort.samplers.scheduler_names import is_flow

if TYPE_CHECKING:
    from typing_extensions import Unpack


TASKS = {
    "text-to-image": "",
    "image-to-image": "Img2Img",
    "inpainting": "Inpaint",
    "controlnet": "ControlNet",
    "controlnet-image-to-image": "ControlNetImg2Img",
    "controlnet-inpainting": "ControlNetInpaint",
}
"""Task -> the part of the names of diffusers' classes that says so."""
_INPAINTING = ("inpainting", "controlnet-inpainting")
_FROM_TEXT = ("text-to-image", "controlnet")
"""Tasks that need no encoder of images."""
_REFINER = ("image-to-image", "inpainting")
_TRANSFORMER = ("text-to-image", "image-to-image", "inpainting")
"""Tasks of families with a transformer: sdort exports none of their ControlNets."""


def check_task(task: str) -> None:
    """Refuse what is no task.

    Raises:
        UsageError: there is none by this name.
    """
    if task not in TASKS:
        raise UsageError(f"there is no task {task!r}", hint=f"There are: {', '.join(TASKS)}.")


def pipeline_class(folder: PipelineFolder, task: str) -> Any:
    """Diffusers' class that does a task with the components of a folder.

    Raises:
        BadModelError: the pipeline is not for this task.
    """
    _check_fit(folder, task)
    import diffusers

    # A refiner's own class has a task in its name.
    family = str(folder.family.pipelines[None]).removesuffix("Pipeline").removesuffix(TASKS["image-to-image"])
    return getattr(diffusers, f"{family}{TASKS[task]}Pipeline")


def _check_fit(folder: PipelineFolder, task: str) -> None:
    denoiser = folder.family.denoiser.class_name
    if denoiser not in (UNET.class_name, *TRANSFORMERS):
        raise BadModelError(
            f"{folder.path} has a {denoiser}, which no pipeline of diffusers' takes as a graph",
            component=folder.denoiser,
            hint="sdort.load runs the whole pipeline.",
        )
    if folder.family.aesthetic and task not in _REFINER:
        raise BadModelError(
            f"{folder.path} is a refiner, which does no {task}", hint=f"It does {' and '.join(_REFINER)}."
        )
    if folder.denoiser == TRANSFORMER and task not in _TRANSFORMER:
        raise BadModelError(
            f"{folder.path} has a transformer, which does no {task} here", hint=f"It does {', '.join(_TRANSFORMER)}."
        )
    if folder.sample_channels != folder.latent_channels and task not in _INPAINTING:
        raise BadModelError(
            f"{folder.path} has a UNet of {folder.sample_channels} channels, which does no {task}",
            component=folder.denoiser,
            hint=f"It is for {' and '.join(_INPAINTING)}.",
        )
    if task not in _FROM_TEXT and ENCODER not in folder.models:
        raise BadModelError(
            f"{folder.path} has no {ENCODER}, which {task} needs",
            hint="Export all of the checkpoint:\n    sdort export MODEL OUT",
        )


TextEncoders = Literal["sdort", "torch"]


def load_pipeline(
    path: str | Path,
    task: str = "text-to-image",
    *,
    controlnet: Any = None,
    text_encoder: TextEncoders = "sdort",
    optimize: bool | Precision = False,
    **options: Unpack[LoadOptions],
) -> Any:
    """Diffusers' own pipeline for a task, with the components of an exported or optimized pipeline in it.

    Args:
        path: the folder of a Stable Diffusion 1.x, 2.x, XL or 3 pipeline, of a refiner, of Z-Image, Flux.1 or Chroma;
            with ``optimize`` a checkpoint.
        task: ``text-to-image``, ``image-to-image``, ``inpainting``, ``controlnet``, ``controlnet-image-to-image`` or
            ``controlnet-inpainting``; the last three with a UNet alone.
        controlnet: for the tasks with one, its folder, or its module; several in a list.
        text_encoder: ``torch`` takes the text encoders of the checkpoint that the pipeline was made from, for textual
            inversion and what else changes their inside.
        optimize: export and optimize a checkpoint (a diffusers folder or a single file) on first use into sdort's
            cache, with a progress bar: ``"fp16"``, ``"fp32"``, or True, which is fp16 on a GPU and fp32 on the CPU.
        options: those of :func:`sdort.load`. ``adapters`` lets ``load_lora_weights`` change the UNet.

    Returns:
        ``StableDiffusionPipeline``, ``StableDiffusionXLImg2ImgPipeline``, ``FluxPipeline`` and so on, with the
        scheduler that the checkpoint has.

    Raises:
        UsageError: there is no such task, there is nothing to optimize, a ControlNet is missing or of no use,
            ``adapters`` are asked for with a transformer, or the checkpoint of ``text_encoder="torch"`` is not on this
            machine.
        BadModelError: the pipeline is not for this task, or a component does not load.
        ProviderError: the provider does not load and ``fallback`` is not True, or it cannot run a component.

    Example:
        >>> pipeline = load_pipeline("fast", provider="cuda")
        >>> pipeline("a lighthouse at dusk").images[0].save("lighthouse.png")
    """
    steered = task.startswith("controlnet")
    check_task(task)
    _check_controlnet(task, steered, controlnet)
    _check_text_encoder(text_encoder)
    folder = open_folder(optimized_checkpoint(Path(path), optimize, options) if optimize else Path(path))
    kind = pipeline_class(folder, task)
    parts = _components(folder, options, steered, None if text_encoder == "sdort" else Path(path))
    if steered:
        parts["controlnet"] = _controlnets(controlnet, options)
    parts |= _processors(folder) | _settings(folder)
    taken = inspect.signature(kind.__init__).parameters
    if SAFETY_CHECKER in folder.models and SAFETY_CHECKER in taken:
        warn(f"the safety checker of {folder.path} is no part of this pipeline, whose images nobody judges")
    with quiet_libraries():
        return kind(**{name: part for name, part in parts.items() if name in taken})


def _components(folder: PipelineFolder, options: LoadOptions, steered: bool, texts_of: Path | None) -> dict[str, Any]:
    """The modules by diffusers' names; an encoder that the family does not have is None.

    Args:
        texts_of: the checkpoint whose text encoders are torch's, or what was made from it; None where they are graphs.
    """
    encoders = [encoder.component for encoder in folder.family.encoders]
    ours = [] if texts_of else encoders
    if folder.denoiser == TRANSFORMER:
        check_no_adapters(options)
    opened = open_components(
        folder.path, (*ours, folder.denoiser, DECODER), options, optional=(ENCODER,), control_inputs=steered
    )
    parts: dict[str, Any] = {
        folder.denoiser: transformer_of(opened, reloader(load_transformer, folder.path, options))
        if folder.denoiser == TRANSFORMER
        else unet_of(opened, reloader(load_unet, folder.path, options, control_inputs=steered)),
        "vae": vae_of(opened, reloader(load_vae, folder.path, options)),
        **dict.fromkeys(TEXT_ENCODERS),
    }
    for name in ours:
        parts[name] = text_encoder_of(opened, name, reloader(load_text_encoder, folder.path, options, component=name))
    return parts | (_torch_encoders(opened.sessions[folder.denoiser], encoders, texts_of) if texts_of else {})


def _torch_encoders(denoiser: TensorSession, names: Sequence[str], path: Path) -> dict[str, Any]:
    """The checkpoint's text encoders, where the denoiser is and in its dtype.

    Raises:
        UsageError: it is not known where the checkpoint is.
        BadModelError: they do not load.
    """
    provider = CPU if denoiser.device.type == "cpu" else denoiser.session.provider
    with checkpoint_of(path) as checkpoint:
        engine = TorchEngine(
            checkpoint,
            provider,
            str(denoiser.dtype).removeprefix("torch."),
            device_id=denoiser.session.options.device_id,
        )
        return {name: getattr(engine.pipeline(name), name) for name in names}


def _check_controlnet(task: str, steered: bool, controlnet: Any) -> None:
    if steered and (controlnet is None or controlnet in ([], ())):
        raise UsageError(f"{task} needs a ControlNet", hint="Give its folder: controlnet='canny'.")
    if controlnet is not None and not steered:
        raise UsageError(f"{task} takes no ControlNet", hint="Give a task that does: task='controlnet'.")


def _check_text_encoder(text_encoder: str) -> None:
    if text_encoder not in ("sdort", "torch"):
        raise UsageError(f"there is no text_encoder={text_encoder!r}", hint="There are 'sdort' and 'torch'.")


def _controlnets(controlnet: Any, options: LoadOptions) -> Any:
    if isinstance(controlnet, (list, tuple)):
        return [_controlnets(each, options) for each in controlnet]
    if isinstance(controlnet, (str, Path)):
        return load_controlnet(controlnet, **options)
    if not isinstance(controlnet, torch.nn.Module):
        raise UsageError(
            f"a ControlNet cannot be a {type(controlnet).__name__}", hint="Give its folder, or its torch module."
        )
    return controlnet


def _processors(folder: PipelineFolder) -> dict[str, Any]:
    """The scheduler and the tokenizers."""
    return {
        "scheduler": load_scheduler(folder.path / "scheduler", None, flow=is_flow(folder.family.scheduler)),
        **dict.fromkeys(TOKENIZERS),
        **{
            each.tokenizer: _plain_tokenizer(folder, each, each.plain)
            if each.plain
            else _tokenizer(folder.path / each.tokenizer)
            for each in folder.family.encoders
        },
    }


def _tokenizer(path: Path) -> Any:
    """Transformers' own, which pipelines take, from files that sdort's reads too.

    Raises:
        BadModelError: the files are none of a tokenizer, or say what transformers does not take.
    """
    load_tokenizer(path)
    return _loaded("CLIPTokenizer", path, path)


def _plain_tokenizer(folder: PipelineFolder, encoder: Encoder, plain: PlainText) -> Any:
    """Transformers' own of an encoder that reads plain text, from a copy of the two files that sdort's reads.

    Raises:
        BadModelError: as :func:`_tokenizer`.
    """
    path = folder.path / encoder.tokenizer
    load_plain_tokenizer(path, plain, folder.config(encoder.component).get("vocab_size"))
    with temporary_folder("tokenizer") as copy:
        for name in PLAIN_FILES:
            (copy / name).write_bytes(read_input(path / name, limit=MAX_TEXT_FILE))
        tokenizer = _loaded(plain.tokenizer, copy, path)
    if plain.before:
        tokenizer.chat_template = _chat_template(plain)
    return tokenizer


def _loaded(class_name: str, files: Path, path: Path) -> Any:
    try:
        return getattr(transformers, class_name).from_pretrained(files, local_files_only=True)
    except Exception as error:  # whatever its constructor makes of a key
        raise BadModelError(f"transformers cannot load the tokenizer in {path}: {library_reason(error)}") from error


def _chat_template(plain: PlainText) -> str:
    """The family's template for one message of a user, which ``sdort export`` has held against the checkpoint's."""
    before, after = json.dumps(plain.before), json.dumps(plain.after)
    return f"{{{{ {before} ~ messages[0]['content'] ~ {after} }}}}"


def _settings(folder: PipelineFolder) -> dict[str, Any]:
    """The other arguments of pipelines."""
    return {
        "safety_checker": None,
        "feature_extractor": None,
        "image_encoder": None,
        "requires_safety_checker": False,
        "force_zeros_for_empty_prompt": folder.empty_is_zero,
        "requires_aesthetics_score": folder.family.aesthetic,
        "add_watermarker": False,
    }
