"""One row of the result: a component or the pipeline at one batch and size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sdort.benchmark.conditions import Disturbance
from sdort.errors import ParityError
from sdort.options.number_ranges import size_words

if TYPE_CHECKING:
    from sdort.engines.engine import ImageStages
    from sdort.inspection.profile import Placement


@dataclass
class Row:
    """A component or the pipeline at one batch and size. Times are None when the check failed: ``status`` says why.

    Memory is growth in MiB over what was in use before the model was opened, at the highest point of the first call
    (with loading) and of the later warm-up calls. ``error`` and ``mean_error`` are a component's largest and mean error
    relative to the standard deviation of the reference's output, ``psnr_db`` and ``lowest_psnr_db`` the median and the
    lowest of the pipeline's images. ``speedup`` is the baseline's time over this row's, with the bounds of its 95 %
    interval; ``low_ms`` and ``high_ms`` are those of ``median_ms``. Fewer than five calls have no interval.
    """

    pipeline: str
    """Name of the pipeline's folder."""
    engine: str
    """``onnxruntime``, ``torch`` or ``torch-compile``."""
    provider: str
    """The execution provider that ran; of torch the kind of device."""
    device: str
    """Name of the processor or GPU."""
    component: str
    """The component, or ``pipeline`` for text to image."""
    batch_size: int
    """Samples of a component, images of the pipeline."""
    height: int
    """Height of the image in pixels."""
    width: int
    """Width of the image in pixels."""
    steps: int | None
    """Denoising steps of the pipeline; None for a component."""
    dtype: str
    """Dtype of the weights: ``float32``, ``float16`` or ``bfloat16``."""
    model_hash: str
    """Hash of the model's files."""
    status: str = "ok"
    """``ok``, or why the row has no times."""
    checked_against: str = ""
    """The reference of the outputs; empty if there was none."""
    error: float | None = None
    """A component's largest error, over the standard deviation of the reference's output."""
    mean_error: float | None = None
    """A component's mean error, over the same."""
    psnr_db: float | None = None
    """Median PSNR of the pipeline's images, in dB."""
    lowest_psnr_db: float | None = None
    """The lowest PSNR of them, in dB."""
    load_s: float | None = None
    """Seconds of loading."""
    first_ms: float | None = None
    """Milliseconds of the first call."""
    prepare_ms: float | None = None
    """Milliseconds of what runs once before the steps, for a prompt and a list of timesteps: the median of as many
    calls. No other time has it; None where nothing runs before."""
    median_ms: float | None = None
    """Median of the timed calls, in milliseconds."""
    low_ms: float | None = None
    """Lower end of the 95 % confidence interval of ``median_ms``; None with fewer than five calls."""
    high_ms: float | None = None
    """Upper end of it."""
    mean_ms: float | None = None
    """Mean of the timed calls, in milliseconds."""
    p90_ms: float | None = None
    """The time that 90 % of the timed calls stayed within, in milliseconds."""
    min_ms: float | None = None
    """The shortest timed call, in milliseconds."""
    repeat: int | None = None
    """Number of timed calls."""
    warmup: int | None = None
    """Number of calls after the first that were not timed."""
    images_per_s: float | None = None
    """Images a second, of the pipeline."""
    host_first_mib: float | None = None
    """Growth of the process's memory in MiB during the first call, with loading."""
    host_later_mib: float | None = None
    """The same during the later warm-up calls."""
    device_first_mib: float | None = None
    """Growth of the GPU's memory in MiB during the first call, with loading."""
    device_later_mib: float | None = None
    """The same during the later warm-up calls."""
    speedup: float | None = None
    """The baseline's median time over this row's."""
    speedup_low: float | None = None
    """Lower end of its 95 % confidence interval."""
    speedup_high: float | None = None
    """Upper end of its 95 % confidence interval."""
    engine_settings: str = ""
    """How the engine ran, where its name does not say it: ``channels last, mode reduce-overhead``."""
    step: str = ""
    """Step of an ablation, whose table and CSV have a column for it."""
    measured_at: str = ""
    """Date and time with its offset from UTC, ISO 8601."""
    prompt: str = ""
    """The pipeline's prompt; components get random inputs."""
    stages: ImageStages | None = None
    """Median milliseconds of the pipeline's stages, where its engine tells; a CSV has no place for it."""
    disturbances: list[Disturbance] = field(default_factory=list)
    """Other work of the machine while the benchmark ran; a CSV has no place for it."""
    versions: dict[str, str] = field(default_factory=dict)
    """Package -> version."""
    times_ms: list[float] = field(default_factory=list)
    """Every timed call, in order; a CSV has no place for it."""
    placement: Placement | None = None
    """With ``--placement``; a CSV has no place for it."""
    compared: Compared | None = None
    """With ``--compare``; a CSV has no place for it."""

    @property
    def failed(self) -> bool:
        return self.status != "ok"

    def fail(self, reason: str) -> None:
        """Say why the row has no times, and drop those that it has."""
        self.status = reason
        self.load_s = self.first_ms = self.prepare_ms = self.median_ms = self.low_ms = self.high_ms = None
        self.mean_ms = self.p90_ms = self.min_ms = self.stages = None
        self.times_ms = []
        self.images_per_s = self.speedup = self.speedup_low = self.speedup_high = None

    @property
    def was_compared(self) -> bool:
        """Whether there was an output to compare its own with."""
        return self.error is not None or self.psnr_db is not None

    @property
    def ratio(self) -> tuple[float, float | None, float | None] | None:
        """Its time over the baseline's and the bounds of the 95 % interval; None without a baseline."""
        if self.speedup is None:
            return None
        low, high = self.speedup_high, self.speedup_low
        return 1 / self.speedup, low and 1 / low, high and 1 / high

    @property
    def output(self) -> str:
        """Verdict of the check in a word."""
        return "failed" if self.failed else "ok" if self.was_compared else "no reference"

    def parity(self) -> str:
        """Result of the check in a few words."""
        if self.failed:
            return f"FAILED: {self.status}"
        if self.psnr_db is not None:
            return f"{self.similarity()} vs {self.checked_against}"
        if self.error is not None:
            return f"{self.error:.1e} vs {self.checked_against}"
        return self.checked_against

    def similarity(self) -> str:
        """``61.6 dB (lowest 41.2)`` of a pipeline's images."""
        median, lowest = self.psnr_db, self.lowest_psnr_db
        text = "equal" if median is None or math.isinf(median) else f"{median:.1f} dB"
        return text if lowest is None or lowest == median else f"{text} (lowest {lowest:.1f})"


