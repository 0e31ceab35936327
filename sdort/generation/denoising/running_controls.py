"""ControlNets and T2I-Adapters of a running pipeline: their outputs go to the UNet's inputs without the host.

A ControlNet runs before each call of the UNet on the very buffers that the UNet reads, and writes to those that the
UNet takes residuals from; several write to buffers of their own, which one small model adds up. Scales are an input of
the ControlNet's graph: a factor for each output, so that another scale, or diffusers' guess mode, needs no other graph.
A T2I-Adapter runs once for an image. Outside of their share of the steps nothing runs, and the residuals are zeros.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sdort.console import say
from sdort.families.component_names import CONTROLNET, T2I_ADAPTER
from sdort.families.known_families import roles_of
from sdort.generation.denoising.session_groups import Openings
from sdort.generation.pictures.resampling import shares
from sdort.generation.requests.control_choice import Control
from sdort.generation.requests.control_plan import ControlModel, Shape, find_control
from sdort.generation.requests.record import ControlRecord
from sdort.graph.signature import Array
from sdort.onnx_io.model_hash import hash_model
from sdort.pipelines.content_check import checked
from sdort.runtime.opener import create_session
from sdort.runtime.session import Session, open_or_fall_back
from sdort.runtime.step.bound_unet import BoundBuffers, batch_slices
from sdort.runtime.step.device_buffer import Buffer, dims_of
from sdort.runtime.step.prepared_inputs import (
    RowCopies,
    StepRow,
    bind_prepared,
    bind_prompts,
    prepared_beside,
    prepared_rows,
    step_inputs,
    timed_rows,
)
from sdort.workload.steering_inputs import IMAGE, SCALES, residual_inputs

SMALLEST_GUESS = -1.0
"""In guess mode a ControlNet's outputs have factors from 10^-1 at its first output to 1 at its last one
(diffusers, ``ControlNetModel.forward``)."""


@dataclass(frozen=True, eq=False)
class ActiveControl:
    """A control whose model is open, and its image at the size that is generated."""

    model: ControlModel
    session: Session
    pixels: Array
    """float32 [1, channels, height, width] in [0, 1]."""
    guess: bool
    """Whether diffusers' guess mode was asked for."""

    @property
    def conditional_only(self) -> bool:
        """Whether it steers the prompt alone, and not the negative one."""
        return self.guess or self.model.pooled

    @property
    def scales(self) -> Array:
        """The factor of each of a ControlNet's outputs."""
        count = len(self.session.outputs)
        guessed = np.logspace(SMALLEST_GUESS, 0, count) if self.guess and not self.model.pooled else np.ones(count)
        return (self.model.control.scale * guessed).astype(np.float32)

    def features(self) -> list[Array]:
        """A T2I-Adapter's outputs, times its scale."""
        name = next(iter(self.session.inputs))
        outputs = self.session.run({name: self.pixels})
        return [self.model.control.scale * outputs[spec.name] for spec in self.session.outputs]

    def is_active(self, step: int, steps: int) -> bool:
        return self.model.control.is_active(step, steps)


class Controls:
    """The controls of a request at one size.

    Args:
        active: in the order of the request.
    """

    def __init__(self, active: Sequence[ActiveControl]) -> None:
        self.active = active
        self.nets = [control for control in active if control.model.component == CONTROLNET]
        self.adapters = [control for control in active if control.model.component == T2I_ADAPTER]
        self._features: list[list[Array]] | None = None
        self._bound: weakref.WeakKeyDictionary[BoundBuffers, BoundNets] = weakref.WeakKeyDictionary()

    def features(self, step: int, steps: int) -> list[Array]:
        """The sum of the T2I-Adapters' features [1, ...] that steer a step; empty if none does."""
        if self._features is None:
            self._features = [adapter.features() for adapter in self.adapters]
        pairs = zip(self.adapters, self._features, strict=True)
        chosen = [features for adapter, features in pairs if adapter.is_active(step, steps)]
        return [np.sum(same, axis=0) for same in zip(*chosen, strict=True)] if chosen else []

    def prepare(self, step: int, steps: int, buffers: BoundBuffers) -> None:
        """Fill the UNet's residual buffers for a step."""
        if self.nets:
            if buffers not in self._bound:
                self._bound[buffers] = BoundNets(self.nets, buffers)
            self._bound[buffers].prepare(step, steps)
        if self.adapters and self._changes(step, steps):
            names = residual_inputs(buffers.session.inputs)[T2I_ADAPTER]
            features = self.features(step, steps)
            for index, name in enumerate(names):
                buffers.residuals[name].fill(features[index] if index < len(features) else 0.0)

    def _changes(self, step: int, steps: int) -> bool:
        """Whether other T2I-Adapters steer this step than the one before."""
        return step == 0 or any(
            each.is_active(step, steps) != each.is_active(step - 1, steps) for each in self.adapters
        )


def _first(net: ActiveControl, samples: int, copies: int) -> int:
    """The first sample that a ControlNet runs on."""
    return samples // copies if net.conditional_only and copies > 1 else 0


