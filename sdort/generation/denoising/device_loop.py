"""The denoising loop on the device: between two runs of the UNet nothing comes to the host.

Everything that a step needs lies in the provider's memory from the start: the conditioning of the prompts, all
timesteps, and a matrix of rows, the first noise, every output of the UNet, the noise added on the way. One small model
between two runs of the UNet puts its last output into the rows and sums them up to its next input, weighted as
:mod:`sdort.generation.schedules.recurrence` says; guidance is part of the weights. The UNet's own inputs and output
stay at their addresses, so that a graph of the device can replay it. Where a prompt changes on the way, its next
conditioning is written over the last one before that step. Both models compute on one stream where the provider takes
one: the host asks for a step while the device is at the step before, and waits no longer than that. The loop takes no
torch on the device, and is the same code on every provider.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.errors import ParityError, ProviderError
from sdort.families.known_families import roles_of
from sdort.generation.latents.preview import BatchPreviews
from sdort.generation.requests.deep_cache import whole_calls
from sdort.generation.schedules.recurrence import Recurrence
from sdort.graph.signature import Array
from sdort.machine.phases import phase
from sdort.runtime.device_stream import DeviceStream
from sdort.runtime.opener import create_session
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers, InputShapes, repeated
from sdort.runtime.step.device_buffer import Buffer
from sdort.runtime.step.patched_unet import PatchedBuffers
from sdort.runtime.step.prepared_inputs import prepared_rows
from sdort.runtime.step.spread_unet import SpreadBuffers
from sdort.runtime.step.step_conditions import Lengths, StepConditions

if TYPE_CHECKING:
    from sdort.generation.denoising.running_controls import Controls

KEPT_ROW_BYTES = 1 << 25
"""Bytes of a matrix that stays in memory for the next run of its kind: SDXL's of 30 steps at 1024x1024 has 16 MB."""
MAX_ROW_BYTES = 1 << 30
"""Upper bound in bytes for the step-accumulator matrix; larger runs use the host loop."""


