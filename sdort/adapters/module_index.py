"""The modules of a pipeline under every name by which adapters call them.

Trainers write a module's name with underscores (``lora_unet_down_blocks_0_attentions_0_...``), which cannot be split
again without a guess; so the names of all modules are spelled in each trainer's way, and looked up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from sdort.checkpoints.ldm_names import original_clip_names, original_unet_names
from sdort.families.data import sdxl
from sdort.families.known_families import DENOISERS, FAMILIES
from sdort.families.unet import UNET

Shape = tuple[int, ...]
Parameters = Mapping[str, Mapping[str, Shape]]
"""Component -> its parameters with their shapes."""

TEXT_1, TEXT_2 = (encoder.component for encoder in sdxl.FAMILY.encoders)
ADAPTED = (*DENOISERS, TEXT_1, TEXT_2)
"""The components that adapters change."""
_PREFIXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # of kohya-ss/sd-scripts, LyCORIS, diffusers, ComfyUI, and checkpoints in the original layout
    *((prefix, (name,)) for name, denoiser in DENOISERS.items() for prefix in denoiser.adapter_prefixes),
    # kohya-ss/sd-scripts
    ("lora_te1_", (TEXT_1,)),
    ("lora_te2_", (TEXT_2,)),
    ("lora_te_", (TEXT_1, TEXT_2)),
    # diffusers
    ("text_encoder_2_", (TEXT_2,)),
    ("text_encoder_", (TEXT_1,)),
    # ComfyUI, and checkpoints in the original layout
    ("text_encoders_clip_l_transformer_", (TEXT_1,)),
    ("text_encoders_clip_g_transformer_", (TEXT_2,)),
    ("clip_l_transformer_", (TEXT_1,)),
    ("clip_g_transformer_", (TEXT_2,)),
    ("cond_stage_model_", (TEXT_1,)),
    ("conditioner_embedders_0_", (TEXT_1,)),
    ("conditioner_embedders_1_", (TEXT_2,)),
    # one component alone, as peft saves it
    ("", ADAPTED),
)
"""Beginnings of a module's name with underscores, and the components that they can mean; the first that fits."""

_WRAPPERS = re.compile(r"^(?:base_model\.model\.)+")
_PROCESSOR = re.compile(r"\.processor(?=\.|$)")


class Target(NamedTuple):
    """A module that an adapter changes, or a part of what the adapter takes for one."""

    component: str
    module: str
    """As diffusers or transformers names it: the parameters are ``MODULE.weight`` and ``MODULE.bias``."""
    first: int = 0
    """The first of the rows of a fused matrix that are this module's."""
    whole: int | None = None
    """The rows of a fused matrix; None for one that is this module's alone."""
    swapped: bool = False
    """The two halves of the adapter's rows change places."""


class ModuleIndex:
    """Modules by the names that adapters give them."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._names = {component: _names(component, shapes) for component, shapes in parameters.items()}

    def find(self, name: str) -> list[list[Target]]:
        """The possible meanings of a module's name in a file: none, one, or one for each text encoder.

        A meaning is one module, or several whose weights lie one below the other in the file's.
        """
        plain = _PROCESSOR.sub("", _WRAPPERS.sub("", name)).replace(".", "_")
        for prefix, components in _PREFIXES:
            if plain.startswith(prefix):
                if prefix == "lora_te_":  # the only text encoder; of two the first
                    components = tuple(component for component in components if component in self._names)[:1]
                known = [self._names.get(component, {}).get(plain[len(prefix) :]) for component in components]
                if meanings := [meaning for meaning in known if meaning]:
                    return meanings
        return []


def component_of(name: str, known: Collection[str] = ()) -> str | None:
    """The component that the beginning of a module's name says, whether the pipeline has it or not.

    Args:
        known: the pipeline's components, for beginnings that several can have.
    """
    plain = _WRAPPERS.sub("", name).replace(".", "_")
    meant = [each[0] for prefix, each in _PREFIXES if plain.startswith(prefix) and each is not ADAPTED]
    return next((component for component in meant if component in known), next(iter(meant), None))


def without_component(name: str) -> str:
    """A module's name with points, as peft's configs have it: without the component that it begins with."""
    return re.sub(rf"^(?:{'|'.join(ADAPTED)})\.", "", _WRAPPERS.sub("", name))


def _names(component: str, parameters: Mapping[str, Shape]) -> dict[str, list[Target]]:
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
    if component == UNET.component:
        spelled = _unet_names(modules, parameters)
    elif component in DENOISERS:
        spelled = _transformer_names(component, modules, parameters)
    else:
        spelled = _text_names(modules, parameters)
    names: dict[str, list[Target]] = {}
    for name, targets in spelled:
        names.setdefault(name.replace(".", "_"), [target._replace(component=component) for target in targets])
    return names


def _fused(modules: Collection[str], parameters: Mapping[str, Shape]) -> list[Target]:
    """Modules whose rows lie one below the other in an adapter's module; none where one has no weight."""
    rows = [parameters.get(f"{module}.weight", (0,))[0] for module in modules]
    if 0 in rows:
        return []
    return [Target("", module, sum(rows[:number]), sum(rows)) for number, module in enumerate(modules)]


