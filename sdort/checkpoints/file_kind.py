"""The kind of a file that somebody takes for a model, by its first bytes and its header, and what to do with it.

The file is a download from a stranger: only a header of bounded size is read, and a pickle is never opened.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from sdort.checkpoints.lfs import MAGIC, pull_advice
from sdort.checkpoints.safetensors import read_header
from sdort.checkpoints.weight_names import (
    Architecture,
    Kind,
    recognise_tensors,
)
from sdort.errors import BadModelError
from sdort.families.known_families import FAMILIES
from sdort.files.input_file import open_input

_TRANSFORMERS = [each.title for each in FAMILIES.values() if each.denoiser.layers]
EXPORTED = (
    f"sdort exports Stable Diffusion 1.x, 2.x (inpainting too) and XL, {', '.join(_TRANSFORMERS[:-1])} and "
    f"{_TRANSFORMERS[-1]}, as diffusers folders and as single files."
)
"""Advice for models of other kinds."""

_UNFINISHED = (".crdownload", ".part", ".partial", ".download", ".aria2", ".incomplete", ".tmp")
_ENGINES = (".engine", ".plan", ".trt")
_PICKLES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
_ARCHIVES = ((0, b"PK\x03\x04"), (0, b"\x1f\x8b"), (0, b"7z\xbc\xaf"), (0, b"Rar!"), (0, b"\xfd7zXZ"), (257, b"ustar"))
"""Offset and magic bytes."""
_HEAD = 1024
"""Bytes at the beginning of a file that are looked at: a tar archive's magic stands at 257."""


@dataclass(frozen=True)
class FileKind:
    """A file.

    Attributes:
        what: it in words, with an article: ``a single-file SDXL checkpoint (inpainting)``.
        advice: what to do with it; commands stand on lines of their own, indented by four spaces.
        architecture: of a safetensors file, what its tensors are.
    """

    kind: Kind
    what: str
    advice: str
    architecture: Architecture | None = None


def recognise_file(path: Path) -> FileKind:
    """The kind of the file at ``path``.

    Raises:
        BadModelError: it cannot be read, is a pipe or a device, or is a broken safetensors file.
    """
    try:
        with open_input(path) as file:
            size, head = os.fstat(file.fileno()).st_size, file.read(_HEAD)
    except OSError as error:
        raise BadModelError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix.lower() in _UNFINISHED:
        return FileKind(Kind.UNFINISHED, "an unfinished download", "Wait until it is complete, or download it again.")
    if size == 0:
        return FileKind(Kind.EMPTY, "an empty file", "Copy or download it again.")
    return _by_magic(path, head) or _by_name(path)


def _by_magic(path: Path, head: bytes) -> FileKind | None:
    if head.startswith(MAGIC):
        return FileKind(Kind.POINTER, "a git-lfs pointer", pull_advice(path))
    if head.startswith(b"GGUF"):
        advice = f"sdort reads no GGUF: get the model as safetensors, fp8 too. {EXPORTED}"
        return FileKind(Kind.GGUF, "a GGUF file", advice)
    if re.match(rb"\s*<(!doctype|html)", head, re.IGNORECASE):
        advice = "The site sent it in place of the model, as for a download without login. Download it again."
        return FileKind(Kind.WEB_PAGE, "a web page", advice)
    if _is_torch_archive(head) or (head[:1] == b"\x80" and path.suffix.lower() in _PICKLES):
        return _pickle(path)
    if any(head[offset:].startswith(magic) for offset, magic in _ARCHIVES):
        advice = "Unpack it, and give the folder with model_index.json."
        return FileKind(Kind.ARCHIVE, "an archive", advice)
    return None


def _by_name(path: Path) -> FileKind:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _tensors(path)
    if suffix == ".onnx":
        advice = f"It needs no export. The next step:\n    sdort optimize {_quoted(path)} OUT"
        return FileKind(Kind.ONNX, "an ONNX graph", advice)
    if suffix in _ENGINES:
        advice = "It runs on one kind of GPU with one version of TensorRT. Get the model that it was made from."
        return FileKind(Kind.ENGINE, "a TensorRT engine", advice)
    if suffix in _PICKLES:
        return _pickle(path)
    return FileKind(Kind.UNKNOWN, "a file of a kind that sdort does not know", f"Is it the right one? {EXPORTED}")


def _is_torch_archive(head: bytes) -> bool:
    """Whether it is torch's zip format: the first entry is ``NAME/data.pkl``, or what torch writes before it."""
    length = int.from_bytes(head[26:28], "little")
    first = head[30 : 30 + length]
    return head.startswith(b"PK\x03\x04") and first.endswith((b"/data.pkl", b"/.format_version", b"/byteorder"))


def _pickle(path: Path) -> FileKind:
    return FileKind(Kind.PICKLE, "a pickle of PyTorch", _of_pickle(path))


def _of_pickle(path: Path, then: str | None = None) -> str:
    """Advice for a pickle; ``then`` is the command that takes the file that was made of it."""
    return (
        "A pickle may run code when it is read. Get the same model as .safetensors, or convert it, which torch does by "
        f"reading the tensors alone (sdort export --allow-pickle does the same):\n{convert_commands(path, then)}"
    )


