"""The result of a generation: images with their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, overload

from sdort.console import document, warn
from sdort.errors import SdortError, UsageError
from sdort.generation.denoising.session_groups import Opened, joined_openings
from sdort.generation.files.image_files import (
    check_quality,
    check_sides,
    check_texts,
    format_of,
    output_paths,
    save_image,
    write_image,
)
from sdort.generation.pictures.safety import ON
from sdort.generation.requests.record import GenerationRecord, StageSeconds
from sdort.graph.signature import Array
from sdort.inspection.profile import Placement
from sdort.runtime.piecewise_ort import Offloaded


@dataclass(frozen=True)
class Image:
    """One generated image."""

    path: Path | None
    """The file that it was written to; None if it was not written."""
    seed: int
    """The image's seed."""
    variation_seed: int | None
    """The seed of its variation; None if it is none."""
    prompt: str
    """The prompt that it shows."""
    negative_prompt: str
    """The negative prompt; empty if there is none."""
    pixels: Array = field(metadata={"json": None}, repr=False)
    """uint8 [height, width, 3], red, green and blue; all black if the image is flagged."""
    record: GenerationRecord = field(metadata={"json": None}, repr=False)
    flagged: bool | None = None
    """Whether the safety checker flagged it; None if it was not asked."""
    safety_score: float | None = None
    """The safety checker's highest score of a concept, above 0 if it flagged the image; None if it was not asked, or
    gives no scores."""

    @property
    def withheld(self) -> bool:
        """Whether the image is not to be written: it is flagged, and ``safety`` is ``on``."""
        return bool(self.flagged) and self.record.safety == ON

    @overload
    def save(
        self, path: str | Path, *, overwrite: bool = False, quality: int | None = None, format: str | None = None
    ) -> Path: ...

    @overload
    def save(
        self, path: BinaryIO, *, overwrite: bool = False, quality: int | None = None, format: str | None = None
    ) -> None: ...

    def save(
        self,
        path: str | Path | BinaryIO,
        *,
        overwrite: bool = False,
        quality: int | None = None,
        format: str | None = None,
    ) -> Path | None:
        """Write the image as PNG, JPEG or WebP, with its parameters inside, to a path or an open binary file.

        Args:
            path: the suffix of a path says the format.
            quality: of JPEG and WebP, from 1 to 100; 95 by default, and 100 of WebP keeps every pixel.
            format: of an open file: ``png`` (the default), ``jpeg`` or ``webp``.

        Returns:
            The path; None of an open file.

        Raises:
            UsageError: ``path`` or ``format`` is none of these, the image is larger than its format has, or it is
                :attr:`withheld`.
            OutputError: it cannot be written, or exists and ``overwrite`` is off.
        """
        if self.withheld:
            raise UsageError(
                f"the image of seed {self.seed} is not written: the safety checker flagged it",
                hint='Look at .flagged first. safety="replace" gives a black image in its place.',
            )
        if not isinstance(path, str | Path):
            named = Path(f"image.{format or 'png'}")
            self._check(named, quality)
            write_image(path, self.pixels, self.record, self.seed, format_of(named), quality)
            return None
        if format is not None:
            raise UsageError("format= is for open files", hint="The suffix of a path says the format.")
        [target] = output_paths(Path(path), self.seed, 1, overwrite)
        self._check(target, quality)
        return save_image(target, self.pixels, self.record, self.seed, overwrite=overwrite, quality=quality)

    def _check(self, path: Path, quality: int | None) -> None:
        """Refuse a file whose format cannot hold the image."""
        record, (height, width) = self.record, self.pixels.shape[:2]
        check_quality([path], quality)
        check_sides(path, (height, width))
        check_texts(path, (record.prompt, record.negative_prompt, record.prompt_2, record.negative_prompt_2))


@dataclass(frozen=True)
class PeakMemory:
    """Bytes of memory at the highest point; None where the machine does not tell."""

    host: int | None
    """Of the process since it began, as the kernel counts resident memory."""
    device: int | None
    """In use on the GPU at the end, beyond what was in use before loading: ONNX Runtime's arenas do not shrink. With
    low memory the most that was in use when models were given back."""


