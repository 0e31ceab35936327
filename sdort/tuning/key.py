"""The key of a tuning bundle: everything that what was found depends on. One field apart is another key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from sdort.onnx_io.model_hash import hash_model
from sdort.operator_library.library import AUTO, library_hash, resolve
from sdort.providers import PROVIDERS
from sdort.providers.bf16 import with_bf16
from sdort.providers.plugins import own_name
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options
from sdort.tuning.device import Machine, this_machine

InputDims = Mapping[str, Sequence[int]]
"""The dimensions of every input of a model."""


@dataclass(frozen=True)
class Key(Machine):
    """A machine, a model, the shapes of its inputs and the options that it runs with."""

    custom_ops: str | None
    """A hash of sdort's operator library, None where none takes part."""
    model: str
    """A hash of the graph and its weights (:func:`sdort.onnx_io.model_hash.hash_model`)."""
    component: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Every input's dimensions, sorted by name; empty to look for any."""
    options: tuple[tuple[str, str], ...]
    """Provider options, without those that only say how to search."""

    @property
    def name(self) -> str:
        """The bundle's folder: the component and a hash of all fields."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return f"{self.component}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"

    @property
    def programs(self) -> str:
        """The folder of programs of the model with these options: MIGraphX names a program by its graph, the GPU and
        the shapes, and not by its precision (onnxruntime-ep-amdgpu, src/migraphx/mgx_ep.cc)."""
        text = json.dumps([self.model, self.options])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def provider(self) -> Provider | None:
        """The provider whose key it is, None for one that this sdort does not know."""
        return next((provider for provider in PROVIDERS.values() if self.ep in provider.execution_providers), None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, which :func:`parse_key` takes."""
        return asdict(self) | {"shapes": {n: list(dims) for n, dims in self.shapes}, "options": dict(self.options)}

    def difference(self, other: Key, names: Sequence[str] = ()) -> tuple[str, Any, Any] | None:
        """The first field that differs, with the value here and there; None if all of ``names`` (or all) agree."""
        mine, theirs = self.to_json(), other.to_json()
        for name in names or [field.name for field in fields(self)]:
            if mine[name] != theirs[name]:
                return name, mine[name], theirs[name]
        return None

    def elsewhere(self, device_id: int = 0, custom_ops: str = AUTO) -> tuple[str, Any, Any] | None:
        """The first field in which this machine differs from the key's, with the key's value and this machine's.

        Only what belongs to a machine is looked at; model, shapes and options are compared when a run looks for it.

        Args:
            custom_ops: the library of custom operators that runs here take, as
            :func:`sdort.operator_library.library.resolve` reads.

        Raises:
            ProviderError: this machine cannot be asked, or the library is not built.
            UsageError: there is no such library.
        """
        if self.provider is None:
            return "ep", self.ep, ", ".join(provider.ep for provider in PROVIDERS.values())
        library = resolve(custom_ops)
        here = replace(self, **asdict(this_machine(self.provider.name, device_id)))
        if self.custom_ops is not None:  # made without the library, a run with --custom-ops off can use it
            here = replace(here, custom_ops=library_hash(library) if library else None)
        return self.difference(here)


def make_key(path: Path, component: str, provider: Provider, options: RuntimeOptions, shapes: InputDims) -> Key:
    """The key of a model on this machine.

    Raises:
        ProviderError: the driver does not tell what GPU there is, or the provider does not compute as the model asks.
    """
    library = resolve(options.custom_ops)
    options = with_bf16(path, component, provider, options)
    return Key(
        **asdict(this_machine(provider.name, options.device_id, tuple(options.ep_libraries.items()))),
        custom_ops=library_hash(library) if library else None,
        model=hash_model(path),
        component=component,
        shapes=tuple(sorted((name, tuple(dims)) for name, dims in shapes.items())),
        options=lasting_options(provider, options),
    )


def lasting_options(provider: Provider, options: RuntimeOptions) -> tuple[tuple[str, str], ...]:
    """Options that a run without ``--tuning`` sets too, so that it finds what a run with it has kept; nor does a graph
    matter, which replays what was chosen before, or the stream.
    """
    effective = provider_options(provider, replace(options, tuning=False, graph=False, stream=0))
    # The first ones name a place in this machine and its memory, and change nothing that is found.
    names = {
        "device_id",
        provider.programs,
        *provider.memory,
        *provider.tuning,
        *provider.graph,
        "tunable_op_max_tuning_duration_ms",
    }
    superseding = {name: option for name, option in provider.superseding.items() if name in os.environ}
    libraries = options.ep_libraries
    effective |= {
        own_name(provider, option or name, libraries): os.environ[name] for name, option in superseding.items()
    }
    aside = {own_name(provider, name, libraries) for name in names}
    return tuple(sorted((name, str(value)) for name, value in effective.items() if name not in aside))


def parse_key(value: Any) -> Key:
    """A key from JSON.

    Raises:
        ValueError: it is no key; which field is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError("the key is no object")
    names = {field.name for field in fields(Key)}
    if set(value) != names:
        raise ValueError(f"the key has other fields: {', '.join(sorted(set(value) ^ names))}")
    text = names - {"compute_units", "custom_ops", "shapes", "options"}
    wrong = [name for name in sorted(text) if not isinstance(value[name], str)]
    wrong += [] if type(value["compute_units"]) is int else ["compute_units"]
    wrong += [] if isinstance(value["custom_ops"], (str, type(None))) else ["custom_ops"]
    wrong += [] if _is_mapping(value["shapes"], _is_dims) else ["shapes"]
    wrong += [] if _is_mapping(value["options"], lambda option: isinstance(option, str)) else ["options"]
    if wrong:
        raise ValueError(f"the key's {', '.join(wrong)} cannot be read")
    shapes = tuple(sorted((name, tuple(dims)) for name, dims in value["shapes"].items()))
    return Key(**value | {"shapes": shapes, "options": tuple(sorted(value["options"].items()))})


def _is_mapping(value: Any, check: Any) -> bool:
    return isinstance(value, dict) and all(check(item) for item in value.values())


def _is_dims(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)
