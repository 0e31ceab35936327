"""The UNet on several devices: each runs on some of the samples of a step.

With guidance an image is two samples, one without the prompt and one with it, so that two devices take half of the time
of one. The latents and all outputs are in the memory of the first device, where the loops sum them up. Before a run the
other devices get their samples, and after it the first one their outputs, through the host's memory: less than a
megabyte, at any size of image.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import wait as all_ended

from sdort.families.known_families import roles_of
from sdort.graph.signature import Array, static_size
from sdort.pipelines.conditioning import Conditioning
from sdort.runtime.other_devices import OtherDevice, shares
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.step_conditions import Lengths, StepConditions


class SpreadBuffers(BoundBuffers):
    """The UNet bound for a batch, whose samples the devices of its session share (``session.others``).

    Args:
        shapes, number, lengths: as :class:`BoundBuffers` takes them.
    """

    def __init__(
        self,
        session: Session,
        batch: Batch,
        shapes: Mapping[str, tuple[int, ...]],
        number: int,
        *,
        lengths: Lengths = (),
    ) -> None:
        first, *rest = sample_shares(session, batch.samples)
        super().__init__(session, batch, shapes, number, first, lengths=lengths)
        self._others = [
            _Elsewhere(device, batch, shapes, number, share, lengths)
            for device, share in zip(session.others, rest, strict=False)
        ]

    def write_conditioning(self, samples: Conditioning) -> None:
        super().write_conditioning(samples)
        for other in self._others:
            other.write_conditioning(samples)

    def step_rows(self, timesteps: Array, conditions: StepConditions) -> Array:
        for other in self._others:
            other.make_rows(timesteps, conditions)
        return super().step_rows(timesteps, conditions)

    def begin(self, conditions: StepConditions) -> None:
        for other in self._others:
            other.begin_all(conditions)
        super().begin(conditions)

    def run(self, step: int, whole: bool = True, *, wait: bool = True) -> None:
        if self.session.stream:
            self.session.stream.wait()  # the sum that makes the sample
        sample, begun = self.sample.read(), list[Future[Array]]()
        # While one device records a graph, no thread may use the driver (cudaStreamCaptureModeGlobal).
        alone = self.records(whole) or any(other.buffers.records(whole) for other in self._others)
        try:
            for other in self._others:
                begun.append(other.begin(step, whole, sample))
                if alone:
                    all_ended(begun)
            super().run(step, whole, wait=wait)
            for other, output in zip(self._others, begun, strict=True):
                self.output.write_from(other.share.start, output.result())
        finally:
            all_ended(begun)


class _Elsewhere:
    """A share of the samples, on a further device."""

    def __init__(
        self,
        device: OtherDevice[Session],
        batch: Batch,
        shapes: Mapping[str, tuple[int, ...]],
        number: int,
        share: slice,
        lengths: Lengths,
    ) -> None:
        self.share = share
        self._device = device
        self.buffers = device.call(
            lambda session: BoundBuffers(session, batch, shapes, number, share, lengths=lengths, latents_of_all=False)
        )
        self._rows: Array | None = None

    def write_conditioning(self, samples: Conditioning) -> None:
        self._device.call(lambda _: self.buffers.write_conditioning(samples))

    def make_rows(self, timesteps: Array, conditions: StepConditions) -> None:
        """Make the rows of all steps, which :meth:`begin` takes."""
        self._rows = self._device.call(lambda _: self.buffers.step_rows(timesteps, conditions))

    def begin_all(self, conditions: StepConditions) -> None:
        """Make what the first step takes."""
        self._device.call(lambda _: self.buffers.begin(conditions))

    def begin(self, step: int, whole: bool, sample: Array) -> Future[Array]:
        """Begin a run; its result is the output for this share.

        Args:
            sample: the UNet's input for all samples.
        """

        def run(_: Session) -> Array:
            assert self._rows is not None
            self.buffers.sample.write(sample[self.share])
            self.buffers.row.words.write(self._rows[step])
            self.buffers.run(step, whole)
            return self.buffers.output.read()

        return self._device.begin(run)


def sample_shares(session: Session, samples: int) -> list[slice]:
    """The samples that each device of a session runs on; fewer parts than devices where there are fewer samples."""
    unit = static_size(session.inputs[roles_of(session.inputs).sample].shape, 0) or 1
    return shares(samples, unit, 1 + len(session.others)) if samples % unit == 0 else [slice(0, samples)]
