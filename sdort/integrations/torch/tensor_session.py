"""A component's session on torch tensors: the core of every integration."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch.autograd import forward_ad

from sdort.errors import UsageError
from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.known_families import roles_of
from sdort.graph.signature import TensorSpec, cast_feeds
from sdort.integrations.torch.prompt_tensors import MadeOfPrompt, PromptTensors
from sdort.integrations.torch.tensor_binding import PreparedInputs, TensorBinding, Tensors, torch_dtype
from sdort.integrations.torch.timestep_cache import TimestepCache
from sdort.integrations.torch.torch_place import StreamOrder, TorchPlace
from sdort.runtime.session import Session
from sdort.runtime.step.preparation import Part, Preparation
from sdort.runtime.step.step_caches import PromptCache
from sdort.workload.steering_inputs import IMAGE, all_residuals, image_inputs, named_sizes, residual_shapes, shape_at


class TensorSession:
    """An open component that takes and gives torch tensors.

    Inputs and outputs have the names of the graph's (:attr:`inputs`, :attr:`outputs`). What prompts and timesteps
    decide in a UNet or ControlNet is computed once, and kept for those that come again. Threads may call it at the same
    time: they take turns.

    Args:
        session: an open session of sdort's, on ``place.address``.
        place: where it and torch meet (:func:`sdort.integrations.torch.torch_place.find_place`).

    Raises:
        UsageError: the session records graphs of a device that torch does not have.
    """

    def __init__(self, session: Session, place: TorchPlace) -> None:
        _leave_uncompiled()
        self.session = session
        self.place = place
        graph = session.options.graph
        if graph and place.stream is None:
            raise UsageError(
                f"with graph=True tensors have to be on the GPU of {session.provider.name}, and this torch has none",
                hint="Install the torch of that GPU's vendor, or leave graph=True out.",
            )
        self.lock = threading.RLock()
        """Held while it runs; to be taken by who changes its weights."""
        roles = roles_of(session.inputs)
        self._sample, self._timestep = roles.sample, roles.timestep
        self._one_for_all = frozenset({*all_residuals(session.inputs), IMAGE})
        self._fitting: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        self._last: dict[str, _Kind] = {}
        """The kinds of what was given last, where the graph takes it as it is."""
        self._filled: dict[str, torch.Tensor] = {}
        """Zeros for what was not given then."""
        self._zeros: tuple[tuple[int, ...], dict[str, torch.Tensor]] | None = None
        self._order = StreamOrder(place)
        self._step = TensorBinding(session, _step_inputs(session), self._order, graph)
        self._prompts, self._rows = None, None
        if parts := session.preparation:
            if parts.time:
                self._rows = TimestepCache(_bound(parts.time, self._order), parts.each_sample, roles.timestep)
            prompt = _bound(parts.prompt, self._order) if parts.prompt else None
            self._prompts = (
                PromptCache(PromptTensors(prompt, parts.taken, parts.beside, roles.sample)) if prompt else None
            )

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The inputs of the whole component by name."""
        return self.session.inputs

    @property
    def outputs(self) -> list[TensorSpec]:
        """The outputs, in their order."""
        return self.session.outputs

    @property
    def device(self) -> torch.device:
        """Where tensors are taken without a copy, and where outputs are."""
        return self.place.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the outputs."""
        return torch_dtype(self.outputs[0].dtype)

    def run(self, feeds: Tensors) -> dict[str, torch.Tensor]:
        """Run the component once.

        Args:
            feeds: inputs by name, of any dtype and on any device; they are converted to what the graph declares. A
                UNet's inputs for controls and for images of IP-Adapters may be left out, which is zeros. ``timestep``
                may be one for all samples or one for each, whatever the graph takes; so may what controls add, and a
                ControlNet's image.

        Returns:
            The outputs by name, on :attr:`device`, in memory of torch's. On a GPU they are ready when torch's current
            stream is.

        Raises:
            UsageError: an input is no dense tensor of real numbers; its sizes are not the graph's, or do not go with
                those of the other inputs; the timesteps are neither one nor as many as the samples, or several where
                the graph takes one; a gradient is asked for; torch.export, .fx, .func or .jit is at work.
            BadModelError: an input is missing.
            ProviderError: the provider failed, or ran out of memory.
        """
        with self.lock:
            repeated = _are(feeds, self._last)
            if not repeated:
                _check_tensors(feeds)
            if not (torch.is_inference_mode_enabled() or torch.is_grad_enabled()):
                return self._run(feeds, repeated)
            # Tensors that are kept from one run to the next have to be of use under torch.inference_mode and outside.
            with torch.inference_mode(False), torch.no_grad():
                return self._run(feeds, repeated)

    def _run(self, feeds: Tensors, repeated: bool) -> dict[str, torch.Tensor]:
        self._order.begin()
        try:
            return self._outputs(self._completed_again(feeds) if repeated else self._complete(feeds))
        finally:
            self._order.end()

    def synchronize(self) -> None:
        """Wait until everything that was asked of it is done, as before its weights change."""
        if self.place.stream is not None:
            self.place.stream.synchronize()

    def _outputs(self, feeds: Tensors) -> dict[str, torch.Tensor]:
        parts = self.session.preparation
        if parts is None:
            return self._step.run(feeds)
        made = self._prompts.of(feeds, self.session.weights.version) if self._prompts else None
        prepared = [made.step] if made else []
        if self._rows:
            prepared.append(self._timed(self._rows, parts, feeds, made))
        return self._step.run({name: feeds[name] for name in parts.step}, *prepared)

    def _timed(
        self, rows: TimestepCache, parts: Preparation, feeds: Tensors, made: MadeOfPrompt | None
    ) -> PreparedInputs:
        """Tensors made of the timesteps, on the device."""
        prepared = made.time if made and made.time.values else None
        known = prepared.values if prepared else {}
        beside = {name: feeds[name] for name in parts.beside if name not in known}
        samples = feeds[self._sample].shape[0]
        return rows.of(feeds[self._timestep], samples, beside, prepared, self.session.weights.version)

    def _complete(self, feeds: Tensors) -> Tensors:
        """All inputs, of sizes that the graph takes."""
        checked = self._checked(feeds)
        as_given = all(checked[name] is feeds[name] for name in checked.keys() & feeds.keys() - {self._timestep})
        self._last = {name: _Kind.of(value) for name, value in feeds.items()} if as_given else {}
        self._filled = {name: value for name, value in checked.items() if name not in feeds}
        return checked

    def _completed_again(self, feeds: Tensors) -> Tensors:
        """:meth:`_complete` of inputs like those of the call before: all that follows from sizes is known."""
        complete = {**feeds, **self._filled}
        timestep = complete.get(self._timestep)
        if timestep is not None and (self._rows is None or timestep.numel() > 1):  # of one number it takes any shape
            complete[self._timestep] = self._timesteps(timestep, complete[self._sample].shape[0])
        return complete

    def _checked(self, feeds: Tensors) -> Tensors:
        given = {name: value for name, value in feeds.items() if name in self.inputs}
        if self._sample in given and given[self._sample].ndim:
            samples = given[self._sample].shape[0]
            for name in given.keys() & self._one_for_all:
                given[name] = _for_all(given[name], samples)
            if self._timestep in given:
                given[self._timestep] = self._timesteps(given[self._timestep], samples)
        shapes = tuple((name, tuple(value.shape)) for name, value in given.items())
        if shapes not in self._fitting:
            _check_sizes(self.session.component, self.inputs, dict(shapes))
            self._fitting.add(shapes)
        if self._sample in given:
            given = {**self._unsteered(tuple(given[self._sample].shape)), **given}
        complete: dict[str, torch.Tensor] = cast_feeds(given, self.inputs.values(), self.session.component)
        return complete

    def _unsteered(self, sample: tuple[int, ...]) -> dict[str, torch.Tensor]:
        """Zeros for the inputs of controls and of IP-Adapters' images."""
        if self._zeros is None or self._zeros[0] != sample:
            shapes = residual_shapes(self.inputs, sample)
            for name in image_inputs(self.inputs):
                shapes[name] = (
                    sample[0],
                    *(size if isinstance(size, int) else 1 for size in self.inputs[name].shape[1:]),
                )
            made = {
                name: torch.zeros(shape, dtype=torch_dtype(self.inputs[name].dtype), device=self.device)
                for name, shape in shapes.items()
            }
            self._zeros = sample, made
        return self._zeros[1]

    def _timesteps(self, timestep: torch.Tensor, samples: int) -> torch.Tensor:
        """The timestep in the shape that the graph takes.

        Raises:
            UsageError: there are neither one nor as many as samples; or it takes one for all samples, and these have
                several.
        """
        shape = timestep_shape(self.inputs, samples)
        values = timestep.reshape(-1)
        if len(values) not in (1, samples):
            raise UsageError(
                f"{self.session.component} got {len(values)} timesteps for {samples} samples",
                hint="Give one for all samples, or one for each.",
            )
        if shape != (samples,) and len(values) > 1:
            if not bool((values == values[0]).all()):
                raise UsageError(
                    f"{self.session.component} takes one timestep for all samples, and these have several",
                    hint="Run samples of different timesteps one after the other.",
                )
            values = values[:1]
        return values.expand(shape) if shape else values[0]


