"""A pipeline that is to be made of a checkpoint, as far as the configs of its components tell what it can do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdort.errors import UsageError
from sdort.exporter.signatures import ComponentSpec
from sdort.families.component_names import CONTROLS, DECODER
from sdort.families.family import Family
from sdort.families.known_families import DENOISERS, TEXT_ENCODERS, family_of
from sdort.generation.requests.control_plan import no_control


@dataclass(frozen=True)
class Unmade:
    """A pipeline with what :func:`sdort.generation.requests.request.check_task` asks of one."""

    given: str
    """The checkpoint, as the user named it."""
    name: str
    """The checkpoint's name."""
    components: Sequence[ComponentSpec]

    @property
    def models(self) -> Collection[str]:
        """The names of its components."""
        return [component.name for component in self.components]

    @property
    def family(self) -> Family:
        """Its family."""
        return family_of(self.models)

    @property
    def latent_channels(self) -> int:
        """Channels of the latents that the autoencoder decodes."""
        return int(self._config(DECODER)["latent_channels"])

    @property
    def sample_channels(self) -> int:
        """Channels of the UNet's sample."""
        denoiser = self.family.denoiser
        return denoiser.channels_of(self._config(denoiser.component))

    def _config(self, name: str) -> Mapping[str, Any]:
        return next(component.config for component in self.components if component.name == name)


Check = Callable[[Unmade], None]
"""Raises where a pipeline cannot do what it would be made for."""

_WORDS = {
    DECODER: "VAE",
    **{name: denoiser.title for name, denoiser in DENOISERS.items()},
    **dict(zip(TEXT_ENCODERS, ("text encoder", "second text encoder", "third text encoder"), strict=False)),
}
_OPTIONS = {DECODER: "--vae DIR|FILE", **dict.fromkeys(TEXT_ENCODERS, "--config DIR")}
"""Component -> the option of ``sdort export`` that brings one."""


def check_whole(unmade: Unmade) -> None:
    """Refuse a checkpoint that lacks what generating needs.

    Raises:
        UsageError: all that it lacks, and how to add it.
    """
    missing = [name for name in unmade.family.needed if name not in unmade.models]
    if not missing:
        return
    options = " ".join(dict.fromkeys(_OPTIONS[name] for name in missing if name in _OPTIONS))
    lacks = " and no ".join(_WORDS[name] for name in missing)
    raise UsageError(
        f"{unmade.name} has no {lacks}, so that it cannot draw by itself",
        hint=f"Export it with what it lacks, and run that:\n{through_export(unmade.given, options)}"
        if unmade.family.denoiser.component not in missing
        else "Give a checkpoint with a UNet.",
    )


def check_control(unmade: Unmade) -> None:
    """Refuse what is no control, before it is made ready.

    Raises:
        BadModelError: it has neither a ControlNet nor a T2I-Adapter.
    """
    if not any(name in CONTROLS for name in unmade.models):
        raise no_control(unmade.given, unmade.models)


def through_export(given: str, options: str) -> str:
    """The commands, a line each, that run a checkpoint which is exported with options first."""
    return f"    sdort export {shlex.quote(given)} model {options}\n    sdort optimize model fast\n    sdort run fast"
