"""LoRA and its kin in a UNet's graph, by the methods that diffusers' pipelines call.

The weights of the open graph are changed, so that a step costs what it costs without an adapter; other scales change
them again (:mod:`sdort.generation.denoising.adapted_weights`).
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.adapter_keys import read_keys
from sdort.adapters.peft_settings import SETTINGS_KEY
from sdort.console import warn
from sdort.errors import UsageError
from sdort.families.known_families import TEXT_ENCODERS
from sdort.families.unet import UNET
from sdort.files.staging import temporary_folder
from sdort.generation.denoising.adapted_weights import RunningAdapters, plan_adapters
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.pipelines.folder import PipelineFolder

_NAME_LENGTH = 100
"""Characters of an adapter's name in that of its file, which messages show."""


class UnetAdapters:
    """The adapters of a UNet, which stand in files of this process's own.

    Args:
        session: one that was opened with ``adapters``.
    """

    def __init__(self, session: TensorSession, folder: PipelineFolder) -> None:
        self._session = session
        self._folder = folder
        self._running = RunningAdapters({UNET.component: session.session})
        self._applied: list[AdapterChoice] | None = []
        self._numbers = itertools.count()
        self.files: dict[str, Path] = {}
        """All that are loaded, by name."""
        self.weights: dict[str, float] = {}
        """Of those that are active."""
        self.enabled = True
        stack = ExitStack()
        self._place = stack.enter_context(temporary_folder("adapters"))
        weakref.finalize(self, stack.close)

    def add(self, name: str, tensors: Mapping[str, torch.Tensor], notes: Mapping[str, str]) -> None:
        """Load an adapter, which is then the active one; it takes the place of one by the same name.

        Raises:
            BadModelError: it does not fit, or the file of the UNet does not say what its weights are made of.
        """
        # A folder for each: one that takes the place of another of its name is told from it by its path.
        folder = self._place / str(next(self._numbers))
        folder.mkdir()
        shown = re.sub(r"[^\w.-]", "_", name)[:_NAME_LENGTH]
        path = folder / f"{shown}.safetensors"
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path, dict(notes))
            plan_adapters(self._folder, [AdapterChoice(path)])
        except BaseException:
            shutil.rmtree(folder)
            raise
        if name in self.files:
            shutil.rmtree(self.files[name].parent)
        self.files[name] = path
        self.weights = {name: 1.0}

    def remove(self, name: str) -> None:
        """Unload an adapter; as with peft, the first of the others is active where no active one is left."""
        shutil.rmtree(self.files.pop(name).parent)
        if self.weights.pop(name, None) is not None and not self.weights and self.files:
            first = next(iter(self.files))
            self.weights = {first: 1.0}
            warn(f"the adapter {name!r} was active; now {first!r} is")

    def apply(self, scale: float) -> None:
        """Let the weights have the active adapters, all scaled. Nobody may run the session meanwhile."""
        active = self.weights.items() if self.enabled else ()
        choices = [AdapterChoice(self.files[name], weight * scale) for name, weight in active]
        if choices != self._applied:
            self._applied = None  # half of it, until all is done
            self._session.synchronize()
            self._running.use(plan_adapters(self._folder, choices))
            self._applied = choices


