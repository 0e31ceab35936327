"""No text of a model's folder makes sdort open a file outside of it, whatever the text is in; and no link does."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.opened import watched
from support.tiny_pipeline import Tiny

from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import measure_pipeline
from sdort.checkpoints.configs import write_json
from sdort.engines.original import as_exported, checkpoint_of
from sdort.engines.torch import TorchEngine
from sdort.errors import BadModelError, SdortError
from sdort.generation.requests.tokenizers import load_tokenizer
from sdort.inspection.command import inspect
from sdort.integrations.diffusers.assembled_pipeline import _tokenizer as diffusers_tokenizer
from sdort.integrations.diffusers.assembled_pipeline import load_pipeline
from sdort.optimizer.command import optimize
from sdort.pipelines.folder import open_folder
from sdort.pipelines.manifest import write_listed_files
from sdort.pipelines.origin import origin_mark
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.command_line import VerifyOptions
from sdort.verification.pipeline_comparison import verify_pipeline
from sdort.workload.cases import WHOLE_PIPELINE

TEXT = ("text_encoder",)
CONSTRUCTOR = ("vocab", "merges", "gguf_file", "vocab_file", "merges_file", "tokenizer_file", "tokenizer_object")
"""Parameters of transformers' tokenizers: what a config says of them reaches their constructor."""
LISTS = ("init_inputs", "fast_tokenizer_files")
"""Its first parameters, and files that take the place of ``tokenizer.json``."""


def verified(folder: Path, check: bool) -> None:
    options = RuntimeOptions("cpu", check=check)
    verify_pipeline(folder, VerifyOptions(runtime=options, components=TEXT, inputs="random", images=False))


def measured(folder: Path, check: bool) -> None:
    options = RuntimeOptions("cpu", check=check)
    measure_pipeline(folder, BenchOptions(runtime=options, components=TEXT, warmup=0, repeat=1))


def referred(folder: Path, check: bool) -> None:
    with checkpoint_of(folder):
        pass


def adapted(folder: Path, check: bool) -> None:
    with as_exported(folder, folder.parent / "checkpoint"):
        pass


def optimized(folder: Path, check: bool) -> None:
    optimize(folder, folder.parent / "out", provider="cpu", check=check, components=TEXT)


def loaded(folder: Path, check: bool) -> None:
    TorchEngine(folder, CPU, "float32").pipeline(WHOLE_PIPELINE)


def assembled(folder: Path, check: bool) -> None:
    load_pipeline(folder, provider="cpu", custom_ops="off", check=check)


Reader = Callable[[Path, bool], Any]

CONFIGS: tuple[Reader, ...] = (lambda folder, _: open_folder(folder), verified)
TOKENIZER: tuple[Reader, ...] = (
    lambda folder, _: load_tokenizer(folder / "tokenizer"),
    lambda folder, _: diffusers_tokenizer(folder / "tokenizer"),
)
MANIFEST: tuple[Reader, ...] = (referred, adapted)
COMMANDS = (verified, measured, optimized, assembled, lambda folder, _: inspect(folder))

BAKED = [{"name": "style", "word": "style", "scale": 1.0, "path": "style.safetensors", "sha256": "0" * 64}]


