"""A worker of a batch: a process that has a pipeline open, draws parts, and gives back the bytes of their images.

:mod:`sdort.batches.ray_pool` starts it. It writes no file: bytes reach a driver on another machine too, where no folder
is shared.
"""

from __future__ import annotations

import io
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from sdort.batches.carried_tuning import unpack_tuning
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.generation.command import Pipeline, load_folder
from sdort.generation.files.image_files import check_sides, format_of, write_image
from sdort.generation.image_writer import THREADS
from sdort.generation.job import Job
from sdort.generation.result import Image
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import RuntimeOptions

HIP, ROCR = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Drawn:
    """An image as a worker gives it back.

    Attributes:
        content: of its file; None where the safety checker withheld it.
        seconds: from the start of its part until its pixels were there, divided by the images until then.
    """

    seed: int
    prompt: str
    content: bytes | None
    seconds: float


@dataclass(frozen=True)
class Answer:
    """The outcome of a part.

    Attributes:
        images: by their numbers in the part; None for one that shows nothing.
        error: what ended it, where some images are missing.
        warnings: what was to be told meanwhile.
    """

    images: Mapping[int, Drawn | None] = field(default_factory=dict)
    error: SdortError | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Ready:
    """A pipeline that is open.

    Attributes:
        provider: the name of the execution provider that runs its UNet.
        warnings: what was to be told meanwhile.
    """

    provider: str
    warnings: Sequence[str]


class Worker:
    """A pipeline in a process of its own.

    Args:
        folder: the pipeline's, at the same path on every machine.
        model_hash: of the driver's pipeline, which this machine's has to have.
        image_format: suffix of the images.
    """

    def __init__(self, folder: Path, model_hash: str, runtime: RuntimeOptions, image_format: str) -> None:
        self._folder = folder
        self._model_hash = model_hash
        self._runtime = runtime
        self._image_format = image_format
        self._pipeline: Pipeline | None = None

    def open(self, tuning: bytes | None) -> Ready | SdortError:
        """Open the pipeline; returns its provider, or why it does not open.

        Args:
            tuning: an archive of the driver's tuning bundles.
        """
        try:
            show_own_gpus()
            same_folder(self._folder, self._model_hash, tuning)
            with heard() as warnings:
                self._pipeline = load_folder(self._folder, self._runtime)
        except SdortError as error:
            return error
        return Ready(self._pipeline.provider, warnings)

    def draw(self, job: Job) -> Answer:
        """Draw a part; what fails is told in the answer."""
        assert self._pipeline is not None, "open() comes first"
        started, failure = time.perf_counter(), None
        found: dict[int, tuple[Image, float, Future[bytes | None]] | None] = {}

        def take(number: int, image: Image | None) -> None:
            seconds = (time.perf_counter() - started) / (len(found) + 1)
            found[number] = None
            if image:
                found[number] = image, seconds, threads.submit(self._encoded, image, job.quality)

        with heard() as warnings, ThreadPoolExecutor(THREADS, "sdort-files") as threads:
            try:
                self._pipeline.generate_job(job, [], take)
            except SdortError as error:
                failure = error
            images: dict[int, Drawn | None] = {}
            for number, each in found.items():
                try:
                    images[number] = each and Drawn(each[0].seed, each[0].prompt, each[2].result(), each[1])
                except SdortError as error:
                    failure = failure or error
        return Answer(images, failure, warnings)

    def _encoded(self, image: Image, quality: int | None) -> bytes | None:
        if image.withheld:
            return None
        file, name = io.BytesIO(), Path(f"image.{self._image_format}")
        check_sides(name, image.pixels.shape[:2])
        write_image(file, image.pixels, image.record, image.seed, format_of(name), quality)
        return file.getvalue()


def same_folder(path: Path, model_hash: str, tuning: bytes | None) -> PipelineFolder:
    """The folder of a worker's pipeline, which is the driver's; its tuning results are in this machine's cache then.

    Raises:
        BadModelError: it is not there, or is another one.
        OutputError: the cache cannot be written.
    """
    if tuning:
        unpack_tuning(tuning)
    if not path.is_dir():
        raise BadModelError(
            f"{path} is not on the machine {platform.node()}",
            hint="Every machine of the cluster needs the pipeline, and all files that are named, at the same paths: a "
            "shared disk or copies.",
        )
    folder = open_folder(path)
    if folder.model_hash != model_hash:
        raise BadModelError(
            f"{path} on the machine {platform.node()} is another pipeline than here",
            hint="Copy the pipeline to it anew.",
        )
    return folder


@contextmanager
def heard() -> Iterator[list[str]]:
    """A block whose warnings are collected: a worker has no terminal, and they are records of a logger there."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    warnings, collector, logger = list[str](), Collector(logging.WARNING), logging.getLogger("sdort")
    logger.addHandler(collector)
    try:
        yield warnings
    finally:
        logger.removeHandler(collector)


def show_own_gpus() -> None:
    """Show this process the GPUs that Ray gave it, by :func:`show_gpus`."""
    show_gpus(_own_gpus(), os.environ)


def _own_gpus() -> Sequence[str]:
    import ray

    return cast("Sequence[str]", ray.get_runtime_context().get_accelerator_ids().get("GPU", []))


def show_gpus(gpus: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Show a process its own GPUs, before it opens a library of AMD's.

    Ray does so for the cards that it knows. It takes an unknown one (Radeon RX) for NVIDIA's, and HIP reads the
    variable that it then sets only where ``HIP_VISIBLE_DEVICES`` is not set.

    Args:
        gpus: numbers that Ray gave.

    Raises:
        UsageError: ``ROCR_VISIBLE_DEVICES`` is set.
    """
    if not gpus:
        return
    refuse_rocr(environ)
    if not environ.get(HIP):
        environ[HIP] = ",".join(gpus)
    elif environ[HIP] != ",".join(gpus):  # the user's, and Ray counts within it
        visible = environ[HIP].split(",")
        environ[HIP] = ",".join(visible[int(gpu)] for gpu in gpus)


def refuse_rocr(environ: Mapping[str, str]) -> None:
    """Refuse a variable by which ROCm renumbers GPUs below what Ray counts.

    Raises:
        UsageError: it is set.
    """
    if ROCR in environ:
        raise UsageError(
            f"{ROCR} is set, and Ray divides the GPUs by {HIP}",
            hint=f"Name the GPUs in {HIP} instead:\n    unset {ROCR}; export {HIP}={environ[ROCR] or '0'}",
        )