@cache
def _leave_uncompiled() -> None:
    """Keep torch.compile out of runs: it would trace what hands tensors to ONNX Runtime, again for each input.

    Done when the first session opens, as it imports the compiler, which takes a second.
    """
    TensorSession.run = torch.compiler.disable(  # type: ignore[method-assign]
        TensorSession.run, reason="it runs as an ONNX graph, which torch.compile without fullgraph=True leaves alone"
    )


class _Kind(NamedTuple):
    """Properties of a tensor that decide how a graph takes it, apart from its values and address."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, value: torch.Tensor) -> _Kind:
        return cls(value.shape, value.dtype, value.device)


def _are(feeds: Tensors, kinds: Mapping[str, _Kind]) -> bool:
    """Whether inputs are of these kinds, and no more needs to be looked at: they are plain tensors in memory, and
    nothing is at work that looks into what is computed. It is asked in each call, where :func:`_check_tensors` takes
    the time of a small kernel for each tensor."""
    if len(feeds) != len(kinds) or torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return False
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return False
    try:
        for name, value in feeds.items():
            shape, dtype, device = kinds[name]
            if (
                type(value) is not torch.Tensor
                or value.dtype is not dtype
                or value.shape != shape
                or value.device != device
                or not value.data_ptr()
            ):
                return False
    except (KeyError, RuntimeError):  # another name; a sparse tensor or one of torch.func, which has no address
        return False
    return True


_RECORDERS = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.PROXY
"""Dispatch modes in which torch.export and make_fx compute in the place of torch's own operators."""
_TRANSFORM_HINT = "Export or transform the torch model. torch.compile takes programs with ONNX graphs in them."