@pytest.fixture(scope="module")
def place(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``checkpoint``, ``model`` made of it and ``fast`` of that; in ``secret`` another one of each."""
    place = tmp_path_factory.mktemp("foreign")
    for root, text in ((place, "0.30.0"), (place / "secret", "0.30.1")):
        checkpoint, model = root / "checkpoint", root / "model"
        shutil.copytree(tiny.diffusers, checkpoint)
        shutil.copytree(tiny.onnx, model)
        index = json.loads((checkpoint / "model_index.json").read_text())
        for folder in (checkpoint, model):
            write_json(folder / "model_index.json", {**index, "_diffusers_version": text})
        write_listed_files(model, {"source": "checkpoint", "origin": origin_mark(checkpoint)}, {})
        optimize(model, root / "fast", provider="cpu")
    return place


@pytest.fixture
def given(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to change: ``model``, ``fast`` and ``checkpoint`` beside the ``secret`` ones."""
    monkeypatch.chdir(place)
    given = place / "given"
    shutil.rmtree(given, ignore_errors=True)
    for name in ("checkpoint", "model", "fast"):
        shutil.copytree(place / name, given / name)
    return given


KNOWN_BY = ("sdort.json", "model_index.json")
"""The files that are read where a manifest says that an original lies, to compare their hash."""


def opened(place: Path, folder: Path, readers: Sequence[Reader], checks: Sequence[bool] = (False,)) -> set[str]:
    """The files of ``secret`` that ``readers`` open."""
    secret = place / "secret"
    with watched([secret, *(path for path in secret.rglob("*") if path.is_dir())]) as files:
        for reader in readers:
            for check in checks:
                with suppress(SdortError):
                    reader(folder, check)
                shutil.rmtree(folder.parent / "out", ignore_errors=True)
    return set(files)


def test_what_is_opened_is_seen(place: Path, given: Path) -> None:
    """Without which nothing here could fail."""
    for file in ("model_index.json", "tokenizer/vocab.json"):
        secret = place / "secret" / "checkpoint" / file
        assert opened(place, given, [lambda *_, path=secret: path.read_bytes()]) == {str(secret)}


def with_texts(content: Any, text: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """Copies of JSON in which one text is another, each with where; of a list its first."""
    if isinstance(content, str):
        yield above, text
    elif isinstance(content, dict):
        for key, value in content.items():
            for where, changed in with_texts(value, text, f"{above}.{key}"):
                yield where, {**content, key: changed}
    elif isinstance(content, list) and content:
        for where, changed in with_texts(content[0], text, f"{above}[0]"):
            yield where, [changed, *content[1:]]


def texts(place: Path, name: str, file: str) -> list[str]:
    """The secret file and folders, absolutely, from the working folder, and from the file."""
    paths = [place / "secret" / name / file, place / "secret" / name, place / "secret" / "checkpoint"]
    beside = (place / "given" / name / file).parent
    return [str(path) for path in paths] + [os.path.relpath(path, start) for path in paths for start in (place, beside)]


def found(place: Path, path: Path, content: Any, names: Sequence[str], readers: Sequence[Reader]) -> list[str]:
    """Where a text in the JSON file ``path`` made ``readers`` open a secret file."""
    before, wrong = path.read_bytes(), []
    for text in names:
        for where, changed in with_texts(content, text):
            write_json(path, changed)
            files = opened(place, place / "given" / path.relative_to(place / "given").parts[0], readers)
            if files := {file for file in files if Path(file).name not in KNOWN_BY}:
                wrong.append(f"{where} = {text}: {sorted(files)}")
    path.write_bytes(before)
    return wrong


@pytest.mark.parametrize("name", ["model", "fast"])
def test_no_text_of_a_manifest_opens_another_model(name: str, place: Path, given: Path) -> None:
    path = given / name / "sdort.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]
    content = {**manifest, "adapters": BAKED, "words": BAKED}
    names = texts(place, name, "tokenizer/vocab.json")
    assert not found(place, path, content, names, MANIFEST)
    assert not found(place, path, content, [str(place / "secret" / "model")], (verified, measured))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_no_text_of_a_tokenizer_opens_another_file(file: str, place: Path, given: Path) -> None:
    """Each alone: one that is refused would hide the others."""
    files = ("vocab.json", "merges.txt", "tokenizer.4.json")
    (place / "secret" / "checkpoint" / "tokenizer" / files[-1]).write_text("{}")
    listed = [texts(place, "checkpoint", f"tokenizer/{each}") for each in files]
    names = [each[0] for each in listed]
    for folder, readers in (("fast", TOKENIZER), ("checkpoint", (loaded,))):
        path, config = (given / folder / "tokenizer" / each for each in (file, "tokenizer_config.json"))
        # Where there are such tokens, transformers reads no others.
        settings = json.loads(config.read_text())
        write_json(config, {key: value for key, value in settings.items() if key != "added_tokens_decoder"})
        content = json.loads(path.read_text()) if path.exists() else {}
        path.touch()
        assert not found(place, path, content, names[:1], readers)
        wrong = []
        for key, text in itertools.product((*CONSTRUCTOR, *LISTS), names):
            write_json(path, {**content, key: [text] if key in LISTS else text})
            if files_of := opened(place, given / folder, readers):
                wrong.append(f"{key} = {text}: {sorted(files_of)}")
        assert not wrong
        path.unlink()


def test_no_tokenizer_that_names_a_file_is_copied(given: Path) -> None:
    path = given / "model" / "tokenizer" / "tokenizer_config.json"
    write_json(path, {**json.loads(path.read_text()), "vocab": "vocab.json"})
    with pytest.raises(BadModelError, match=r"vocab is .*text would name a file to read"):
        optimized(given / "model", check=False)


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "unet/config.json",
        "vae_decoder/config.json",
    ],
)
def test_no_text_of_a_config_opens_another_file(file: str, place: Path, given: Path) -> None:
    path = given / "fast" / file
    for folder in (given, place / "secret"):
        if not (target := folder / "fast" / file).exists():  # the small model has no config of this part
            shutil.copy(folder / "checkpoint" / file, target)
    content = json.loads(path.read_text())
    assert not found(place, path, content, [str(place / "secret" / "fast" / file)], CONFIGS)


def test_no_link_opens_another_file(place: Path, given: Path) -> None:
    wrong = []
    for path in sorted((given / "fast").rglob("*")):
        secret, kept = place / "secret" / path.relative_to(given), given / "kept"
        path.rename(kept)
        path.symlink_to(secret)
        for reader in COMMANDS:
            if files := opened(place, given / "fast", [reader], (True, False)):
                wrong.append(f"{path.name}: {reader.__name__} opens {sorted(files)}")
        path.unlink()
        kept.rename(path)
    assert not wrong