def _tensors(path: Path) -> FileKind:
    shapes = read_header(path).shapes
    found = recognise_tensors(shapes)
    if found.kind is Kind.UNKNOWN:
        names = ", ".join([*sorted(shapes)[:3], *["..."][: len(shapes) > 3]])
        number = "1 tensor" if len(shapes) == 1 else f"{len(shapes)} tensors"
        what = f"a safetensors file of {number} that sdort does not know ({names})"
        what = what if shapes else "a safetensors file without tensors"
        return FileKind(found.kind, what, EXPORTED, found)
    return FileKind(found.kind, _describe(found), _advice(path, found), found)


def _describe(found: Architecture) -> str:
    """``a single-file SDXL checkpoint (inpainting), without a VAE``."""
    name = f"{found.family} {found.kind.value}" if found.family else found.kind.value
    if found.kind is Kind.CHECKPOINT:
        name = f"single-file {name}"
    if found.kind is Kind.TRANSFORMER and found.family:
        name = f"{found.family} model"
    variant = f" ({found.variant})" if found.variant else ""
    lacks = f", without a {' and a '.join(found.lacks)}" if found.kind is Kind.CHECKPOINT and found.lacks else ""
    article = "an" if re.match(r"[AEIOaeio]|S(?![a-z])|LTX|un?[cp]|x\d", name) else "a"  # an SDXL, an LTX, an x4
    return f"{article} {name}{variant}{lacks}"


def drawing_advice(path: Path, found: FileKind) -> str:
    """Advice for a file that is given to be drawn with, and is not for that."""
    match found.kind:
        case Kind.PICKLE:
            return _of_pickle(path, f"sdort run {_quoted(path.with_suffix('.safetensors'))} --prompt ...")
        case Kind.LORA | Kind.LYCORIS:
            return f"It changes a model. Draw with both:\n    sdort run MODEL --lora {_quoted(path)}"
        case Kind.CONTROLNET:
            return f"It steers a model. Draw with both:\n    sdort run MODEL --control {_quoted(path)}:IMAGE"
    return found.advice


def _advice(path: Path, found: Architecture) -> str:
    match found.kind:
        case Kind.CHECKPOINT:
            return f"Export it first:\n    sdort export {_quoted(path)} OUT"
        case Kind.CONTROLNET:
            return f"Export it, and its model with --control:\n    sdort export {_quoted(path)} CONTROL"
        case Kind.T2I_ADAPTER:
            return "sdort exports T2I-Adapters as diffusers folders."
        case Kind.LORA | Kind.LYCORIS:
            return (
                f"It changes a pipeline. Export the two together:\n    sdort export PIPELINE OUT --lora {_quoted(path)}"
            )
        case Kind.IP_ADAPTER:
            command = f"sdort export PIPELINE OUT --ip-adapter {_quoted(path)}"
            return f"It lets a pipeline take images. Export the two together:\n    {command}"
        case Kind.VAE:
            return f"It takes the place of a model's own:\n    sdort export MODEL OUT --vae {_quoted(path)}"
        case Kind.UNET:
            return f"Export it, with the text encoders of a folder:\n    sdort export {_quoted(path)} OUT --config DIR"
        case Kind.DENOISER:
            options = "--text-encoder NAME=FILE --vae FILE"
            return f"Export it, with text encoders and a VAE:\n    sdort export {_quoted(path)} OUT {options}"
        case Kind.TEXT_ENCODER:
            return "It is one component. Export the pipeline that it belongs to, the folder with model_index.json."
        case Kind.EMBEDDING:
            command = f"sdort export PIPELINE OUT --embedding {_quoted(path)}"
            return f"It adds a word to prompts. Export it with the pipeline that it is for:\n    {command}"
        case Kind.UPSCALER:
            return f"It makes images larger, without an export:\n    sdort upscale IMAGE --model {_quoted(path)}"
        case Kind.TRANSFORMER:
            return EXPORTED
    return f"sdort does not export this kind. {EXPORTED}"


def convert_commands(path: Path, then: str | None = None) -> str:
    """The commands that make a safetensors file of a pickled checkpoint, without running its code, and export it.

    Args:
        then: another last command.
    """
    file = path.with_suffix(".safetensors")
    steps = (
        "import torch",
        "from safetensors.torch import save_file",
        f"d = torch.load({str(path)!r}, map_location='cpu', weights_only=True)",
        "d = d.get('state_dict', d)",
        f"save_file({{k: v.clone() for k, v in d.items() if hasattr(v, 'clone')}}, {str(file)!r})",
    )
    return f"{_python('; '.join(steps))}\n    {then or f'sdort export {_quoted(file)} OUT'}"


def _python(code: str) -> str:
    # In double quotes where the shell changes nothing in them: the code has single ones.
    return f"    python -c {shlex.quote(code)}" if re.search(r'["$`\\!]', code) else f'    python -c "{code}"'


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
