"""Every option arrives, and where it belongs: from the command at its function, from the function at the options."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import sdort
from sdort.cli import COMMANDS, cli
from sdort.cli.number_types import Duration, NumberList, Real, SizeList, Whole
from sdort.errors import UsageError
from sdort.optimizer.provider_choice import best_here
from sdort.options.number_ranges import flag_of
from sdort.verification.command_line import VerifyOptions

RECORDED = 77
"""The exit code of a command whose function was called."""

ARGUMENTS = {
    "export": ["model", "out"], "optimize": ["model", "out"], "run": ["model", "--prompt", "a cat"],
    "verify": ["model"], "bench": ["model"], "inspect": ["model"], "warm": ["model"], "integrate comfyui": ["place"],
    "tuning export": ["file"], "tuning import": ["taken"], "ops tune": ["model"], "add": ["model"],
    "upscale": ["taken", "--model", "taken"],
}  # fmt: skip
"""Command -> what it cannot do without."""

FUNCTIONS = {
    "export": "export", "optimize": "optimize", "run": "run", "verify": "verify", "bench": "bench", "warm": "warm",
    "inspect": "inspect", "integrate comfyui": "write_comfyui_nodes", "tuning list": "list_tuning",
    "tuning export": "export_tuning", "tuning import": "import_tuning", "tuning verify": "verify_tuning",
    "tuning prune": "prune_tuning", "cache list": "list_cache", "cache clean": "clean_cache", "ops build": "build_ops",
    "ops tune": "tune_ops", "doctor": "diagnose", "fusions": "list_fusions", "add": "add_model",
    "cache limit": "cache_limit", "upscale": "upscale",
}  # fmt: skip
PLANS = {"export": "plan_export", "optimize": "plan_optimize", "run": "plan_run", "warm": "plan_warm"}
"""What ``--dry-run`` calls."""

WORDS: dict[str, tuple[list[str], Any]] = {
    "engines": (["--engines", "torch,onnxruntime"], ("torch", "onnxruntime")),
    "provider_options": (["--provider-option", "a=b", "--provider-option", "c=d"], {"a": "b", "c": "d"}),
    "ep_libraries": (["--ep-library", "openvino=a.so"], {"openvino": "a.so"}),
    "expect": (["--expect", "Conv=3"], {"Conv": 3}),
    "explain": (["--explain", "attention"], True),
    "static": (["--static", "2x64x96"], ...),
    "seed": (["--seed", "7"], ...),
    "custom_ops": (["--custom-ops", "off"], "off"),
    "sizes": (["--size", "64x96,32x48"], ((96, 64), (48, 32))),
    "size": (["--size", "96x64"], ...),
    "batch_sizes": (["--batch-size", "3,5"], (3, 5)),
    "names": (["attention"], ("attention",)),
    "kinds": (["traces", "ops"], ("traces", "ops")),
    "image_encoder": (["--image-encoder", "taken"], ...),
    "text_encoders": (["--text-encoder", "text_encoder=taken"], {"text_encoder": "taken"}),
    "tokenizers": (["--tokenizer", "tokenizer=folder"], {"tokenizer": "folder"}),
    "limit": (["20kB"], 20_000),
    "name": (["word"], "word"),
}
"""Option -> words of the command line, and what arrives; ``...`` where that is of a kind of its own."""

NOT_FORWARDED = {
    "as_json", "verbose", "quiet", "help_all", "dry_run", "signature", "remove", "show_only", "diff", "exit_code",
    "placement", "model", "images", "out", "pipeline", "prompt", "source", "candidate", "path", "paths", "file",
}  # fmt: skip
NOT_OF = {("doctor", name) for name in ("measure", "full", "output", "devices")}
NOT_OF |= {("inspect", name) for name in ("device_id", "device_kind", "ep_libraries")}
"""Command and options of its other function (checkup/test_command.py, runtime/test_openvino.py)."""
NEEDED = {
    "certificate": ["--sign", "taken"],
    "io_fp16": ["--fp16"],
    "group": ["--weights", "int8"],
    "fp16_plan": ["--fp16"],
}
"""Option -> the words without which it means nothing."""
NOT_PLANNED = {"sdort_ops", "check", "expect", "allow_misses", "explain", "report", "sign", "certificate"}
"""Options of ``sdort optimize`` and ``export`` of which a plan does not depend."""


def leaf(name: str) -> click.Command:
    first, _, second = name.partition(" ")
    assert first in COMMANDS
    command: Any = cli.get_command(click.Context(cli), first)
    found: click.Command = command.commands[second] if second else command
    return found


def words_of(option: click.Parameter) -> tuple[list[str], Any]:
    """Words that set an option to something else than its default, and the value that they mean."""
    kind, [name, *_] = option.type, option.opts
    if option.name in WORDS and option.opts != ["--bundle"]:
        return WORDS[option.name]
    if isinstance(option, click.Option) and option.is_flag:
        if option.default is True and option.secondary_opts:
            return option.secondary_opts[:1], False
        return [name], option.name not in ("split", "check", "trials")
    if isinstance(kind, click.Choice):
        choice = next(each for each in reversed(kind.choices) if each != option.default)
        return [name, choice], (choice,) if option.multiple else choice
    if isinstance(kind, Whole):
        number = {"opset": 20, "height": 96, "width": 96, "clip_skip": 2, "tile": 96, "group": 64}.get(
            option.name or "", 9
        )
        return [name, str(number)], number
    if isinstance(kind, Real):
        return [name, "0.5" if option.name != "hires" else "1.5"], 0.5 if option.name != "hires" else 1.5
    if isinstance(kind, Duration):
        return [name, "90m"], 5400.0
    assert not isinstance(kind, NumberList | SizeList)
    text = ("taken" if kind.file_okay else "folder") if isinstance(kind, click.Path) else "word"
    return [name, text], ...


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Calls a command, and says what its function was called with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    (tmp_path / "folder").mkdir()

    def call(name: str, function: str, *words: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def record(*positional: Any, **named: Any) -> None:
            found.append({**{str(index): value for index, value in enumerate(positional)}, **named})
            raise click.exceptions.Exit(RECORDED)

        module = sys.modules[getattr(sdort, function).__module__]
        with monkeypatch.context() as patch:
            patch.setattr(module, function, record)
            result = CliRunner().invoke(cli, [*name.split(), *ARGUMENTS.get(name, []), *words])
        assert result.exit_code == RECORDED, result.output
        return found[0]

    return call


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {name: after.get(name) for name in {**before, **after} if before.get(name) != after.get(name)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_option_of_the_command_line_arrives_under_its_name_alone(
    name: str, called: Callable[..., dict[str, Any]]
) -> None:
    command_line = {"command_line", "on_measured"}
    plain: dict[tuple[str, ...], dict[str, Any]] = {}
    for option in leaf(name).params:
        if option.name in NOT_FORWARDED or (name, option.name) in NOT_OF:
            continue
        words, value = words_of(option)
        needed = tuple(NEEDED.get(option.name or "", ()))
        if needed not in plain:
            plain[needed] = called(name, FUNCTIONS[name], *needed)
        changed = difference(plain[needed], called(name, FUNCTIONS[name], *needed, *words))
        assert len(changed.keys() - command_line) == 1, (words, changed)
        [(where, arrived)] = [each for each in changed.items() if each[0] not in command_line]
        assert where in (option.name, "0"), (words, changed)
        if value is not ...:
            assert arrived == value or list(arrived) == list(value), (words, arrived)
        else:
            assert words[-1] in str(arrived) or arrived in (7, "2x64x96"), (words, arrived)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_gets_what_is_asked_for_too(name: str, called: Callable[..., dict[str, Any]]) -> None:
    plain: dict[tuple[str, ...], dict[str, Any]] = {}
    for option in leaf(name).params:
        if option.name in NOT_FORWARDED | NOT_PLANNED:
            continue
        words = ("--dry-run", *NEEDED.get(option.name or "", []))
        if words not in plain:
            plain[words] = called(name, PLANS[name], *words)
        changed = difference(plain[words], called(name, PLANS[name], *words, *words_of(option)[0]))
        assert list(changed) == [option.name], words_of(option)


@pytest.mark.parametrize(
    ("words", "name", "function"),
    [
        (["--remove"], "integrate comfyui", "remove_comfyui_nodes"),
        (["--show"], "ops tune", "tuned_ops"),
        (["--diff", "other"], "inspect", "compare"),
        (["--placement", "--provider", "cpu"], "inspect", "placement"),
        (["--signature", "key.pem"], "verify", "verify_signature"),
        (["--measure", "--full", "--device-id", "3"], "doctor", "measure_machine"),
        (["--devices"], "doctor", "list_devices"),
    ],
)
def test_another_function_is_called_where_an_option_says_so(
    words: list[str], name: str, function: str, called: Callable[..., dict[str, Any]]
) -> None:
    arrived = called(name, function, *words)
    expected = {
        "compare": ["model", "other"], "placement": ["model", "cpu", "0", "None", "{}"],
        "verify_signature": ["model", "key.pem"],
        "remove_comfyui_nodes": ["place"], "tuned_ops": [], "measure_machine": ["auto", "3", "True"],
        "list_devices": ["{}"],
    }  # fmt: skip
    assert list(map(str, arrived.values())) == expected[function]


# Functions


class Stopped(Exception):
    """Ends a function where the options are complete."""


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """The fields of a dataclass and of those inside, by their paths."""
    if not is_dataclass(value):
        return {name: value}
    parts = [flat(getattr(value, field.name), f"{name}.{field.name}") for field in fields(value)]
    return {path: each for part in parts for path, each in part.items()}


RUNTIME: dict[str, tuple[Any, str]] = {
    "provider": ("rocm", "provider"), "tuning": (True, "tuning"), "graph": (True, "graph"),
    "fallback": (False, "fallback"), "device_id": (2, "device_id"),
    "provider_options": ({"a": "b"}, "provider_options"),
    "ep_libraries": ({"openvino": "lib.so"}, "ep_libraries"), "device_kind": ("gpu", "device_kind"),
    "split": (False, "split"), "custom_ops": ("off", "custom_ops"), "check": (False, "check"),
    "trials": (False, "trials"),
}  # fmt: skip


def expected(values: Mapping[str, Any], runtime: str) -> list[tuple[str, Any, str, Any]]:
    """(parameter, value, path of the field, what it holds)."""
    rows = [(name, value, f"{runtime}.{path}", value) for name, (value, path) in RUNTIME.items()]
    return rows + [
        (name, value, f".{name}", Path(value) if isinstance(value, str) and "/" in value else value)
        for name, value in values.items()
    ]


BENCH = {
    "engine": "torch", "engines": ("torch", "onnxruntime"), "checkpoint": "a/b", "baseline": "a/c",
    "baseline_engine": "torch-compile", "reference": "a/d", "components": ("unet",), "batch_sizes": (3, 5),
    "sizes": ((64, 96),), "steps": 7, "scheduler": "euler", "warmup": 9, "repeat": 11, "placement": True,
}  # fmt: skip
VERIFY = {
    "against": "a/b", "checkpoint": "a/c", "torch": False, "components": ("unet",), "images": False,
    "prompts": ("one", "two"), "seeds": 7, "steps": 9, "bisect": True, "semantic": True,
}  # fmt: skip
OPTIMIZE = {
    "provider": "cuda", "fp16": True, "fp16_plan": "a/b", "bf16": True, "io_fp16": True, "sdort_ops": True,
    "components": ("unet",), "any_graph": True, "disable": ("attention",), "expect": {"Conv": 3},
    "allow_misses": True, "explain": True, "report": "a/d", "overwrite": True, "check": False,
}  # fmt: skip


def arrived(monkeypatch: pytest.MonkeyPatch, module: str, stop: str, call: Callable[[], Any]) -> dict[str, Any]:
    """The fields of the last argument that ``call`` passes to the function ``stop``."""
    found: list[Any] = []

    def record(*arguments: Any, **_: Any) -> None:
        found.append(arguments[-1])
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(f"{module}.{stop}", record)
        with pytest.raises(Stopped):
            call()
    return flat(found[0])


@pytest.mark.parametrize(("name", "value", "path", "held"), expected(BENCH, ".runtime"))
def test_a_parameter_of_a_benchmark_is_its_option(
    name: str, value: Any, path: str, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "sdort.benchmark.command"
    plain = arrived(monkeypatch, module, "measure_pipeline", lambda: sdort.bench("model"))
    given = arrived(monkeypatch, module, "measure_pipeline", lambda: sdort.bench("model", **{name: value}))
    assert difference(plain, given) == {path: held}


@pytest.mark.parametrize(("name", "value", "path", "held"), expected(VERIFY, ".runtime"))
def test_a_parameter_of_a_verification_is_its_option(
    name: str, value: Any, path: str, held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "sdort.verification.command"
    plain = arrived(monkeypatch, module, "verify_pipeline", lambda: sdort.verify("model"))
    given = arrived(monkeypatch, module, "verify_pipeline", lambda: sdort.verify("model", **{name: value}))
    changed = difference(plain, given)
    if name == "prompts":
        assert changed.pop(".texts") == value
    assert changed == {path: held}


def test_the_rest_of_a_verification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, prompts = "sdort.verification.command", tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")

    def given(**values: Any) -> dict[str, Any]:
        return arrived(monkeypatch, module, "verify_pipeline", lambda: sdort.verify("model", **values))

    plain = given(semantic=True)
    assert plain[".runtime.control_inputs"] is True
    assert difference(plain, given(semantic=True, semantic_prompts=7)) == {".semantic_prompts": 7}
    assert difference(plain, given(semantic=True, semantic_original=True)) == {".semantic_original": True}
    for kind, kinds in (("all", ("random", "recorded")), ("random", ("random",)), ("recorded", ("recorded",))):
        assert given(inputs=kind)[".inputs"] == kind
        assert VerifyOptions(inputs=kind).kinds == kinds  # type: ignore[arg-type]
    # Components that are named are looked at without images.
    asked = [VerifyOptions(components=named, images=images) for named in ((), ("a",)) for images in (None, True, False)]
    assert [each.draws for each in asked] == [True, True, False, False, True, False]
    for form in (prompts, str(prompts)):
        found = given(prompts=form)
        assert (list(found[".texts"]), found[".prompts"]) == (["one", "two"], form)
    for alone in ({"semantic_prompts": 3}, {"semantic_original": True}):
        with pytest.raises(UsageError, match="they want --semantic"):
            sdort.verify("model", **alone)


@pytest.mark.parametrize(("name", "value"), OPTIMIZE.items())
def test_a_parameter_of_an_optimization_is_its_option(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, held = "sdort.optimizer.command", Path(value) if isinstance(value, str) and "/" in value else value
    calls: list[tuple[Callable[..., Any], str]] = [(sdort.optimize, "_check_request")]
    if name not in ("sdort_ops", "expect", "allow_misses", "explain", "report", "check"):
        calls.append((sdort.plan_optimize, "_check_request"))
    needed: dict[str, Any] = {"fp16": True} if name in ("fp16_plan", "io_fp16") else {}
    values = {**needed, name: value}
    for call, stop in calls:
        if needed:
            with pytest.raises(UsageError, match=f"{flag_of(name)} needs --fp16"):
                call("a", "b", **{name: value})
        plain = arrived(monkeypatch, module, stop, lambda call=call: call("a", "b", **needed))  # type: ignore[misc]
        given = arrived(monkeypatch, module, stop, lambda call=call: call("a", "b", **values))  # type: ignore[misc]
        assert difference(plain, given) == {f".{name}": held}
        auto = arrived(monkeypatch, module, stop, lambda call=call: call("a", "b", fp16="auto"))  # type: ignore[misc]
        assert auto[".fp16"] == "auto"
        assert (plain[".source"], plain[".out"], plain[".provider"]) == (Path("a"), Path("b"), best_here().name)


WARM = {
    "sizes": ((64, 96),), "batch_sizes": (3, 5), "components": ("unet",), "budget": 7.5, "vae_tiling": True,
    "vae_slicing": True,
}  # fmt: skip
BUILD = {
    "architectures": ("gfx1100",), "hip": False, "cuda": False, "compiler": "clang++-20", "ort_include": "headers",
}  # fmt: skip


@pytest.mark.parametrize(("call", "stop"), [(sdort.warm, "_warm"), (sdort.plan_warm, "_planned")])
@pytest.mark.parametrize(("name", "value", "path", "held"), expected(WARM, ".runtime"))
def test_a_parameter_of_a_warm_up_is_its_option(
    name: str, value: Any, path: str, held: Any, call: Any, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = arrived(monkeypatch, "sdort.warmup.command", stop, lambda: call("model"))
    given = arrived(monkeypatch, "sdort.warmup.command", stop, lambda: call("model", **{name: value}))
    assert difference(plain, given) == {path: held}


@pytest.mark.parametrize(("name", "value"), BUILD.items())
def test_a_parameter_of_a_build_is_its_option(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = arrived(monkeypatch, "sdort.operator_library.command", "build", sdort.build_ops)
    given = arrived(monkeypatch, "sdort.operator_library.command", "build", lambda: sdort.build_ops(**{name: value}))
    assert difference(plain, given) == {f".{name}": value}


@pytest.mark.parametrize("force", [True, False])
def test_a_build_is_forced_where_it_is_asked_for(force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def record(*_: Any, force: bool) -> None:
        asked.append(force)
        raise Stopped

    monkeypatch.setattr("sdort.operator_library.command.build", record)
    with pytest.raises(Stopped):
        sdort.build_ops(force=force)
    assert asked == [force]


@pytest.mark.parametrize("name", ["candidate", "against", "checkpoint", "prompts"])
def test_a_report_replaces_nothing_that_it_is_made_from(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "input"
    file.write_text("a\n")
    protected: list[Path] = []

    def check(page: Path, overwrite: bool, inputs: list[Path]) -> None:
        protected.extend(inputs)
        raise Stopped

    monkeypatch.setattr("sdort.verification.command.check_output_file", check)
    values: dict[str, Any] = {"candidate": "model", name: str(file), "report": "page.html", "overwrite": True}
    with pytest.raises(Stopped):
        sdort.verify(**values)
    assert file in protected