@dataclass(frozen=True)
class Compared:
    """A row against the saved one. ``ratio`` is the median time now over then; ``low`` and ``high`` hold it with 95 %.

    The verdict is ``slower`` or ``faster`` only where the whole interval is beyond the margin; ``reason`` says what
    else there is to know.
    """

    verdict: str
    """``slower`` or ``faster`` where the whole interval is beyond the margin, else ``same``, or ``not comparable``."""
    ratio: float | None = None
    """The median time now over the saved one."""
    low: float | None = None
    """Lower end of the ratio's 95 % confidence interval."""
    high: float | None = None
    """Upper end of the ratio's 95 % confidence interval."""
    before_ms: float | None = None
    """The saved median time, in milliseconds."""
    reason: str = ""
    """Remarks; empty if there are none."""


MOST_LISTED = 12
"""Failures that a message names one by one; the result has them all."""


def refuse_failed(rows: Sequence[Row]) -> None:
    """Raise if a row has no times.

    Raises:
        ParityError: which rows, and why.
    """
    failed = failures(rows)
    if failed:
        unlike = any(row.failed and (row.error is not None or row.psnr_db is not None) for row in rows)
        raise ParityError(
            f"{len(failed)} of {len(rows)} rows were not timed, because they failed:{listed(failed)}",
            hint="sdort verify PIPELINE --bisect tells where and why." if unlike else None,
        )


def failures(rows: Sequence[Row]) -> list[str]:
    """Each row that failed its check, in words: which one, and by how much."""
    return [
        f"{row.pipeline}, {row.component}, batch {row.batch_size}, {size_words((row.height, row.width))}, {row.dtype}: "
        f"{row.status}"
        for row in rows
        if row.failed
    ]


def listed(problems: Sequence[str]) -> str:
    """The first problems for a message, one a line."""
    left = len(problems) - MOST_LISTED
    lines = [*problems[:MOST_LISTED], *([f"and {left} more"] if left > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)
