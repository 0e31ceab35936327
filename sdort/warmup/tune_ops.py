"""The fastest variant of each kernel, measured on this machine's GPU and kept for every later run.

The library does it: with ``SDORT_OPS_TUNE=1`` a kernel that meets a new shape times its variants on the real buffers
and adds a line to the table (custom_ops/driver/tuning.h). Here every component runs once per size and batch size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sdort.console import progress
from sdort.errors import ProviderError
from sdort.machine.process_settings import variables
from sdort.operator_library.command import OpsTuning
from sdort.operator_library.library import ON, resolve, tuning_table
from sdort.operator_library.tuning_table import read_table
from sdort.options.number_ranges import BATCH_SIZE, check_sizes
from sdort.options.option_types import typed
from sdort.providers import AUTO

_ONE_VARIANT = "On the CPU there is one variant of each kernel."


@typed
def tune_ops(
    pipeline: str | Path,
    *,
    provider: str = AUTO,
    sizes: Sequence[tuple[int, int]] = (),
    batch_sizes: Sequence[int] = (1,),
    device_id: int = 0,
) -> OpsTuning:
    """Find the fastest variant of every kernel for a pipeline's shapes, on this machine's GPU.

    Every component runs once at each size and batch size, with tuning on. What was measured before is not measured
    again. Later runs use the table by themselves.

    Args:
        pipeline: a folder of ONNX components.
        provider: ``rocm``, ``cuda``, or ``auto``.
        sizes: heights and widths of images in pixels; the model's own if empty.
        batch_sizes: samples of a component.
        device_id: the number of the GPU.

    Returns:
        The table's path and the lines that were added.

    Raises:
        ProviderError: no GPU provider loads here, or the library is not built or has no code for the GPU.
        BadModelError: there is no pipeline at ``pipeline``.
        UsageError: a size or a batch that no pipeline can do.
    """
    from sdort.engines.onnx import OnnxEngine
    from sdort.providers.runtime_options import RuntimeOptions
    from sdort.runtime.probe import choose_provider
    from sdort.workload.cases import cases

    batch_sizes, sizes = BATCH_SIZE.check_all(batch_sizes), check_sizes(sizes)
    options = RuntimeOptions(provider, fallback=False, device_id=device_id, custom_ops=ON)
    resolve(ON)
    chosen, _ = choose_provider(options, hint=_ONE_VARIANT)
    if not chosen.on_gpu:
        raise ProviderError("there is no GPU to tune for here", hint=_ONE_VARIANT)
    before = set(read_table())
    with _tuning_on():
        engine = OnnxEngine(Path(pipeline), chosen, options)
        planned = cases(engine.components(), batch_sizes, sizes or (engine.default_size(),))
        with progress("tuning", total=len(planned)) as advance:
            for case in planned:
                if case.component != "pipeline":
                    engine.prepare(case, 1, None)()
                advance(1)
        engine.close()
    return OpsTuning(tuning_table(), [entry for entry in read_table() if entry not in before])


@contextmanager
def _tuning_on() -> Iterator[None]:
    table = tuning_table()
    table.parent.mkdir(parents=True, exist_ok=True)
    with variables({"SDORT_OPS_TUNE": "1", "SDORT_OPS_TUNING": str(table)}):
        yield
