"""Names of rows: what was measured, and what it was measured in, without what all rows share."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.benchmark.rows import Row
from sdort.workload.cases import WHOLE_PIPELINE


def dtype_text(dtype: str) -> str:
    """``fp16`` for ``float16``, ``bf16`` for ``bfloat16``."""
    return dtype.replace("bfloat", "bf").replace("float", "fp")


def case_label(row: Row, rows: Sequence[Row]) -> str:
    """``unet``, with the batch and the size where there are several: ``unet, batch 2``."""
    return ", ".join([row.component, *_varying_case(row, rows)])


def _varying_case(row: Row, rows: Sequence[Row]) -> list[str]:
    batches = {other.batch_size for other in rows}
    sizes = {(other.height, other.width) for other in rows}
    batch = [f"batch {row.batch_size}"] if len(batches) > 1 else []
    return [*batch, *([f"{row.height}x{row.width}"] if len(sizes) > 1 else [])]


def contender_label(row: Row, rows: Sequence[Row]) -> str:
    """Those of pipeline, engine and dtype that tell a row's contender from the others; the pipeline if there is one."""
    return ", ".join(_varying_contender(row, rows) or [row.pipeline])


def _varying_contender(row: Row, rows: Sequence[Row]) -> list[str]:
    values = {
        row.pipeline: {other.pipeline for other in rows},
        row.engine: {other.engine for other in rows},
        dtype_text(row.dtype): {other.dtype for other in rows},
    }
    varying = [
        word for word, words in values.items() if len(words) > 1 and not (word[:2] == "fp" and word in row.pipeline)
    ]
    # Two folders of one name, such as a/fast and b/fast: the models' hashes tell them apart.
    if len({other.model_hash for other in rows if other.pipeline == row.pipeline and other.engine == row.engine}) > 1:
        varying.append(row.model_hash[:8])
    return varying


def bar_label(row: Row, rows: Sequence[Row]) -> str:
    """Label of a row's bar: its contender and its batch, and the size where the images have several."""
    whole = [other for other in rows if other.component == WHOLE_PIPELINE]
    several = len({(other.height, other.width) for other in whole}) > 1
    size = [f"{row.height}x{row.width}"] if several else []
    return ", ".join([*_varying_contender(row, rows), f"batch {row.batch_size}", *size])