def open_sum(unet: Session, masked: bool = False, channels: int | None = None) -> Session:
    """The small model between two runs of ``unet``, on its provider.

    Inputs: ``rows`` [R, L] and ``weights`` [K, R] in fp32, the UNet's last ``output`` [K, L] with its ``own`` weights
    [K, K], and the ``time`` of the next step, its row of a :class:`sdort.runtime.step.prepared_inputs.StepRow`.
    Outputs: ``sample`` [K, L], the UNet's next input, ``total``, the same in fp32, ``kept``, its last output as rows,
    and ``now``, the row.

    Args:
        masked: elements where ``inside`` [1, L] is false are the sum of ``origin`` [2, L] with the weights ``outside``
            [K, 2].
        channels: of the latents, where ``sample`` is [samples, channels + E, P]: to those of every sample ``extra``
            [samples, E, P] is added, a mask and the latents of what it leaves; ``alone`` [K, L] is without.
    """
    from onnx import helper, parser

    names = {np.dtype(np.float32): "float", np.dtype(np.float16): "float16", np.dtype(np.float64): "double"}
    sample, output = unet.inputs[roles_of(unet.inputs).sample].dtype, unet.outputs[0].dtype
    cast = f"Cast <to = {helper.np_dtype_to_tensor_dtype(sample)}> (total)"
    more, outputs, total, last, shape = "", "", "total = Add (earlier, last)", f"sample = {cast}", "[K, L]"
    if masked:
        more = ", float[2, L] origin, float[K, 2] outside, bool[1, L] inside"
        total = """within = Add (earlier, last)
            around = MatMul (outside, origin)
            total = Where (inside, within, around)"""
    if channels:
        shape = "[S, F, P]"
        more += f", {names[sample]}[S, E, P] extra"
        outputs = f", {names[sample]}[K, L] alone"
        last = f"""alone = {cast}
            every = Constant <value_ints = [-1, {channels}]> ()
            pixels = Shape <start = 2> (extra)
            dims = Concat <axis = 0> (every, pixels)
            latents = Reshape (alone, dims)
            sample = Concat <axis = 1> (latents, extra)"""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        sum (float[R, L] rows, float[K, R] weights, {names[output]}[K, L] output, float[K, K] own, int32[W] time{more})
        => ({names[sample]}{shape} sample, float[K, L] total, float[K, L] kept, int32[W] now{outputs}) {{
            kept = Cast <to = 1> (output)
            earlier = MatMul (weights, rows)
            last = MatMul (own, kept)
            {total}
            {last}
            now = Identity (time)
        }}""")
    stream = unet.stream.address if unet.stream else 0
    options = replace(unet.options, graph=False, custom_ops="off", provider_options=_exact(unet), stream=stream)
    ort = unet.guard(lambda: create_session(model.SerializeToString(), unet.provider, options))
    return Session(ort, Path("sum"), "scheduler", unet.provider, options, stream=unet.stream)


def _exact(unet: Session) -> Mapping[str, str]:
    """Sums of latents in full fp32: CUDA would round the factors to 11 bits."""
    return {**unet.options.provider_options, **unet.provider.exact}


class Loop:
    """Denoises batch after batch with one UNet.

    Args:
        unet: its session; with ``options.graph`` each shape of batch is recorded once and replayed from then on.
    """

    def __init__(self, unet: Session) -> None:
        self.unet = unet
        self._sums: dict[tuple[bool, int | None], Session] = {}
        self._last: StepAccumulator | None = None
        """The last run's, where another one may be of its kind."""
        self._bound: dict[tuple[Batch, InputShapes, Lengths], BoundBuffers] = {}
        self.frees: dict[Batch, bool] = {}
        """Whether what runs before the steps of a batch is closed once it has run, where that was decided."""
        self._graphs = 0
        self._controlled: weakref.WeakSet[BoundBuffers] = weakref.WeakSet()

    def fits(self, recurrence: Recurrence, batch: Batch) -> bool:
        """Whether the rows of a run are small enough to be kept."""
        rows = 1 + recurrence.steps * batch.copies + recurrence.noises + recurrence.takes_image
        prepared = sum(
            math.prod(shape) * dtype.itemsize for shape, dtype in prepared_rows(self.unet, batch.samples).values()
        )
        return rows * batch.elements * 4 + recurrence.steps * prepared <= MAX_ROW_BYTES

    def denoise(
        self,
        recurrence: Recurrence,
        batch: Batch,
        conditions: StepConditions,
        noise: Array,
        guidance: Sequence[float],
        on_step: Callable[[float], None],
        image: Array | None = None,
        mask: Array | None = None,
        extra: Array | None = None,
        previews: BatchPreviews | None = None,
        controls: Controls | None = None,
        every: int = 1,
        exact: int | None = None,
    ) -> tuple[Array, list[float]]:
        """Take every step.

        Args:
            conditions: of every call.
            noise: [1 + recurrence.noises, images, channels, height, width]: the first noise and all later.
            guidance: the weight of each copy's output; they sum up to one.
            image: latents [images, channels, height, width] of an image, where the recurrence takes some.
            mask: [height, width], true where the scheduler's steps count, for a recurrence with an outside.
            extra: [images, batch.extra, height, width], what the UNet takes beside the latents.
            controls: what fills the UNet's residual inputs; zeros are in them without any.
            previews: shown every few steps, for which the UNet's input and output are read back.
            every, exact: which calls run the whole UNet, as :func:`whole_calls` takes them.

        Returns:
            The latents [images, channels, height, width] in fp32, and the seconds of every step.

        Raises:
            ParityError: the UNet returned NaN or infinity.
        """
        with phase("preparation of steps"):
            buffers = self.buffers(batch, conditions, steered=bool(controls))
            # What an earlier run left there is multiplied by zero at the first sum, but zero times NaN is NaN.
            buffers.output.write(np.zeros(buffers.output.shape, buffers.output.dtype))
            times = buffers.step_rows(recurrence.timesteps, conditions)
            buffers.begin(conditions)
            given = noise if image is None else np.concatenate([image[None], noise])
            session = self._summing(mask is not None, batch.latent[0] if batch.extra else None)
            # Kept again at the end: of a run that ends early some outputs may not be finite, and zero times NaN is NaN.
            accumulator, self._last = self._last, None
            if accumulator and accumulator.is_for(buffers, recurrence, guidance, mask, extra):
                accumulator.begin(times, given)
            else:
                del accumulator  # its memory goes first
                accumulator = StepAccumulator(session, buffers, recurrence, times, given, guidance, mask, extra)
        with _Pace(self.unet.stream, lambda: on_step(batch.images)) as pace:
            for step, whole in enumerate(whole_calls(every, recurrence.steps, conditions, exact)):
                accumulator.prepare(step)
                if conditions.changes(step):
                    pace.wait()
                    buffers.write_conditioning(repeated(conditions.at(step), batch.images))
                if controls:
                    pace.wait()
                    controls.prepare(step, recurrence.steps, buffers)
                buffers.run(step, whole, wait=False)
                pace.asked()
                if previews and previews.is_due(step):
                    pace.wait()
                    previews.show(step, buffers.sample.read(), buffers.output.read())
                    pace.restart()
            accumulator.prepare(recurrence.steps)
            pace.wait()
            latents = accumulator.result()
        self._last = accumulator if accumulator.nbytes <= KEPT_ROW_BYTES else None
        return latents, pace.seconds

    def buffers(self, batch: Batch, conditions: StepConditions, *, steered: bool) -> BoundBuffers:
        """The UNet bound for a batch: the same for every run of its shape, without what steered an earlier one.

        Args:
            steered: whether controls will write to its residual inputs.
        """
        shapes = tuple((name, values.shape[1:]) for name, values in conditions.at(0)[0].items())
        key = batch, shapes, conditions.lengths(batch.images)
        if key not in self._bound:
            self._bound[key] = self._bind(batch, dict(shapes), key[-1])
            self._graphs += len(self._bound[key].graphs)
        bound = self._bound[key]
        if bound in self._controlled or steered:
            bound.clear_residuals()
            self._controlled.add(bound)
        return bound

    def make_rows(self, timesteps: Array, batches: Sequence[tuple[Batch, StepConditions]]) -> None:
        """Make the rows of batches to come while what makes them is open, where it closes before the steps.

        Args:
            timesteps: of every call.
        """
        preparation = self.unet.preparation
        if preparation is None or preparation.time is None or not preparation.frees or self.unet.is_open:
            return
        for batch, conditions in batches:
            buffers = self.buffers(batch, conditions, steered=False)
            if buffers.rows.is_full:
                return
            buffers.step_rows(timesteps, conditions)
            # What is made of prompts stays where no other batch of this shape comes between.
            buffers.write_conditioning(repeated(conditions.at(0), batch.images))

    def _bind(self, batch: Batch, shapes: Mapping[str, tuple[int, ...]], lengths: Lengths) -> BoundBuffers:
        kind = PatchedBuffers if self.unet.patch else SpreadBuffers if self.unet.others else BoundBuffers
        # A graph of the device is recorded for each shape, and holds the plans of that.
        unet = self.unet if self.unet.options.graph else self.unet.for_shapes((batch, tuple(shapes.items())))
        return kind(unet, batch, shapes, self._graphs + 1, lengths=lengths)

    def _summing(self, masked: bool, channels: int | None) -> Session:
        if (masked, channels) not in self._sums:
            self._sums[masked, channels] = open_sum(self.unet, masked, channels)
        return self._sums[masked, channels]


