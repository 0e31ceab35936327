"""The UNet on several devices of which each computes a patch of the image, with borders that are a step old.

Devices come in groups: a share of the samples belongs to each group, and each device of it has some of the rows of the
image (:mod:`sdort.runtime.step.patch_cut`). In an exact step each device computes all rows of its group's samples, and
so has what every patch gives. In the other steps it computes its own rows, with what the other patches gave in the step
before. When all are done, each device's block is copied to the others of its group, from GPU to GPU, while the sampler
makes the next latents. The latents pass through the host's memory.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sdort.graph.signature import Array
from sdort.runtime.step.bound_patch import BoundPatch
from sdort.runtime.step.spread_unet import SpreadBuffers


class PatchedBuffers(SpreadBuffers):
    """The UNet bound for a batch, whose images the devices of its session compute in patches."""

    @cached_property
    def _groups(self) -> list[list[BoundPatch]]:
        """The patches of each group of devices, bound before the first run, of whatever the inputs are then."""
        count, numbers = self.session.options.patch_cut, self.session.options.all_devices
        groups = [numbers[first : first + count] for first in range(0, len(numbers), count)]
        patches = [BoundPatch(self, 0, groups[0])]
        patches += [other.make_patch(groups[index // count]) for index, other in enumerate(self._others, 1)]
        return [patches[first : first + count] for first in range(0, len(patches), count)]

    @property
    def patches(self) -> list[BoundPatch]:
        """The patches of all devices."""
        return [patch for group in self._groups for patch in group]

    def run(self, step: int, whole: bool = True, *, wait: bool = True) -> None:
        self.wait_for_exchange()
        if whole:
            super().run(step, wait=wait)
        else:
            self._run_patches(step)

    def _run_patches(self, step: int) -> None:
        if self.session.stream:
            self.session.stream.wait()  # the sum that makes the sample
        sample, own, here = self.sample.read(), list[Array](), self._groups[0][0]
        rest = self._on_all(
            lambda: own.append(here.run(sample[self.share])),
            lambda other: other.begin_patch(step, sample),
            alone=any(patch.records() for patch in self.patches),
        )
        rows, count = [*own, *rest], len(self._groups[0])
        images = [np.concatenate(rows[first : first + count], axis=2) for first in range(0, len(rows), count)]
        self.output.write(np.concatenate(images))
        self.exchange()

    def exchange(self) -> None:
        """Begin to copy what each patch gave to the others of its group."""
        for group in self._groups:
            for patch in group:
                for other in group:
                    if other is not patch:
                        patch.give(other)

    def wait_for_exchange(self) -> None:
        """Wait until all of it is there."""
        for patch in self.patches:
            patch.wait()
