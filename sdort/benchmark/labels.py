"""Names of rows: what was measured, and what it was measured in, without what all rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from sdort.benchmark.rows import Row
from sdort.errors.plain_text import one_line
from sdort.options.number_ranges import size_words
from sdort.workload.cases import WHOLE_PIPELINE


def dtype_text(dtype: str) -> str:
    """``fp16`` for ``float16``, ``bf16`` for ``bfloat16``."""
    return dtype.replace("bfloat", "bf").replace("float", "fp")


def case_label(row: Row, rows: Sequence[Row]) -> str:
    """``unet``, with the batch and the size where there are several: ``unet, batch 2``."""
    return ", ".join([row.component, *varying_case(row, rows)])


def varying_case(row: Row, rows: Sequence[Row]) -> list[str]:
    """Batch and size of a row, where ``rows`` have several."""
    batches = {other.batch_size for other in rows}
    sizes = {(other.height, other.width) for other in rows}
    batch = [f"batch {row.batch_size}"] if len(batches) > 1 else []
    return [*batch, *([size_words((row.height, row.width))] if len(sizes) > 1 else [])]


def contender_label(row: Row, rows: Sequence[Row]) -> str:
    """Name of a row's pipeline or engine, with as much as tells it from the others; the pipeline if it is alone."""
    return one_line(", ".join(_distinctions(row, rows) or [row.pipeline]))


def _distinctions(row: Row, rows: Sequence[Row]) -> list[str]:
    """Engine, pipeline, dtype and the model's hash, those that differ among the rows which are not told apart yet."""
    facts: tuple[Callable[[Row], str], ...] = (attrgetter("engine"), attrgetter("pipeline"), _dtype, _short_hash)
    words, others = [], list(rows)
    for fact in facts:
        if fact is _dtype:  # a pipeline may keep one component in fp32, which tells no pipelines apart
            others = [other for other in others if _case(other) == _case(row)]
        if len({fact(other) for other in others}) > 1:
            words.append(fact(row))
            others = [other for other in others if fact(other) == fact(row)]
    return words


def _dtype(row: Row) -> str:
    return dtype_text(row.dtype)


def _short_hash(row: Row) -> str:
    return row.model_hash[:8]


def _case(row: Row) -> tuple[str, int, int, int]:
    return row.component, row.batch_size, row.height, row.width


def bar_label(row: Row, rows: Sequence[Row]) -> str:
    """Label of a row's bar: its contender, and the batch and the size of images where there are several."""
    whole = [other for other in rows if other.component == WHOLE_PIPELINE] or rows
    return ", ".join([contender_label(row, rows), *varying_case(row, whole)])
