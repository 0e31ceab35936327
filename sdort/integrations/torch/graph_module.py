"""The base of all torch modules on sessions: a parameter, a place that they keep, and pickling by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from sdort.errors import UsageError
from sdort.integrations.torch.tensor_binding import torch_dtype
from sdort.integrations.torch.tensor_session import TensorSession
from sdort.providers.runtime_options import LoadOptions

Reload = Callable[[], torch.nn.Module]
"""Makes a module again, in another process too."""


class StandIn(type):
    """Metaclass of a class that equals the class of diffusers' in whose place it stands, ``stands_for``.

    ``DiffusionPipeline.from_pipe`` takes a model over only if its type is among those of an annotation.
    """

    stands_for: type

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.stands_for

    def __hash__(cls) -> int:
        return hash(cls.stands_for)


def _no_constructor(name: str) -> Any:
    """A class method of diffusers' models that makes one without a folder of graphs."""

    def method(cls: type[Any], /, *_args: object, **_kwargs: object) -> NoReturn:
        raise UsageError(
            f"{cls.__name__} is not made by {name}: it runs as an ONNX graph",
            hint="Load it from a pipeline's folder, by load_unet, load_vae, load_controlnet, load_transformer or "
            "load_text_encoder of sdort.integrations.torch.",
        )

    method.__name__ = name
    method.__doc__ = "Refused.\n\nRaises:\n    UsageError: always."
    return classmethod(method)


def _refused(name: str) -> Callable[..., None]:
    """A method of diffusers' models that finds nothing to work on in a graph, and would pass that over in silence."""

    def method(self: GraphModule, wanted: object = True, *_args: object, **_kwargs: object) -> None:
        if wanted is not False:  # as the methods that undo it say
            raise UsageError(
                f"{self._what} runs as an ONNX graph, on which {name} has no effect",
                hint="Leave the call out: how a graph computes, and in which precision, was decided when it was "
                "optimized, and where, when it was loaded.",
            )

    method.__name__ = name
    method.__doc__ = "Refused.\n\nRaises:\n    UsageError: always, but to undo it."
    return method


