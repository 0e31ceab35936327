"""The verification of a pipeline: :func:`sdort.verify`, which ``sdort verify`` calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sdort.console import say
from sdort.engines.default_prompts import default_prompts
from sdort.errors import UsageError
from sdort.files.staging import check_output_file, write_atomically
from sdort.first_use.find_pipeline import pipeline_folder
from sdort.options.declared_options import made_of
from sdort.options.option_types import typed, with_options
from sdort.providers.runtime_options import ExecutionOptions, RuntimeOptions
from sdort.verification.command_line import VerifyOptions
from sdort.verification.image_comparison import read_prompts
from sdort.verification.outcome import Verification
from sdort.verification.pipeline_comparison import verify_pipeline
from sdort.verification.report.verification_page import verification_page
from sdort.verification.verify_options import ComparisonOptions, PageOptions, SemanticOptions, VerifyKeywords

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options(ComparisonOptions, ExecutionOptions, SemanticOptions, PageOptions)
@typed
def verify(candidate: str | Path, **options: Unpack[VerifyKeywords]) -> Verification:
    """Compare a pipeline, or one component, with what it was made from.

    Each component on random and on recorded inputs, against the un-optimized ONNX and against torch in fp32; then the
    images of the whole pipeline.

    Args:
        candidate: a folder of ONNX components, one ``.onnx`` file, or a checkpoint as for :func:`sdort.load`.
        options: with what and how it is compared, where and how the models run, and what is made of it.

    Returns:
        What was measured. A difference is not raised: see :attr:`Verification.passed` and
        :meth:`Verification.raise_if_failed`.

    Raises:
        UsageError: it is not known what to compare with, or a component does not exist.
        BadModelError: there is no pipeline.
        ProviderError: the provider does not load and may not be replaced.
        OutputError: the report cannot be written or exists; raised before anything runs.

    Example:
        >>> result = sdort.verify("fast", provider="cpu", components=["unet"])
        >>> result.passed
        True
    """
    if (options.get("semantic_prompts") or options.get("semantic_original")) and not options.get("semantic"):
        raise UsageError("--semantic-prompts and --semantic-original say how to judge: they want --semantic")
    asked, prompts = made_of(PageOptions, options), options.get("prompts")
    file = Path(prompts) if isinstance(prompts, str | Path) else None
    if asked.report:
        named = (candidate, options.get("against"), options.get("checkpoint"), file)
        check_output_file(asked.report, asked.overwrite, [Path(path) for path in named if path])
    runtime = made_of(RuntimeOptions, options, control_inputs=True)
    folder = pipeline_folder(candidate, runtime)
    texts = read_prompts(file) if file else prompts or default_prompts(folder)
    result = verify_pipeline(folder, made_of(VerifyOptions, options, runtime=runtime, texts=texts))
    if asked.report:
        write_atomically(asked.report, verification_page(result))
        say(f"wrote {asked.report}")
    return result