class BoundNets:
    """ControlNets on the buffers of a UNet, bound once."""

    def __init__(self, nets: Sequence[ActiveControl], buffers: BoundBuffers) -> None:
        self.names = residual_inputs(buffers.session.inputs)[CONTROLNET]
        self.unet = [buffers.residuals[name] for name in self.names]
        direct = len(nets) == 1 and _dtypes(nets[0]) == [buffer.dtype for buffer in self.unet]
        self.nets = [_BoundNet(net, buffers, self.unet if direct else self._targets(net)) for net in nets]
        self._sum = None if direct else _bound_sum(buffers.session, [net.targets for net in self.nets], self.unet)

    def _targets(self, net: ActiveControl) -> list[Buffer]:
        """Buffers of a ControlNet's own."""
        pairs = zip(self.unet, _dtypes(net), strict=True)
        return [Buffer(net.session, np.zeros(buffer.shape, dtype)) for buffer, dtype in pairs]

    def prepare(self, step: int, steps: int) -> None:
        changed = [net.prepare(step, steps) for net in self.nets]
        if self._sum and any(changed):
            session, binding = self._sum
            session.run_bound(binding)


def _dtypes(net: ActiveControl) -> list[np.dtype[Any]]:
    return [spec.dtype for spec in net.session.outputs]


class _BoundNet:
    """A ControlNet bound to a UNet's inputs, and to the buffers that take its outputs."""

    def __init__(self, net: ActiveControl, buffers: BoundBuffers, targets: Sequence[Buffer]) -> None:
        self.net = net
        self.targets = targets
        session, batch = net.session, buffers.batch
        self.first = _first(net, batch.samples, batch.copies)
        count = batch.samples - self.first
        slices = batch_slices(session, roles_of(session.inputs).sample, count)
        size = slices[0].stop
        image = np.broadcast_to(net.pixels, (size, *net.pixels.shape[1:]))
        # One image and the same scales for all parts of the batch.
        self._own = {
            IMAGE: Buffer(session, image.astype(session.inputs[IMAGE].dtype)),
            SCALES: Buffer(session, net.scales.astype(session.inputs[SCALES].dtype)),
        }
        self.buffers = buffers
        for part in slices if session.programs else ():
            session.require_programs({name: dims_of(self._arguments(name, part)) for name in session.inputs})
        self._prompts = bind_prompts(session, slices, self._arguments)
        rows = prepared_rows(session, count)
        self._row = StepRow(session, rows) if rows else None
        self._copies = RowCopies(session, self._row) if self._row else None
        self._made = -1
        self._bindings = [self._bind(number, part) for number, part in enumerate(slices)]
        self._graphs = [session.new_graph() for _ in slices]

    def _arguments(self, name: str, part: slice) -> tuple[Any, ...]:
        """Binding arguments of an input for some of the samples that it runs on."""
        if name in self._own:
            return self._own[name].binding_arguments()
        if name == self.buffers.roles.timestep:
            return self.buffers.row.binding_arguments(name)
        buffer = self.buffers.latents if name == self.buffers.roles.sample else self.buffers.conditioning[name]
        return buffer.binding_arguments(self.first + part.start, (part.stop - part.start, *buffer.shape[1:]))

    def _bind(self, number: int, part: slice) -> Any:
        session = self.net.session
        binding = session.io_binding()
        for name in step_inputs(session):
            binding.bind_input(name, *self._arguments(name, part))
        bind_prepared(binding, session, self._row, part, self._prompts[number : number + 1])
        for spec, target in zip(session.outputs, self.targets, strict=True):
            count = part.stop - part.start
            binding.bind_output(
                spec.name, *target.binding_arguments(self.first + part.start, (count, *target.shape[1:]))
            )
        return binding

    def _make(self) -> None:
        """Make what is prepared anew where the conditioning or the timesteps are others."""
        if self._made == self.buffers.changes:
            return
        self._made = self.buffers.changes
        for prompt in self._prompts:
            prompt.run()
        if self._copies:
            session, times = self.net.session, self.buffers.timesteps
            conditioning = {name: values.read()[self.first :] for name, values in self.buffers.conditioning.items()}
            beside = prepared_beside(session, self._prompts, conditioning)
            every = {name: np.broadcast_to(values, (len(times), *values.shape)) for name, values in beside.items()}
            self._copies.write(timed_rows(session, times, every))

    def prepare(self, step: int, steps: int) -> bool:
        """Write the residuals of a step; whether they are others than before."""
        if self.net.is_active(step, steps):
            self._make()
            if self._copies:
                self._copies.run(step)
            for binding, graph in zip(self._bindings, self._graphs, strict=True):
                self.net.session.run_bound(binding, graph)
            return True
        if step > 0 and not self.net.is_active(step - 1, steps):
            return False
        for target in self.targets:
            target.fill(0.0)
        return True