class _Pace:
    """How far the device is with the steps that it was asked for. After the block it is done, however that ends.

    Args:
        stream: what the steps run on; None where each is done when its call returns.
        on_step: called after every step that is done.
    """

    def __init__(self, stream: DeviceStream | None, on_step: Callable[[], None]) -> None:
        self._stream = stream
        self._on_step = on_step
        self._asked = 0
        self.seconds: list[float] = []
        """Of each step on the device, from the end of the one before; the last one with what follows it."""
        self._since = time.perf_counter()

    def __enter__(self) -> _Pace:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait()
            self.seconds[-1] += time.perf_counter() - self._since
        elif self._stream:
            with suppress(ProviderError):  # what failed first says more
                self._stream.wait()

    def asked(self) -> None:
        """A step was asked for: wait for the one before, so that the device always has something to do, and what the
        user sees is true."""
        self._asked += 1
        if self._stream is None:
            self._done()
            return
        self._stream.set_mark(self._stream.marks[self._asked % 2])
        if self._asked > len(self.seconds) + 1:
            self._stream.reach(self._stream.marks[(self._asked - 1) % 2])
            self._done()

    def wait(self) -> None:
        """Wait for all that was asked for."""
        if self._stream:
            self._stream.wait()
        while len(self.seconds) < self._asked:
            self._done()

    def restart(self) -> None:
        """Begin the time of the next step now: what came before is no part of it."""
        self._since = time.perf_counter()

    def _done(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._on_step()
        # The device goes on meanwhile where it has a stream.
        self._since = now if self._stream else time.perf_counter()


class StepAccumulator:
    """The rows of one batch, from the first noise to the last output, and the weighted sums over them.

    Args:
        times: what the UNet's row has in each step, [steps, words].
        given: the rows that are there from the start: the image's latents, if any, the first noise, all later noise.
        mask, extra: as :meth:`Loop.denoise` takes them.
    """

    def __init__(
        self,
        session: Session,
        buffers: BoundBuffers,
        recurrence: Recurrence,
        times: Array,
        given: Array,
        guidance: Sequence[float],
        mask: Array | None = None,
        extra: Array | None = None,
    ) -> None:
        self.session = session
        self.buffers = buffers
        self.recurrence = recurrence
        batch, steps = buffers.batch, recurrence.steps
        self.guidance = tuple(guidance)
        self.weights, self.own = _weights(recurrence, np.asarray(guidance))
        # The UNet's outputs come first, each at its step, then what is given.
        rows = np.zeros((self.weights.shape[2], batch.elements), np.float32)
        rows[steps * batch.copies :] = given.reshape(len(given), -1)
        self._rows = Buffer(session, rows)
        self._weights = Buffer(session, self.weights.astype(np.float32))
        self._own = Buffer(session, self.own.astype(np.float32))
        self._times = Buffer(session, times)
        self._total = Buffer(session, np.zeros((batch.copies, batch.elements), np.float32))
        self._fixed = self._fixed_inputs(mask, extra)
        self._bindings = [self._bind(step) for step in range(steps + 1)]

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(math.prod(self._rows.shape)) * self._rows.dtype.itemsize

    def is_for(
        self,
        buffers: BoundBuffers,
        recurrence: Recurrence,
        guidance: Sequence[float],
        mask: Array | None,
        extra: Array | None,
    ) -> bool:
        """Whether it can :meth:`begin` again for a run; with a mask none can."""
        plain = mask is None and extra is None and not self._fixed
        same = self.buffers is buffers and self.recurrence is recurrence
        return plain and same and self.guidance == tuple(guidance)

    def begin(self, times: Array, given: Array) -> None:
        """Begin another run of the same steps. The outputs of the last one, all finite, have zero weights until each is
        written over."""
        self._rows.write_from(self.recurrence.steps * self.buffers.batch.copies, given)
        self._times.write(times)

    def _fixed_inputs(self, mask: Array | None, extra: Array | None) -> dict[str, Buffer]:
        """The inputs of tasks, which stay the same from step to step but for the weights of ``outside``."""
        batch, fixed = self.buffers.batch, {}
        if mask is not None and self.recurrence.outside is not None:
            inside = np.broadcast_to(mask, (batch.images, *batch.latent)).reshape(1, -1)
            # The image's row stands before the noise's.
            weights = np.repeat(self.recurrence.outside[:, None, ::-1], batch.copies, axis=1)
            fixed = {
                "inside": Buffer(self.session, inside),
                "outside": Buffer(self.session, weights.astype(np.float32)),
            }
        if extra is not None:
            repeated = np.concatenate([extra] * batch.copies)
            fixed["extra"] = Buffer(
                self.session, repeated.reshape(*repeated.shape[:2], -1).astype(self.buffers.sample.dtype)
            )
        return fixed

    def _bind(self, step: int) -> Any:
        """The sum before ``step``, or after the last."""
        buffers, copies = self.buffers, self.buffers.batch.copies
        flat = (copies, buffers.batch.elements)
        binding = self.session.io_binding()
        binding.bind_input("rows", *self._rows.binding_arguments())
        binding.bind_input("weights", *self._weights.binding_arguments(step, self._weights.shape[1:]))
        binding.bind_input("own", *self._own.binding_arguments(step, self._own.shape[1:]))
        binding.bind_input("output", *buffers.output.binding_arguments(0, flat))
        # After the last step there is no next time; any will do.
        binding.bind_input(
            "time", *self._times.binding_arguments(min(step, self.recurrence.steps - 1), buffers.row.words.shape)
        )
        for name, buffer in self._fixed.items():
            of_step = (step, buffer.shape[1:]) if name == "outside" else ()
            binding.bind_input(name, *buffer.binding_arguments(*of_step))
        if "inside" in self._fixed:
            first = self.recurrence.steps * copies
            binding.bind_input("origin", *self._rows.binding_arguments(first, (2, buffers.batch.elements)))
        binding.bind_output("kept", *self._rows.binding_arguments(max(step - 1, 0) * copies, flat))
        sample = (
            flat if "extra" not in self._fixed else (*buffers.sample.shape[:2], math.prod(buffers.sample.shape[2:]))
        )
        binding.bind_output("sample", *buffers.sample.binding_arguments(0, sample))
        if "extra" in self._fixed:
            binding.bind_output("alone", *buffers.latents.binding_arguments(0, flat))
        binding.bind_output("total", *self._total.binding_arguments())
        binding.bind_output("now", *buffers.row.words.binding_arguments())
        return binding

    def prepare(self, step: int) -> None:
        """Keep the output of the step before, and make the input of ``step``, or the result after the last."""
        self.session.run_bound(self._bindings[step], wait=False)

    def result(self) -> Array:
        """The denoised latents.

        Raises:
            ParityError: some output of the UNet was not finite.
        """
        batch = self.buffers.batch
        latents: Array = self._total.read()[0].reshape(batch.images, *batch.latent)
        if not np.isfinite(latents).all():
            raise ParityError(
                f"the output has NaN or infinite values at step {self._first_bad()} of {self.recurrence.steps}",
                component=self.buffers.session.component,
                hint="An fp16 overflow does this: compare with the fp32 pipeline, or optimize without --fp16.",
            )
        return latents

    def _first_bad(self) -> int:
        finite = np.isfinite(self._rows.read()).all(axis=1)
        return int(np.argmin(finite)) // self.buffers.batch.copies + 1


def _weights(recurrence: Recurrence, guidance: Array) -> tuple[Array, Array]:
    """Weights of each step's input: [steps + 1, copies, rows] of the rows, [..., copies] of the last output.

    The copies of the input are equal. At the sum before step ``i`` the output of step ``i - 1`` is not yet among the
    rows, so its weights stand apart.
    """
    steps, copies = recurrence.steps, len(guidance)
    table = np.concatenate([recurrence.inputs, recurrence.result[None]])  # [..., noise | outputs | noises | image]
    outputs = table[:, 1 : 1 + steps, None] * guidance  # [steps + 1, steps, copies]
    own = np.zeros((steps + 1, copies))
    for step in range(1, steps + 1):
        own[step] = outputs[step, step - 1]
        outputs[step, step - 1 :] = 0.0
    later = table[:, 1 + steps : 1 + steps + recurrence.noises]
    image = table[:, 1 + steps + recurrence.noises :]
    rows = np.concatenate([outputs.reshape(steps + 1, -1), image, table[:, :1], later], axis=1)
    return np.repeat(rows[:, None], copies, axis=1), np.repeat(own[:, None], copies, axis=1)