class GraphModule:
    """Mixin of a ``torch.nn.Module`` whose computation is that of ONNX graphs.

    It stands before the module's class. The weights are in the sessions; ``anchor`` is an empty parameter, by which
    torch and diffusers see device and dtype.
    """

    sessions: dict[str, TensorSession]

    from_config = _no_constructor("from_config")
    from_pretrained = _no_constructor("from_pretrained")
    enable_gradient_checkpointing = _refused("enable_gradient_checkpointing")
    enable_group_offload = _refused("enable_group_offload")
    enable_layerwise_casting = _refused("enable_layerwise_casting")
    enable_parallelism = _refused("enable_parallelism")
    fuse_qkv_projections = _refused("fuse_qkv_projections")
    set_attention_backend = _refused("set_attention_backend")
    set_attn_processor = _refused("set_attn_processor")
    set_use_memory_efficient_attention_xformers = _refused("xFormers' attention")
    set_use_npu_flash_attention = _refused("flash attention for NPUs")
    set_use_xla_flash_attention = _refused("flash attention for XLA")

    def attach(self, sessions: Mapping[str, TensorSession], reload: Reload) -> None:
        """Take over sessions, after the constructor of the module's class.

        Args:
            sessions: by component; the first one's first input that is no integer has the module's dtype.
            reload: makes the module again.
        """
        self.sessions = dict(sessions)
        self._reload = reload
        first = next(iter(sessions.values()))
        dtypes = [torch_dtype(spec.dtype) for spec in [*first.inputs.values(), *first.outputs]]
        dtype = next(dtype for dtype in dtypes if dtype.is_floating_point)
        anchor = torch.empty(0, dtype=dtype, device=first.device)
        self.register_parameter("anchor", torch.nn.Parameter(anchor, requires_grad=False))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the graph takes latents or images; what it computes in was decided when it was made."""
        return self.anchor.dtype

    @property
    def device(self) -> torch.device:
        """Where tensors are taken without a copy."""
        return self.anchor.device

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As torch's own: this module where it is there and of that dtype already.

        Raises:
            UsageError: it would be elsewhere, or of another dtype.
        """
        # That of diffusers' models warns of what it does not find in a graph.
        return torch.nn.Module.to(self, *args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Apply ``to``, ``cuda``, ``half`` and their like, also those of a module around this one.

        Raises:
            UsageError: it would be elsewhere, or of another dtype.
        """
        anchor: torch.Tensor = self.anchor
        try:
            moved = fn(anchor)
        except (AssertionError, RuntimeError) as error:  # this build of torch has no such device
            raise UsageError(
                f"{self._what} runs on {anchor.device} and cannot be moved: {error}",
                hint="Leave .to() and .cuda() out: the provider chose where it runs when it was loaded.",
            ) from error
        if moved.device != anchor.device:
            raise UsageError(
                f"{self._what} runs on {anchor.device} and cannot be moved to {moved.device}",
                hint="Load it again with another provider or device_id.",
            )
        if moved.dtype != anchor.dtype:
            raise UsageError(
                f"{self._what} takes {anchor.dtype} and cannot become {moved.dtype}: its precision is the graph's",
                hint="Optimize the pipeline again, with --fp16, --fp16 auto, or without.",
            )
        return self

    @property
    def _what(self) -> str:
        return "the VAE" if len(self.sessions) > 1 else next(iter(self.sessions))

    def __reduce__(self) -> tuple[Any, ...]:
        """By path.

        Raises:
            UsageError: it has adapters, which would be lost.
        """
        if getattr(self, "peft_config", None):
            raise UsageError(
                f"{self._what} has adapters, which are no part of its files", hint="Unload them: unload_lora_weights()"
            )
        return self._reload, ()

    def __deepcopy__(self, memo: object) -> Any:
        """A module on sessions of its own."""
        return self._reload()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__} runs as an ONNX graph and has no {name!r}; what changes its inside needs the "
                "torch model"
            ) from None

    def save_pretrained(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: the folder that it was loaded from is the model.

        Raises:
            UsageError: always.
        """
        path = next(iter(self.sessions.values())).session.path
        raise UsageError(
            f"{self._what} is an ONNX graph, which diffusers does not save: {path}",
            hint="Copy the folder of the pipeline.",
        )


def known_inputs(session: TensorSession, given: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Optional inputs, without those that are None.

    Raises:
        UsageError: the graph does not take one of them.
    """
    found = {name: value for name, value in given.items() if value is not None}
    if not found.keys() <= session.inputs.keys():
        unknown = [name for name in found if name not in session.inputs]
        raise UsageError(
            f"the graph of {session.session.component} does not take {', '.join(unknown)}",
            hint=f"It takes {', '.join(session.inputs)}.",
        )
    return found


def reloader(load: Callable[..., torch.nn.Module], path: str | Path, options: LoadOptions, **more: Any) -> Reload:
    """A function that makes a module again, in another folder too."""
    return partial(load, str(Path(path).resolve()), **options, **more)


def as_timestep(timestep: Any) -> torch.Tensor:
    """A timestep as a tensor.

    Raises:
        UsageError: it is neither a number nor numbers.
    """
    if isinstance(timestep, torch.Tensor):
        return timestep
    try:
        return torch.as_tensor(timestep)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the timestep is a {type(timestep).__name__}, and no number", hint="Give a number, or a tensor of one."
        ) from error


def like(value: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """An output on the device and in the dtype of the input that it belongs to; the same tensor where it is so.

    That of integers has the graph's dtype.
    """
    if value.dtype is given.dtype and value.device == given.device:
        return value
    return value.to(given.device, given.dtype if given.is_floating_point() else value.dtype)