def _transformer_names(
    component: str, modules: Collection[str], parameters: Mapping[str, Shape]
) -> Iterator[tuple[str, list[Target]]]:
    for module in modules:
        yield module, [Target("", module)]
    families = (each for each in FAMILIES.values() if each.denoiser.component == component and each.denoiser.layers)
    names = next((each.denoiser.layers for each in families if each.holds(parameters)), None)
    for module in modules if names else ():
        layer = names.find_own(module) if names else None
        if layer is None:
            continue
        if len(layer.own) > 1:
            yield layer.authors, _fused(layer.own, parameters)
        else:
            shape = parameters.get(f"{module}.weight", ())
            yield layer.authors, [Target("", module, swapped=layer.swaps(shape))]


def _unet_names(modules: Collection[str], parameters: Mapping[str, Shape]) -> Iterator[tuple[str, list[Target]]]:
    layers = sum(re.fullmatch(r"down_blocks\.0\.resnets\.\d+\.conv1", module) is not None for module in modules)
    for module in modules:
        for name in (module, *_stems(original_unet_names(f"{module}.weight", layers))):
            yield name, [Target("", module)]
            if name.endswith(".to_out.0"):  # diffusers' old attention processors
                yield name.removesuffix(".0"), [Target("", module)]
            if name.endswith(".to_q"):  # fused, as diffusers' fuse_qkv_projections does it
                fused = [module[:-1] + letter for letter in "qkv"]
                yield f"{name[:-1]}qkv", _fused(fused, parameters)
                yield f"{name[:-1]}kv", _fused(fused[1:], parameters)


def _text_names(modules: Collection[str], parameters: Mapping[str, Shape]) -> Iterator[tuple[str, list[Target]]]:
    plain = {module.removeprefix("text_model."): module for module in modules}
    for name, module in plain.items():
        for spelled in (name, f"text_model.{name}", f"transformer.text_model.{name}"):
            yield spelled, [Target("", module)]
            if old := re.fullmatch(r"(.+\.self_attn\.)(?:([qkv])|(out))_proj", spelled):
                yield f"{old[1]}to_{old[2] or old[3]}", [Target("", module)]
        for original in _stems(original_clip_names(f"{name}.weight")):
            yield original, [Target("", module)]
            yield f"model.{original}", [Target("", module)]
        if layer := re.fullmatch(r"encoder\.layers\.(\d+)\.self_attn\.q_proj", name):
            fused = _fused([f"{module[:-6]}{letter}_proj" for letter in "qkv"], parameters)
            resblock = f"transformer.resblocks.{layer[1]}.attn.in_proj"
            whole = f"{name[:-6]}qkv_proj"
            for spelled in (resblock, f"model.{resblock}", whole, f"text_model.{whole}"):
                yield spelled, fused


def _stems(names: Iterable[str]) -> Iterator[str]:
    return (name.removesuffix(".weight") for name in names)
