"""The tokenizers of a pipeline, and what of its prompts has no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sdort.checkpoints.configs import check_processor
from sdort.checkpoints.tokenizer_files import TABLES, check_tokenizer
from sdort.console import say, warn
from sdort.errors import BadModelError, UsageError
from sdort.errors.plain_text import cut, library_reason, one_line
from sdort.families.family import PlainText, Roles
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS, named_files, network_texts
from sdort.generation.prompts.prompt_tokenizer import PromptTokenizer
from sdort.generation.requests.lora_tags import Network, read_networks
from sdort.generation.requests.request import Request
from sdort.pipelines.folder import PipelineFolder

_LONGEST = 4096
"""The most tokens of a prompt; CLIP has 77, its longer descendants 248 and more."""
_SHORTEST = 3
"""The fewest: a token between the first and the last."""


def load_tokenizer(folder: Path) -> PromptTokenizer:
    """The pipeline's CLIP tokenizer, from files of its own.

    Raises:
        BadModelError: ``folder`` has no tokenizer that loads, or its files do not belong together.
    """
    if not folder.is_dir():
        raise BadModelError(f"{folder} is missing", hint="Export the pipeline again: its tokenizer belongs to it.")
    check_tokenizer(folder)
    check_processor(folder, besides=TABLES)
    try:
        tokenizer = PromptTokenizer(folder)
    except Exception as error:  # broken vocabularies end in KeyError, json and tokenizers errors alike
        raise BadModelError(f"cannot read the tokenizer in {folder}: {library_reason(error)}") from error
    if not _SHORTEST <= tokenizer.length <= _LONGEST:
        raise BadModelError(
            f"the tokenizer in {folder} pads prompts to {tokenizer.length:.6g} tokens, not {_SHORTEST} to {_LONGEST}",
            hint="model_max_length in its tokenizer_config.json is the text encoder's max_position_embeddings: 77.",
        )
    return tokenizer


def load_plain_tokenizer(folder: Path, plain: PlainText, embeddings: int | None) -> PlainTokenizer:
    """The tokenizer of a text encoder that reads plain text.

    Args:
        plain: how the encoder reads prompts.
        embeddings: the number of tokens that it has embeddings for; None where nothing says it.

    Raises:
        BadModelError: ``folder`` has no tokenizer that loads, or one of another encoder.
    """
    check_processor(folder, besides=TABLES)
    try:
        tokenizer = PlainTokenizer(folder, plain)
    except BadModelError:
        raise
    except Exception as error:  # whatever the library says of a broken file
        raise BadModelError(f"cannot read the tokenizer in {folder}: {library_reason(error)}") from error
    if embeddings is not None and tokenizer.size > embeddings:
        raise BadModelError(
            f"the tokenizer in {folder} has {tokenizer.size} tokens, and its text encoder has embeddings for "
            f"{embeddings}",
            hint="They belong to different models; copy or download the checkpoint again.",
        )
    return tokenizer


def load_tokenizers(folder: PipelineFolder) -> dict[str, PromptTokenizer | PlainTokenizer]:
    """The tokenizer of each text encoder.

    Raises:
        BadModelError: as :func:`load_tokenizer` and :func:`load_plain_tokenizer`.
    """
    return {
        each.component: load_plain_tokenizer(
            folder.path / each.tokenizer, each.plain, folder.config(each.component).get("vocab_size")
        )
        if each.plain
        else load_tokenizer(folder.path / each.tokenizer)
        for each in folder.family.encoders
    }


def remark_on_prompts(requests: Sequence[Request], guided: bool) -> None:
    """Say what of the prompts has no effect: empty ones, negative ones without guidance, and files that are not given.

    Args:
        guided: whether there is classifier-free guidance.
    """
    if not all(request.prompt.strip() for request in requests):
        say("the prompt is empty: the image shows what the model makes up")
    negative = [text for request in requests for text in (request.negative_prompt, request.negative_prompt_2) if text]
    if negative and not guided:
        least = 1 - requests[0].guidance_base
        off = requests[0].guidance_scale <= least and not requests[0].distilled
        warn(
            "the negative prompt has no effect: "
            + (f"--guidance-scale {least:g} and less turn guidance off" if off else "this model takes none")
        )


def remark_on_scale(request: Request, inputs: Collection[str], roles: Roles) -> None:
    """Say that the guidance scale has no effect, where a model was distilled without one.

    Args:
        inputs: the names of its denoiser's inputs.
    """
    if request.distilled and roles.guidance not in inputs and request.guidance_scale > 1:
        warn(f"--guidance-scale {request.guidance_scale:g} has no effect: this model takes none")


def remark_on_files(tokenizer: PromptTokenizer | PlainTokenizer, requests: Sequence[Request]) -> None:
    """Say which LoRAs and embeddings the prompts ask for that the pipeline does not have."""
    files = [named_files(text, request.prompt_weighting) for request in requests for text in request.texts]
    choices = [choice for request in requests for choice in request.lora]
    given = {choice.path.stem.lower(): choice.scale for choice in choices}
    applied = {(choice.path.stem.casefold(), choice.of_text, choice.scale) for choice in choices}
    of_prompts = {network for request in requests for network in network_texts(request.prompt)}
    for text in dict.fromkeys(network for each in files for network in each.networks):
        network = read_networks(text)[0]
        if not (network.is_adapter and (network.stem, *_scales(network)) in applied):
            _remark_on_network(text, given, _why_not(requests[0], text in of_prompts))
    names = dict.fromkeys(name for each in files for name in each.embeddings)
    # Plain text names no embeddings.
    known = {} if isinstance(tokenizer, PlainTokenizer) or not names else tokenizer.added
    for name in names:
        if name not in known:
            warn(
                f"the prompt asks for the embedding {cut(one_line(name))}, which the model does not have. Put its file "
                "into the model:\n    sdort export MODEL OUT --embedding FILE.safetensors"
            )


def _scales(network: Network) -> tuple[float, float] | tuple[None, None]:
    try:
        return network.both
    except UsageError:
        return None, None


def _why_not(request: Request, in_prompt: bool) -> str:
    """The reason why an adapter of a prompt that nobody gave is not applied."""
    if request.prompt_weighting != WEIGHTINGS[0]:
        return f"with --prompt-weighting {request.prompt_weighting} it is text"
    return "no --lora-folder is given" if in_prompt else "only --prompt asks for adapters"


def _remark_on_network(network: str, given: Mapping[str, float], why: str) -> None:
    """Say what becomes of ``<lora:name:0.8>``.

    Args:
        given: the names of the adapters that there are, in lower case, and their scales.
        why: the reason why it is not applied where it is none of them.
    """
    kind, name, *scales = (part.strip() for part in network.strip("<>").split(":"))
    asked, scale = f"the prompt asks for {cut(one_line(network))}", one_line(scales[0]) if scales else "1"
    if kind.startswith("hypernet"):
        warn(f"{asked}, which is not applied: sdort has no hypernetworks")
    elif name.lower() not in given:
        file = f"{one_line(name)}.safetensors{f':{scale}' if scales else ''}"
        warn(f"{asked}, which is not applied: {why}. Give the file:\n    --lora {cut(file)}")
    elif not _is_number(scale, given[name.lower()]):
        warn(f"{asked}, whose scale is that of --lora: {given[name.lower()]:g}")


def _is_number(text: str, number: float) -> bool:
    try:
        return float(text) == number
    except ValueError:
        return False