def _bound_sum(unet: Session, parts: Sequence[Sequence[Buffer]], totals: Sequence[Buffer]) -> tuple[Session, Any]:
    """A model that adds up ControlNets' residuals in the UNet's dtype, bound to their buffers."""
    from onnx import helper

    nodes, inputs, outputs = [], [], []
    for index, total in enumerate(totals):
        kind, names = helper.np_dtype_to_tensor_dtype(total.dtype), []
        for number, part in enumerate(parts):
            name, own = f"part.{index}.{number}", helper.np_dtype_to_tensor_dtype(part[index].dtype)
            inputs.append(helper.make_tensor_value_info(name, own, list(total.shape)))
            nodes.append(helper.make_node("Cast", [name], [f"{name}.cast"], to=kind))
            names.append(f"{name}.cast")
        nodes.append(helper.make_node("Sum", names, [f"total.{index}"]))
        outputs.append(helper.make_tensor_value_info(f"total.{index}", kind, list(total.shape)))
    graph = helper.make_graph(nodes, "controls", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = replace(unet.options, graph=False, custom_ops="off", adapters=False)
    ort = unet.guard(lambda: create_session(model.SerializeToString(), unet.provider, options))
    session = Session(ort, Path("controls"), CONTROLNET, unet.provider, options)
    binding = session.io_binding()
    for index, total in enumerate(totals):
        for number, part in enumerate(parts):
            binding.bind_input(f"part.{index}.{number}", *part[index].binding_arguments())
        binding.bind_output(f"total.{index}", *total.binding_arguments())
    return session, binding


class RunningControls:
    """The open ControlNets and T2I-Adapters of a pipeline, which stay open from one request to the next.

    Args:
        openings: counts them.
    """

    def __init__(self, openings: Openings | None = None) -> None:
        self._openings = openings or Openings()
        self._sessions: dict[Path, Session] = {}
        self._exchanged: set[Path] = set()
        self._current: tuple[object, Controls] | None = None

    @property
    def sessions(self) -> Collection[Session]:
        """The sessions of the last request's models, of those that had some."""
        return [] if self._current is None else [each.session for each in self._current[1].active]

    @property
    def open_models(self) -> Collection[Path]:
        """The files of the models that are open."""
        return self._sessions.keys()

    def use(
        self, models: Sequence[ControlModel], pixels: tuple[int, int], unet: Session, *, guess: bool
    ) -> Controls | None:
        """The controls of a request at a size; None without any.

        Args:
            unet: the UNet's session, which says where they run and how.
            guess: whether ControlNets run in diffusers' guess mode.

        Raises:
            BadModelError, ProviderError: a model does not load.
        """
        if not models:
            return None
        key = ([(model.control, model.file.path) for model in models], pixels, guess)
        if self._current is None or self._current[0] != key:
            active = [ActiveControl(each, self._opened(each, unet), _pixels(each, pixels), guess) for each in models]
            self._current = (key, Controls(active))
        return self._current[1]

    def close(self) -> None:
        """Give the memory of all models back; the next request opens those that it has."""
        self._sessions.clear()
        self._exchanged.clear()
        self._current = None

    def exchange(self, safer: Callable[[Session], Session | None]) -> list[Session]:
        """Let safer sessions take the place of those of the last request that are none yet; returns the new ones.

        Args:
            safer: opens one for another; None where there is none.
        """
        current = {path: session for path, session in self._sessions.items() if session in self.sessions}
        opened = {path: safer(session) for path, session in current.items() if path not in self._exchanged}
        self._exchanged |= opened.keys()
        found = {path: session for path, session in opened.items() if session is not None}
        if found:
            self._sessions |= found
            self._current = None
        return list(found.values())

    def _opened(self, model: ControlModel, unet: Session) -> Session:
        path = model.file.path.resolve()
        if path not in self._sessions:
            # A T2I-Adapter runs once for an image.
            graph = unet.options.graph and model.component == CONTROLNET
            options = replace(unet.options, adapters=False, graph=graph)
            with self._openings.of(model.component), checked(model.control.path, options.check) as content:
                content.reads([model.file.path])
                self._sessions[path], _ = open_or_fall_back(path, model.component, unet.provider, options)
        return self._sessions[path]


def _pixels(model: ControlModel, size: tuple[int, int]) -> Array:
    """The control image at the size that is generated, float32 [1, channels, height, width] in [0, 1]."""
    from PIL import Image

    shape: Shape = model.image_shape(size)
    picture = model.control.image.picture.convert("L" if shape[0] == 1 else "RGB")
    height, width = size
    if model.control.image.size != size:
        (before, across) = model.control.image.size
        stretched = abs(width * before / (height * across) - 1) > 0.05
        say(
            f"--control {model.control.image} is resized from {across}x{before} to {width}x{height} pixels"
            + (", which are other proportions" if stretched else "")
        )
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return shares(picture)


def record_control(control: Control) -> ControlRecord:
    """The record of a control."""
    file = find_control(control.path)
    image = control.image
    return ControlRecord(
        control.path.resolve().name,
        hash_model(file.path),
        image.name,
        image.digest,
        control.scale,
        control.start,
        control.end,
    )