def _check_tensors(feeds: Tensors) -> None:
    """Refuse inputs that are no dense tensors of real numbers, and those that ask for a gradient.

    Tensors without memory are those of torch.export and torch.func. What they would leave behind in kept inputs is of
    no use in later runs, and ONNX Runtime reads from the address 0 that some have.

    Raises:
        UsageError: one is or does; or torch records what is computed.
    """
    if torch.jit.is_tracing() or any(torch._C._get_dispatch_mode(recorder) is not None for recorder in _RECORDERS):
        raise UsageError(
            "torch.export, torch.fx and torch.jit cannot record what an ONNX graph computes", hint=_TRANSFORM_HINT
        )
    for name, value in feeds.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"the input {name!r} is a {type(value).__name__}, and no tensor of torch's",
                hint="Give torch tensors: torch.as_tensor() makes them.",
            )
        if value.layout is not torch.strided or value.is_meta or value.is_complex():
            kind = "without values" if value.is_meta else f"of {value.dtype if value.is_complex() else value.layout}"
            raise UsageError(
                f"the input {name!r} is a tensor {kind}, which no ONNX graph takes",
                hint="Give a dense tensor of real numbers.",
            )
        if not _has_memory(value):
            raise UsageError(
                f"the input {name!r} is a tensor without memory, as torch.func and torch.export have them, and no ONNX "
                "graph takes it",
                hint=_TRANSFORM_HINT,
            )
        if (value.requires_grad and torch.is_grad_enabled()) or forward_ad.unpack_dual(value).tangent is not None:
            raise UsageError(
                f"the input {name!r} wants a gradient, and an ONNX graph gives none",
                hint="Run it under torch.no_grad(), or train the torch model.",
            )


def _has_memory(value: torch.Tensor) -> bool:
    try:
        return bool(value.data_ptr()) or not value.numel()
    except RuntimeError:
        return False


def _step_inputs(session: Session) -> list[TensorSpec]:
    """The inputs of a session's own graph: the component's, or those of a step with what is prepared for it."""
    parts = session.preparation
    if parts is None:
        return list(session.inputs.values())
    specs = {**session.inputs, **{spec.name: spec for part in parts.parts for spec in part.outputs}}
    return [specs[name] for name in parts.taken]


def _bound(part: Part, order: StreamOrder) -> TensorBinding:
    return TensorBinding(part, part.inputs.values(), order, graph=False)


def _for_all(value: torch.Tensor, samples: int) -> torch.Tensor:
    """A summand for each of the samples: one is for all, as in torch's sums."""
    return value.expand(samples, *value.shape[1:]) if value.shape[:1] == (1,) else value


def _check_sizes(component: str, inputs: Mapping[str, TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse sizes that a graph does not have, and sizes that do not go together.

    Of the dimensions by one name, in the inputs' order, the first says how large the others are.

    Raises:
        UsageError: an input has others.
    """
    sizes: dict[str, int] = {}
    for name, spec in inputs.items():
        if name not in shapes:
            continue
        shape, expected = shapes[name], shape_at(spec, sizes)
        if len(shape) != len(expected) or not all(
            size and own in (size, None) for own, size in zip(expected, shape, strict=True)
        ):
            raise UsageError(
                f"{component} takes {name!r} of {_written(expected)}, and not of {_written(shape)}",
                hint=_size_hint(spec, shape, {own: shapes[own] for own in inputs if own in shapes}),
            )
        sizes = {**named_sizes(spec, shape), **sizes}


def _size_hint(spec: TensorSpec, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Advice about an input of other sizes; ``shapes`` are those of all inputs in the graph's order."""
    if all(isinstance(size, int) for size in spec.shape):
        return "Sizes that a graph was exported with (sdort export --static) stay: export without, or give these."
    if len(shape) == len(spec.shape) and all(
        own == size for own, size in zip(spec.shape, shape, strict=True) if isinstance(own, int)
    ):
        first, own = next(iter(shapes.items()))
        return f"It is {_written(spec.shape)}, each at least 1; {first!r} is {_written(own)}."
    return f"It is {_written(spec.shape)}: this tensor is for another model, or for another input."


def _written(shape: Sequence[int | str | None]) -> str:
    return " x ".join("any" if size is None else str(size) for size in shape) or "one number"
