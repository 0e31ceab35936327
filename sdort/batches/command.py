"""A batch: :func:`sdort.batch`, which ``sdort batch`` calls."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sdort.batches.archive import check_archive, write_archive
from sdort.batches.batch_options import Archive, BatchKeywords, BatchOptions, ImageFormat, parted
from sdort.batches.journal import Entry, Journal, SetAside, open_journal
from sdort.batches.line_files import BadLine, Line, count_lines, read_lines
from sdort.batches.part import OF_A_LINE, Part, Wanted
from sdort.batches.ray_cluster import check_workers
from sdort.batches.ray_pool import OF_A_PART, RayPool
from sdort.batches.worker import Answer
from sdort.console import document, progress, say
from sdort.errors import OutputError, SdortError, UsageError
from sdort.files.file_digest import file_digest
from sdort.first_use.command import parts_of, with_parts
from sdort.first_use.find_pipeline import pipeline_folder
from sdort.generation.command import Pipeline, load_folder
from sdort.generation.files.image_files import save_file
from sdort.generation.files.prompts_file import setting, together
from sdort.generation.job import Job, alike, plan_job, plan_lines, sized
from sdort.generation.requests.typed_options import GenerationOptions, runtime_options
from sdort.generation.result import Image
from sdort.generation.resumed_prompts import alone
from sdort.options.declared_options import lone_option, made_of
from sdort.options.option_types import check_types, typed
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

AT_ONCE = 1024
"""Lines that are read before they are drawn: those of one setting among them are drawn together."""
OF_A_JOB = 32
"""Images of a job, whose pixels are held until all are written."""


@document("batch", 1)
@dataclass(frozen=True)
class BatchReport:
    """The outcome of :func:`sdort.batch`, printed with ``sdort batch --json``."""

    out: Path
    """The folder with the images and ``images.jsonl``."""
    images: int
    """Images that were drawn."""
    done_before: int
    """Images that an earlier run of the batch had drawn."""
    withheld: int
    """Images of this run that the safety checker withheld: they are in the journal, and have no file."""
    set_aside: int
    """Lines that nothing could be drawn of: ``set_aside.jsonl`` has them, each with the reason."""
    seconds: float
    """Seconds of all, loading included."""
    images_per_second: float | None
    """Images a second, loading left out; None where none was drawn."""
    model: str
    """The checkpoint, or the pipeline's folder where nothing tells."""
    provider: str | None
    """The execution provider that ran the denoiser; None where nothing was left to be drawn."""
    archive: list[Path]
    """Files that have all images; empty where none was asked for."""


@typed
def batch(pipeline: str | Path, prompts: str | Path, out: str | Path, **options: Unpack[BatchKeywords]) -> BatchReport:
    """Draw the images of a file of prompts into a folder, and record each in a journal.

    The same call goes on where an earlier one was ended, however that ended: what the journal has is not drawn again.
    Lines of the same settings are drawn together, each with its own seeds. A line that nothing can be drawn of is set
    aside, and the others go on.

    Args:
        pipeline: as for :func:`sdort.load`.
        prompts: a text file with a prompt a line, or options of each line by their names in Python: JSON lines
            (``.jsonl``), a ``.csv`` or a ``.parquet`` file. ``id`` names a line's images, its number by default. A
            line without a seed has one that its id decides.
        out: the folder, which may be there.
        options: of :func:`sdort.load` and :meth:`Pipeline.generate`, for all lines.

    Raises:
        UsageError: the file has no lines, or a folder is gone on with other lines or options.
        BadModelError: the file of prompts or the journal cannot be read, or the pipeline is broken.
        OutputError: the folder cannot be written, or another process writes to it.
        ProviderError: a run failed, or ran out of memory.

    Example:
        >>> sdort.batch("fast", "prompts.csv", "drawn", provider="cpu").images
        24
    """
    started = time.perf_counter()
    runtime, drawing = parted(options)
    settings = runtime_options(cast("LoadOptions", runtime))
    kinds = {"image_format": ImageFormat, "archive": Archive, "ray": str | None, "workers": int | None}
    check_types({name: options.get(name) for name in kinds}, kinds)
    plan_job("a line", cast("GenerationOptions", drawing))  # what is wrong for all is no line's fault
    own, file, folder = made_of(BatchOptions, options), Path(prompts), Path(out)
    check_archive(own.archive)
    if lone := lone_option(options, BatchOptions):
        raise UsageError(lone)
    if own.ray is not None:
        check_workers(settings)
    count = count_lines(file)
    model = open_folder(pipeline_folder(pipeline, settings))
    with open_journal(folder) as journal:
        aside = SetAside(folder)
        with progress(str(file), count) as advance, _pool(own, model, settings) as pool:
            drawer = _Drawer(model, settings, file, drawing, own.image_format, journal, aside, advance, pool)
            with drawer:
                drawer.draw(read_lines(file))
        archive = write_archive(own.archive, folder) if own.archive else []
        return BatchReport(
            folder,
            drawer.images,
            drawer.done_before,
            drawer.withheld,
            aside.count,
            round(time.perf_counter() - started, 3),
            drawer.images_per_second,
            model.checkpoint,
            drawer.provider,
            archive,
        )


