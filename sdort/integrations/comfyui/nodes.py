"""ComfyUI's nodes, in the form that all of its releases load (``NODE_CLASS_MAPPINGS``).

What ComfyUI knows of a node stands in its class: ``INPUT_TYPES``, ``RETURN_TYPES``, ``FUNCTION``, ``CATEGORY``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdort.console import following, warn
from sdort.errors import UsageError
from sdort.families.component_names import DECODER, ENCODER
from sdort.families.unet import UNET
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model
from sdort.integrations.comfyui.denoiser import Denoiser
from sdort.integrations.comfyui.optimized_unet import make_patcher
from sdort.integrations.comfyui.optimized_vae import make_vae
from sdort.providers import AUTO, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider

Inputs = dict[str, dict[str, Any]]
"""ComfyUI's description of a node's inputs: ``required`` or ``optional`` -> name -> type and settings."""

_CATEGORY = "sdort"
_BAR = 1000
"""Steps of ComfyUI's progress bar."""
_PRECISION = ("auto", "fp16", "fp32")
_STATIC = "--static"
"""The option of the command line that the field ``size`` is."""


def _provider_input() -> tuple[Any, ...]:
    tip = "Where it runs. auto: the best execution provider of this ONNX Runtime that works here."
    return ([AUTO, *PROVIDERS], {"default": AUTO, "tooltip": tip})


def _making_inputs(precision: str) -> Inputs:
    size = (
        "Make it for one size alone, as BxHxW (images, height and width in pixels), such as 1x512x512; a UNet then "
        "takes prompts of at most 75 tokens, and cfg other than 1. Empty: for all."
    )
    choice = (_PRECISION, {"default": "auto", "tooltip": precision})
    return {
        "required": {"provider": _provider_input(), "precision": choice},
        "optional": {"size": ("STRING", {"default": "", "tooltip": size})},
    }


class LoadCheckpoint:
    """A checkpoint whose UNet is optimized on its first use, and whose text encoders are ComfyUI's own."""

    RETURN_TYPES = ("MODEL", "CLIP")
    FUNCTION = "load"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Loads a checkpoint of SD 1.x, 2.x, SDXL or SDXL's refiner; sdort runs its UNet on ONNX Runtime. On the first "
        "use of a checkpoint it is exported and optimized, which takes minutes; the result is kept."
    )

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        import folder_paths

        making = _making_inputs("auto: fp16 on a GPU, fp32 on the CPU.")
        names = folder_paths.get_filename_list("checkpoints")
        return {**making, "required": {"ckpt_name": (names,), **making["required"]}}

    @classmethod
    def IS_CHANGED(cls, ckpt_name: str, **_: Any) -> str:
        return _state(_file("checkpoints", ckpt_name))

    def load(self, ckpt_name: str, provider: str, precision: str, size: str = "") -> tuple[Any, Any]:
        import comfy.sd
        import folder_paths

        path, chosen = _file("checkpoints", ckpt_name), _chosen(provider)
        with _progress():
            made = _optimized(path, _making((UNET.component,), chosen, precision, size, "fp16"))
            patcher = make_patcher(made, chosen)
        embeddings = folder_paths.get_folder_paths("embeddings")
        loaded = comfy.sd.load_checkpoint_guess_config(
            str(path), output_vae=False, output_clip=True, embedding_directory=embeddings, output_model=False
        )
        return patcher, loaded[1]


class LoadVAE:
    """The VAE of a checkpoint or of a file of its own, optimized on its first use."""

    RETURN_TYPES = ("VAE",)
    FUNCTION = "load"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Loads a VAE, from a file of its own or from a checkpoint; sdort runs it on ONNX Runtime. On the first use it "
        "is exported and optimized. Where memory is short, ComfyUI goes on in tiles."
    )
    _FOLDERS = ("vae", "checkpoints")

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        import folder_paths

        making = _making_inputs("auto: fp32, as SDXL's own VAE overflows in fp16.")
        names = [name for folder in cls._FOLDERS for name in folder_paths.get_filename_list(folder)]
        return {**making, "required": {"vae_name": (names,), **making["required"]}}

    @classmethod
    def IS_CHANGED(cls, vae_name: str, **_: Any) -> str:
        return _state(cls._path(vae_name))

    @classmethod
    def _path(cls, name: str) -> Path:
        import folder_paths

        folder = next((each for each in cls._FOLDERS if folder_paths.get_full_path(each, name)), cls._FOLDERS[0])
        return _file(folder, name)

    def load(self, vae_name: str, provider: str, precision: str, size: str = "") -> tuple[Any]:
        chosen = _chosen(provider)
        with _progress():
            making = _making((DECODER, ENCODER), chosen, precision, size, "fp32")
            return (make_vae(_optimized(self._path(vae_name), making), chosen),)