class AdapterMethods:
    """Mixin of a UNet's module: the methods of diffusers' ``PeftAdapterMixin`` that its pipelines call."""

    adapters: UnetAdapters | None
    """None where the session was opened without ``adapters``."""

    def load_lora_adapter(
        self,
        state_dict: Mapping[str, torch.Tensor],
        prefix: str = UNET.component,
        *,
        network_alphas: Mapping[str, float] | None = None,
        adapter_name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        hotswap: bool = False,
        _pipeline: Any = None,
        **_unused: Any,
    ) -> None:
        """Load an adapter, as ``pipeline.load_lora_weights`` does it.

        Args:
            state_dict: tensors by diffusers' or peft's names; those of ``prefix`` are the UNet's.
            network_alphas: alphas by module.
            adapter_name: by default ``default_0`` and so on.
            metadata: peft's settings.
            hotswap: whether it takes the place of one of the same name.

        Raises:
            UsageError: the UNet was loaded without ``adapters``, the name is in use, or a text encoder that is a graph
                would have to change.
            BadModelError: the adapter does not fit.
        """
        adapters = self._adapters()
        _refuse_text_encoders(state_dict, _pipeline)
        tensors = {key: value for key, value in state_dict.items() if key.startswith(f"{prefix}.")}
        if not tensors:
            warn(f"the adapter has nothing for {prefix}, which stays as it is")
            return
        alphas = {
            _alpha_key(key): torch.tensor(float(value))
            for key, value in (network_alphas or {}).items()
            if key.startswith(f"{prefix}.")
        }
        name = adapter_name or f"default_{len(adapters.files)}"
        if (name in adapters.files) != hotswap:
            state = "no adapter yet" if hotswap else "an adapter already"
            raise UsageError(f"there is {state} by the name {name!r}", hint=f"There are: {list(adapters.files)}.")
        adapters.add(name, {**tensors, **alphas}, {SETTINGS_KEY: json.dumps(metadata)} if metadata else {})

    def set_adapters(self, adapter_names: str | Sequence[str], weights: Any = None) -> None:
        """Let these adapters alone be active.

        Args:
            weights: one for all or for each, 1 by default.

        Raises:
            UsageError: there is no such adapter, or weights are given for single blocks.
        """
        adapters = self._adapters()
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        given = weights if isinstance(weights, list) else [weights] * len(names)
        unknown = [name for name in names if name not in adapters.files]
        if unknown or len(given) != len(names):
            raise UsageError(
                f"{len(given)} weights for the adapters {', '.join(names)}", hint=f"There are: {list(adapters.files)}."
            )
        if any(isinstance(weight, Mapping) for weight in given):
            raise UsageError("an adapter of a graph has one weight, and none for single blocks")
        adapters.weights = {
            name: 1.0 if weight is None else float(weight) for name, weight in zip(names, given, strict=True)
        }

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Unload adapters."""
        adapters = self._adapters()
        for name in [adapter_names] if isinstance(adapter_names, str) else adapter_names:
            adapters.remove(name)

    def unload_lora(self) -> None:
        """Unload all adapters."""
        if self.adapters:
            self.adapters.weights = {}
            self.delete_adapters(list(self.adapters.files))

    def disable_lora(self) -> None:
        """Let the UNet be as without adapters, which stay loaded."""
        self._adapters().enabled = False

    def enable_lora(self) -> None:
        """Undo :meth:`disable_lora`."""
        self._adapters().enabled = True

    @property
    def peft_config(self) -> dict[str, Any]:
        """The names of the adapters that are loaded, as keys."""
        return dict(self.adapters.files) if self.adapters else {}

    def fuse_lora(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: adapters are in the weights already.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "adapters of a graph are in its weights already: there is nothing to fuse",
            hint="Scale them with set_adapters, or put them into the files: sdort export MODEL OUT --lora FILE",
        )

    def _adapters(self) -> UnetAdapters:
        if self.adapters is None:
            raise UsageError(
                "this UNet was loaded so that its weights stay as they are",
                hint="Load it with adapters=True, or put the adapter into the weights:\n"
                "    sdort export MODEL OUT --lora FILE",
            )
        return self.adapters


def _alpha_key(key: str) -> str:
    """The key of a module's alpha in a file, of diffusers' key, which is made of that of the module's first factor."""
    modules = read_keys([key.removesuffix(".alpha")]).modules
    return f"{next(iter(modules))}.alpha" if modules else key


def _refuse_text_encoders(state_dict: Mapping[str, torch.Tensor], pipeline: Any) -> None:
    """Refuse an adapter for a text encoder that is a graph, into which diffusers puts nothing.

    Raises:
        UsageError: it is one.
    """
    for name in TEXT_ENCODERS:
        encoder: Any = getattr(pipeline, name, None)
        if hasattr(encoder, "sessions") and any(key.startswith(f"{name}.") for key in state_dict):
            encoder.load_adapter()
