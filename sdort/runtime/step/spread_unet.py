"""The UNet on several devices: each runs on some of the samples of a step.

With guidance an image is two samples, one without the prompt and one with it, so that two devices take half of the time
of one. The latents and all outputs are in the memory of the first device, where the loops sum them up. Before a run the
other devices get their samples, and after it the first one their outputs, through the host's memory: less than a
megabyte, at any size of image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as all_ended

from sdort.families.known_families import roles_of
from sdort.graph.signature import Array, static_size
from sdort.pipelines.conditioning import Conditioning
from sdort.runtime.other_devices import OtherDevice, shares
from sdort.runtime.session import Session
from sdort.runtime.step.bound_patch import BoundPatch
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
        first, *rest = device_shares(session, batch.samples)
        super().__init__(session, batch, shapes, number, first, lengths=lengths)
        patches = session.options.patch_cut or 1
        self._others = [
            _Elsewhere(device, batch, shapes, number, share, lengths, index % patches)
            for index, (device, share) in enumerate(zip(session.others, rest, strict=False), 1)
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
        sample, here = self.sample.read(), super().run
        outputs = self._on_all(
            lambda: here(step, whole, wait=wait),
            lambda other: other.begin(step, whole, sample),
            alone=self.records(whole) or any(other.buffers.records(whole) for other in self._others),
        )
        for other, output in zip(self._others, outputs, strict=True):
            if other.index == 0:  # the others of its group have the same
                self.output.write_from(other.share.start, output)

    def _on_all(
        self, here: Callable[[], None], elsewhere: Callable[[_Elsewhere], Future[Array]], *, alone: bool
    ) -> list[Array]:
        """Run on all devices; the results of the further ones.

        Args:
            alone: one after the other: while one device records a graph, no thread may use the driver
                (``cudaStreamCaptureModeGlobal``).
        """
        begun: list[Future[Array]] = []
        try:
            for other in self._others:
                begun.append(elsewhere(other))
                if alone:
                    all_ended(begun)
            here()
            return [future.result() for future in begun]
        finally:
            all_ended(begun)


class _Elsewhere:
    """A share of the samples, on a further device.

    Args:
        index: of the device among those that have the same share.
    """

    def __init__(
        self,
        device: OtherDevice[Session],
        batch: Batch,
        shapes: Mapping[str, tuple[int, ...]],
        number: int,
        share: slice,
        lengths: Lengths,
        index: int,
    ) -> None:
        self.share = share
        self.index = index
        self._device = device
        self.buffers = device.call(
            lambda session: BoundBuffers(session, batch, shapes, number, share, lengths=lengths, latents_of_all=False)
        )
        self._rows: Array | None = None
        self._patch: BoundPatch | None = None

    def make_patch(self, devices: Sequence[int]) -> BoundPatch:
        """The device's patch of the image, which :meth:`begin_patch` runs.

        Args:
            devices: numbers of those that have the same share.
        """
        self._patch = self._device.call(lambda _: BoundPatch(self.buffers, self.index, devices))
        return self._patch

    def begin_patch(self, step: int, sample: Array) -> Future[Array]:
        """Begin a run; its result is the output for the rows of the patch.

        Args:
            sample: as :meth:`begin` takes it.
        """

        def run(_: Session) -> Array:
            assert self._rows is not None
            assert self._patch is not None
            self.buffers.row.words.write(self._rows[step])
            return self._patch.run(sample[self.share])

        return self._device.begin(run)

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
    """The samples that each device of a session runs on, or each group of devices that have patches of an image; fewer
    parts than these where there are fewer samples."""
    unit = static_size(session.inputs[roles_of(session.inputs).sample].shape, 0) or 1
    groups = (1 + len(session.others)) // (session.options.patch_cut or 1)
    return shares(samples, unit, groups) if samples % unit == 0 else [slice(0, samples)]


def device_shares(session: Session, samples: int) -> list[slice]:
    """The samples of each device that has some."""
    patches = session.options.patch_cut or 1
    return [share for share in sample_shares(session, samples) for _ in range(patches)]