@document("run", 1)
@dataclass(frozen=True, kw_only=True)
class Generation(GenerationRecord):
    """The images of a request and its record. :func:`sdort.to_json` gives what ``sdort run --json`` prints.

    With several prompts ``prompt`` and ``negative_prompt`` are the first ones; each image has its own.
    """

    images: list[Image]
    """Those of the first prompt, then those of the second, and so on."""
    iterations_per_second: float
    """Calls of the UNet a second while denoising, each on all images of a batch."""
    peak_memory: PeakMemory
    """Peak memory, of the process and of the GPU."""
    memory: str = "normal"
    """``low`` where models were loaded in turn, ``normal`` where they were in memory together."""
    opened: list[Opened] = field(default_factory=list)
    """Models that were loaded while images were generated: with low memory all, else those that only some requests
    need. Their seconds are in no stage's."""
    offloaded: Offloaded | None = None
    """The UNet's or transformer's weights of which not all stayed in memory; None where all did."""
    elapsed: float = 0.0
    """Seconds of the call: its checks, loading where it loads, and the files are in it."""
    done_before: list[Path] = field(default_factory=list)
    """Files of a file of prompts that an earlier run had written, and that stay as they are."""
    grid: Path | None = None
    """One picture of all images, if that was asked for."""
    placement: list[Placement] | None = None
    """Where each component's operators ran, if that was asked for."""
    placement_remarks: list[str] = field(default_factory=list, metadata={"json": None})

    def save(
        self,
        output: str | Path | BinaryIO | None = None,
        *,
        overwrite: bool = False,
        quality: int | None = None,
        format: str | None = None,
    ) -> list[Path]:
        """Write all images as PNG, JPEG or WebP files with their parameters inside, or the one image to an open binary
        file.

        Images that are :attr:`Image.withheld` are left out of the files, which is told.

        Args:
            output: the file of a single image; several get -1, -2, ... before the suffix. By default
                ``sdort-SEED.png`` in the current folder. An open file takes one image.
            overwrite: replace files that exist.
            quality: as for :meth:`Image.save`, and so is ``format``.

        Returns:
            The paths, in the order of the images; none of an open file.

        Raises:
            UsageError: as :meth:`Image.save`, or ``output`` is an open file and there are several images.
            OutputError: a file cannot be written, or exists and ``overwrite`` is off.
        """
        if output is not None and not isinstance(output, str | Path):
            if len(self.images) != 1:
                raise UsageError(
                    f"an open file takes one image, and there are {len(self.images)}", hint="Save each of .images."
                )
            self.images[0].save(output, quality=quality, format=format)
            return []
        if format is not None:
            raise UsageError("format= is for open files", hint="The suffix of a path says the format.")
        paths = output_paths(Path(output) if output else None, self.seed, len(self.images), overwrite)
        pairs = [pair for pair in zip(self.images, paths, strict=True) if not pair[0].withheld]
        for image in (image for image in self.images if image.withheld):
            warn(withheld_text(image))
        for image, path in pairs:
            image._check(path, quality)
        return [
            save_image(path, image.pixels, image.record, image.seed, overwrite=overwrite, quality=quality)
            for image, path in pairs
        ]


def refuse_withheld(result: Generation) -> None:
    """Raise SdortError if images are withheld: not all that was asked for is written."""
    count = sum(image.withheld for image in result.images)
    if count:
        total = len(result.images)
        which = "the image is" if total == 1 else f"{count} of {total} images {'is' if count == 1 else 'are'}"
        raise SdortError(
            f"{which} not written: the pipeline's safety checker flagged what was drawn",
            hint="Another --seed or --prompt may do. --safety replace writes black images in their place; --safety off "
            "does not ask the checker.",
        )


def withheld_text(image: Image) -> str:
    """The sentence that says that an image is not written."""
    return f"the image of seed {image.seed} is not written: the pipeline's safety checker flagged it"


def replaced_text(image: Image) -> str:
    """The sentence that says that an image is black."""
    return f"the image of seed {image.seed} is replaced by a black one: the pipeline's safety checker flagged it"


def any_flagged(images: Sequence[Image]) -> bool | None:
    """Whether the safety checker flagged one of the images; None if it was asked of none."""
    asked = [image.flagged for image in images if image.flagged is not None]
    return any(asked) if asked else None


def joined(results: Sequence[Generation]) -> Generation:
    """The generations of one pipeline, one after the other, as one.

    The parameters are those of the first. Seconds are those of all, but for loading and the first step, which there was
    once; what a pipeline keeps (memory, how it decodes, what it widened, what fell back) is that of the last.
    """
    first, last = results[0], results[-1]
    denoise = sum(each.seconds.denoise for each in results)
    calls = sum(each.iterations_per_second * each.seconds.denoise for each in results)
    seconds = StageSeconds(
        load=first.seconds.load,
        encode=round(sum(each.seconds.encode for each in results), 4),
        encode_image=round(sum(each.seconds.encode_image for each in results), 4),
        denoise=round(denoise, 4),
        first_step=first.seconds.first_step,
        decode=round(sum(each.seconds.decode for each in results), 4),
        upscale=round(sum(each.seconds.upscale for each in results), 4),
        judge=round(sum(each.seconds.judge for each in results), 4),
    )
    images = [image for each in results for image in each.images]
    return replace(
        first,
        images=images,
        opened=joined_openings([each.opened for each in results]),
        flagged=any_flagged(images),
        seconds=seconds,
        iterations_per_second=round(calls / denoise, 4) if denoise else first.iterations_per_second,
        offloaded=last.offloaded,
        peak_memory=last.peak_memory,
        decoded=last.decoded,
        widened=last.widened,
        fallback=last.fallback,
    )
