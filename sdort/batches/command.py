"""A batch: :func:`sdort.batch`, which ``sdort batch`` calls."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sdort.batches.archive import check_archive, write_archive
from sdort.batches.batch_options import Archive, BatchKeywords, BatchOptions, ImageFormat, parted
from sdort.batches.journal import Entry, Journal, SetAside, open_journal
from sdort.batches.line_files import BadLine, Line, count_lines, read_lines
from sdort.console import document, progress, say
from sdort.errors import MemoryShortageError, OutputError, ParityError, UsageError
from sdort.files.file_digest import file_digest
from sdort.first_use.command import parts_of, with_parts
from sdort.first_use.find_pipeline import pipeline_folder
from sdort.generation.command import Pipeline, load_folder
from sdort.generation.files.prompts_file import setting, together
from sdort.generation.job import Job, alike, plan_job, plan_lines, sized
from sdort.generation.requests.typed_options import GenerationOptions, runtime_options
from sdort.generation.result import Image
from sdort.generation.resumed_prompts import alone
from sdort.options.declared_options import made_of
from sdort.options.option_types import check_types, typed
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

AT_ONCE = 1024
"""Lines that are read before they are drawn: those of one setting among them are drawn together."""
OF_A_JOB = 32
"""Images of a job, whose pixels are held until all are written."""
_OF_A_LINE = (UsageError, ParityError, MemoryShortageError)
"""Errors that may be a line's own; others end the batch."""


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
    kinds = {"image_format": ImageFormat, "archive": Archive}
    check_types({name: options.get(name) for name in kinds}, kinds)
    plan_job("a line", cast("GenerationOptions", drawing))  # what is wrong for all is no line's fault
    own, file, folder = made_of(BatchOptions, options), Path(prompts), Path(out)
    check_archive(own.archive)
    count = count_lines(file)
    model = open_folder(pipeline_folder(pipeline, settings))
    with open_journal(folder) as journal:
        aside = SetAside(folder)
        with progress(str(file), count) as advance:
            drawer = _Drawer(model, settings, file, drawing, own.image_format, journal, aside, advance)
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


@dataclass
class _Wanted:
    """An image that is to be drawn."""

    line: Line
    index: int
    key: str
    share: float
    """Of its line."""


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
        for some in _pieces(lines, AT_ONCE):
            good = [line for line in some if isinstance(line, Line)]
            for line in some:
                if isinstance(line, BadLine):
                    self._set_aside(line.number, line.name, line.problem)
            by_setting: dict[str, list[Line]] = {}
            for line in good:
                by_setting.setdefault(repr(setting((line.number, line.options))), []).append(line)
            for group in by_setting.values():
                self._draw_lines(group)
        if not self._seen:
            raise UsageError(f"{self.file} has no prompts", hint="Write one a line.")

    def _draw_lines(self, lines: Sequence[Line]) -> None:
        """Draw lines of one setting; those that cannot be planned are found by halves, and set aside."""
        self._seen += len(lines)
        known = {line.number: line for line in lines}
        numbered = [(line.number, self._decided(line)) for line in lines]
        for job in self._planned(numbered, known):
            for part in alike(with_parts(job, self._part)):
                self._draw_job(*self._left(part, known))

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
        except _OF_A_LINE as error:
            if len(numbered) == 1:
                line = known[numbered[0][0]]
                self._set_aside(line.number, line.name, error.message)
                return
            half = len(numbered) // 2
            yield from self._planned(numbered[:half], known)
            yield from self._planned(numbered[half:], known)

    def _left(self, job: Job, known: dict[int, Line]) -> tuple[Job, list[_Wanted]]:
        """The images of a job that the journal has not, each as a request of its own."""
        counts = dict.fromkeys(job.lines, 0)
        for number, request in zip(job.lines, job.requests, strict=True):
            counts[number] += request.num_images
        requests, numbers, wanted, index = [], [], list[_Wanted](), dict.fromkeys(counts, 0)
        for number, request in zip(job.lines, job.requests, strict=True):
            line = known[number]
            key = self._key(line)
            for own in range(request.num_images):
                at, index[number] = index[number], index[number] + 1
                if self.journal.has(line.name, at):
                    self.done_before += 1
                    self.advance(1 / counts[number])
                    continue
                made = _Wanted(line, at, key, 1 / counts[number])
                file = self._path(made).name
                if (owner := self.journal.owner(file, line.name, at)) != line.name:
                    self._set_aside(number, line.name, f"{file} is an image of {owner}", made.share)
                    continue
                requests.append(alone(request, own))
                numbers.append(number)
                wanted.append(made)
        return replace(job, requests=requests, lines=tuple(numbers)), wanted

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

    def _draw_job(self, job: Job, wanted: list[_Wanted]) -> None:
        for first in range(0, len(wanted), OF_A_JOB):
            numbers = range(first, min(first + OF_A_JOB, len(wanted)))
            self._draw(job.part(numbers), [wanted[number] for number in numbers])

    def _draw(self, job: Job, wanted: list[_Wanted]) -> None:
        """Draw images; where a line's own fault ends that, what is left goes on in halves."""
        started, done = time.perf_counter(), set[int]()
        paths = [self._path(each) for each in wanted]
        for path in paths:
            if not self.journal.may_write(path):
                raise OutputError(
                    f"{path} exists and is no image of sdort's", hint="Choose another folder with --out, or other ids."
                )

        def take(number: int, image: Image | None) -> None:
            done.add(number)
            self._take(wanted[number], image, (time.perf_counter() - started) / len(done))

        try:
            self.pipeline.generate_job(replace(job, overwrite=True), paths, take)
        except _OF_A_LINE as error:
            left = [number for number in range(len(wanted)) if number not in done]
            if not left:
                raise
            if len(left) == 1:
                only = wanted[left[0]]
                self._set_aside(only.line.number, only.line.name, error.message, only.share)
                return
            for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                self._draw(job.part(half), [wanted[number] for number in half])

    def _path(self, wanted: _Wanted) -> Path:
        """The file of an image: its line's id, and its number where its line has several."""
        more = "" if wanted.share == 1 else f"-{wanted.index}"
        return self.journal.folder / f"{wanted.line.name}{more}.{self.image_format}"

    def _take(self, wanted: _Wanted, image: Image | None, seconds: float) -> None:
        if image is None:
            self._set_aside(wanted.line.number, wanted.line.name, "its image shows nothing", wanted.share)
            return
        path = image.path
        self.journal.add(
            Entry(
                wanted.line.name,
                wanted.line.number,
                wanted.index,
                image.seed,
                image.prompt,
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

    def _set_aside(self, number: int, name: str | None, problem: str, share: float = 1.0) -> None:
        self._seen += 1
        self.aside.add(number, name, problem)
        self.advance(share)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _pieces(lines: Iterable[Line | BadLine], size: int) -> Iterator[list[Line | BadLine]]:
    left = iter(lines)
    while piece := list(itertools.islice(left, size)):
        yield piece