def _pool(own: BatchOptions, model: PipelineFolder, runtime: RuntimeOptions) -> AbstractContextManager[RayPool | None]:
    """The workers that draw; None where this process does."""
    if own.ray is None:
        return nullcontext()
    return RayPool(own.ray, own.workers, model, runtime, own.image_format)


@dataclass
class _Drawer:
    """The drawing of lines; the pipeline is loaded for the first image that is not there yet."""

    folder: PipelineFolder
    runtime: RuntimeOptions
    file: Path
    options: dict[str, Any]
    image_format: str
    journal: Journal
    aside: SetAside
    advance: Callable[[float], None]
    pool: RayPool | None
    images: int = 0
    done_before: int = 0
    withheld: int = 0
    _seen: int = 0
    provider: str | None = None
    images_per_second: float | None = None
    _loaded: Pipeline | None = None
    _part: Callable[..., Path] = field(init=False)
    _since: float = 0.0
    _all: str = field(init=False)
    """A hash of what all lines have."""

    def __post_init__(self) -> None:
        self._part = parts_of(self.runtime)
        given = {name: str(value) for name, value in sized(self.options).items() if value is not None}
        self._all = _digest({"model": self.folder.model_hash, "options": given})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind and self.images:
            say(f"{self.images:,} images were drawn; the same command goes on behind them")
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline, loaded."""
        if self._loaded is None:
            self._loaded = load_folder(self.folder.path, self.runtime)
            self.provider, self._since = self._loaded.provider, time.perf_counter()
        return self._loaded

    def draw(self, lines: Iterable[Line | BadLine]) -> None:
        """Draw all lines."""
        if self.pool is None:
            for part in self._parts(lines):
                self._draw(part)
        else:
            for part, answer in self.pool.drawn(self._parts(lines)):
                self._keep(part, answer)
        if not self._seen:
            raise UsageError(f"{self.file} has no prompts", hint="Write one a line.")

    def _parts(self, lines: Iterable[Line | BadLine]) -> Iterator[Part]:
        """The images that the journal has not, in parts of one setting."""
        for some in _pieces(lines, AT_ONCE):
            good = [line for line in some if isinstance(line, Line)]
            for line in some:
                if isinstance(line, BadLine):
                    self._set_aside(line.number, line.name, line.problem)
            by_setting: dict[str, list[Line]] = {}
            for line in good:
                by_setting.setdefault(repr(setting((line.number, line.options))), []).append(line)
            for group in by_setting.values():
                yield from self._parts_of(group)

    def _parts_of(self, lines: Sequence[Line]) -> Iterator[Part]:
        """The parts of lines of one setting; those that cannot be planned are found by halves, and set aside."""
        self._seen += len(lines)
        known = {line.number: line for line in lines}
        numbered = [(line.number, self._decided(line)) for line in lines]
        for job in self._planned(numbered, known):
            for same in alike(with_parts(job, self._part)):
                left = self._left(same, known)
                size = OF_A_JOB if self.pool is None else OF_A_PART
                for first in range(0, len(left.wanted), size):
                    yield left.some(range(first, min(first + size, len(left.wanted))))

    def _decided(self, line: Line) -> dict[str, Any]:
        """The options of a line, with seeds that every run of the batch has."""
        given, more = {**self.options, **line.options}, {}
        if given.get("seed") is None:
            more["seed"] = int(hashlib.sha256(line.name.encode()).hexdigest()[:8], 16)
        if given.get("variation_strength") is not None and given.get("variation_seed") is None:
            more["variation_seed"] = 0
        return {**line.options, **more}

    def _planned(self, numbered: list[tuple[int, dict[str, Any]]], known: dict[int, Line]) -> Iterator[Job]:
        try:
            yield plan_lines(self.file, together(numbered), self.options)
        except OF_A_LINE as error:
            if len(numbered) == 1:
                line = known[numbered[0][0]]
                self._set_aside(line.number, line.name, error.message)
                return
            half = len(numbered) // 2
            yield from self._planned(numbered[:half], known)
            yield from self._planned(numbered[half:], known)

    def _left(self, job: Job, known: dict[int, Line]) -> Part:
        """The images of a job that the journal has not, each as a request of its own."""
        counts = dict.fromkeys(job.lines, 0)
        for number, request in zip(job.lines, job.requests, strict=True):
            counts[number] += request.num_images
        requests, numbers, wanted, index = [], [], list[Wanted](), dict.fromkeys(counts, 0)
        for number, request in zip(job.lines, job.requests, strict=True):
            line = known[number]
            key = self._key(line)
            for own in range(request.num_images):
                at, index[number] = index[number], index[number] + 1
                if self.journal.has(line.name, at):
                    self.done_before += 1
                    self.advance(1 / counts[number])
                    continue
                made = Wanted(line, at, key, 1 / counts[number])
                file = self._path(made).name
                if (owner := self.journal.owner(file, line.name, at)) != line.name:
                    self._set_aside(number, line.name, f"{file} is an image of {owner}", made.share)
                    continue
                requests.append(alone(request, own))
                numbers.append(number)
                wanted.append(made)
        return Part(replace(job, requests=requests, lines=tuple(numbers)), wanted)

    def _key(self, line: Line) -> str:
        """The hash of what a line's images are drawn with.

        Raises:
            OutputError: the journal has images of the same id that were drawn with something else.
        """
        key = _digest({"all": self._all, "line": line.options})
        if self.journal.key_of(line.name) not in (None, key):
            raise OutputError(
                f"{self.journal.folder} has images of {line.name} that were drawn with another model, other options or "
                "another line",
                hint="Choose another folder with --out, or give the line another id.",
            )
        return key

    def _draw(self, part: Part) -> None:
        """Draw images; where a line's own fault ends that, what is left goes on in halves."""
        started, done = time.perf_counter(), set[int]()
        paths = self._paths(part)

        def take(number: int, image: Image | None) -> None:
            done.add(number)
            seconds = (time.perf_counter() - started) / len(done)
            if image is None:
                self._shows_nothing(part.wanted[number])
            else:
                self._take(part.wanted[number], image.seed, image.prompt, image.path, seconds)

        try:
            self.pipeline.generate_job(replace(part.job, overwrite=True), paths, take)
        except OF_A_LINE as error:
            for half in self._behind(part, done, error):
                self._draw(half)

    def _keep(self, part: Part, answer: Answer) -> None:
        """Write the images that a worker has drawn; what it has not goes back to the workers."""
        assert self.pool is not None
        self.provider, self._since = self.pool.provider, self.pool.ready_since
        for (number, image), path in zip(answer.images.items(), self._paths(part.some([*answer.images])), strict=True):
            if image is None:
                self._shows_nothing(part.wanted[number])
                continue
            if image.content is not None:
                save_file(path, partial(_write, image.content), overwrite=True)
            written = None if image.content is None else path
            self._take(part.wanted[number], image.seed, image.prompt, written, image.seconds)
        if isinstance(answer.error, OF_A_LINE):
            self.pool.again(self._behind(part, answer.images.keys(), answer.error))
        elif answer.error:
            raise answer.error

    def _behind(self, part: Part, done: Collection[int], error: SdortError) -> list[Part]:
        """Halves of what a line's own fault left of a part; a single line has none, and is set aside."""
        left = [number for number in range(len(part.wanted)) if number not in done]
        if not left:
            raise error
        if len(left) > 1:
            return part.halves(left)
        only = part.wanted[left[0]]
        self._set_aside(only.line.number, only.line.name, error.message, only.share)
        return []

    def _paths(self, part: Part) -> list[Path]:
        """The files of a part's images, that may be written."""
        paths = [self._path(each) for each in part.wanted]
        for path in paths:
            if not self.journal.may_write(path):
                raise OutputError(
                    f"{path} exists and is no image of sdort's", hint="Choose another folder with --out, or other ids."
                )
        return paths

    def _path(self, wanted: Wanted) -> Path:
        """The file of an image: its line's id, and its number where its line has several."""
        more = "" if wanted.share == 1 else f"-{wanted.index}"
        return self.journal.folder / f"{wanted.line.name}{more}.{self.image_format}"

    def _take(self, wanted: Wanted, seed: int, prompt: str, path: Path | None, seconds: float) -> None:
        """Put an image that is in its place, or was withheld, into the journal."""
        self.journal.add(
            Entry(
                wanted.line.name,
                wanted.line.number,
                wanted.index,
                seed,
                prompt,
                path.name if path else None,
                path.stat().st_size if path else None,
                file_digest(path) if path else None,
                round(seconds, 4),
                self.folder.checkpoint,
                wanted.key,
            )
        )
        self.images += 1
        self.images_per_second = round(self.images / (time.perf_counter() - self._since), 4)
        self.withheld += path is None
        self.advance(wanted.share)

    def _shows_nothing(self, wanted: Wanted) -> None:
        self._set_aside(wanted.line.number, wanted.line.name, "its image shows nothing", wanted.share)

    def _set_aside(self, number: int, name: str | None, problem: str, share: float = 1.0) -> None:
        self._seen += 1
        self.aside.add(number, name, problem)
        self.advance(share)


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _pieces(lines: Iterable[Line | BadLine], size: int) -> Iterator[list[Line | BadLine]]:
    left = iter(lines)
    while piece := list(itertools.islice(left, size)):
        yield piece