class LoadFolder:
    """A folder of ``sdort optimize``, with any of its options."""

    RETURN_TYPES = ("MODEL", "VAE")
    FUNCTION = "load"
    CATEGORY = _CATEGORY
    DESCRIPTION = "Loads the UNet and the VAE of a folder that sdort optimize made, on this machine or elsewhere."

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        return {"required": {"folder": ("STRING", {"default": ""}), "provider": _provider_input()}}

    @classmethod
    def IS_CHANGED(cls, folder: str, **_: Any) -> str:
        return _state(Path(folder, "sdort.json")) if folder else ""

    def load(self, folder: str, provider: str) -> tuple[Any, Any]:
        if not folder:
            raise UsageError("no folder is named", hint="Write the path of a folder of sdort optimize into the node.")
        path, chosen = Path(folder).expanduser(), _chosen(provider)
        with _progress():
            return make_patcher(path, chosen), make_vae(path, chosen)


class WarmUp:
    """A UNet run once at a size, so that the first image of that size does not wait for it."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "warm"
    CATEGORY = _CATEGORY
    DESCRIPTION = (
        "Runs the UNet once at a size, with and without a prompt in one batch as samplers do: memory is there before "
        "the first image. On a GPU kernels are tuned for the size first, once: what is found is kept for later starts."
    )

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        side = {"default": 512, "min": 16, "max": 16384, "step": 8}
        count = {"default": 1, "min": 1, "max": 4096}
        return {"required": {"model": ("MODEL",), "width": ("INT", side), "height": ("INT", side),
                             "batch_size": ("INT", count)}}  # fmt: skip

    def warm(self, model: Any, width: int, height: int, batch_size: int) -> tuple[Any]:
        denoiser = getattr(model.model, "diffusion_model", None)
        if not isinstance(denoiser, Denoiser):
            raise UsageError(
                "the model is none of sdort's, so there is nothing to warm up",
                hint="Connect the MODEL of a node of sdort's.",
            )
        with _progress():
            denoiser.warm_up(batch_size, height, width)
        return (model,)


NODE_CLASS_MAPPINGS = {
    "SdortLoadCheckpoint": LoadCheckpoint,
    "SdortLoadVAE": LoadVAE,
    "SdortLoadFolder": LoadFolder,
    "SdortWarmUp": WarmUp,
}
"""Names in workflows -> classes."""

NODE_DISPLAY_NAME_MAPPINGS = {
    "SdortLoadCheckpoint": "Load Checkpoint (sdort)",
    "SdortLoadVAE": "Load VAE (sdort)",
    "SdortLoadFolder": "Load Optimized Folder (sdort)",
    "SdortWarmUp": "Warm Up (sdort)",
}
"""Names in workflows -> titles."""


def _file(folder: str, name: str) -> Path:
    import folder_paths

    return Path(folder_paths.get_full_path_or_raise(folder, name))


def _state(path: Path) -> str:
    """Differs where a file is another one than before."""
    status = path.stat()
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"


def _chosen(provider: str) -> Provider:
    """The provider that runs.

    Raises:
        ProviderError: the one that is asked for does not load.
    """
    chosen, fallback = choose_provider(RuntimeOptions(provider), hint="Choose another provider in the node, or auto.")
    if fallback:
        warn(fallback)
    return chosen


def _making(components: tuple[str, ...], provider: Provider, precision: str, size: str, on_gpu: str) -> Making:
    usual = on_gpu if provider.on_gpu else provider.usual_precision
    return Making(components, provider.name, usual if precision == "auto" else precision, size.strip())


def _optimized(path: Path, making: Making) -> Path:
    """The optimized model of a checkpoint; what is wrong with an option is said of the node's field.

    Raises:
        SdortError: as :func:`optimized_model`.
    """
    try:
        return optimized_model(path, making)
    except UsageError as error:
        if _STATIC not in error.message:
            raise
        hint = "Empty, the model works at all sizes."
        raise UsageError(error.message.replace(_STATIC, "the node's size"), hint=hint) from error


@contextmanager
def _progress() -> Iterator[None]:
    """Show what sdort does meanwhile in ComfyUI's progress bar, whose button to interrupt ends it."""
    import comfy.model_management
    import comfy.utils

    bar = comfy.utils.ProgressBar(_BAR)

    def follow(_: str, done: float, total: float | None) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        bar.update_absolute(round(_BAR * done / total) if total else 0, _BAR)

    with following(follow):
        yield
