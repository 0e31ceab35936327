"""What the library is given and told by the environment, CMake and its record; without building or loading it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import parser

from sdort.errors import ProviderError, UsageError
from sdort.operator_library import build as builds
from sdort.operator_library import library
from sdort.operator_library.build import BuildOptions, _check, _definitions, _stated
from sdort.operator_library.library import CodeObject, Description, LibraryOperator, why_no_kernels
from sdort.operator_library.opening import unserved_layer_norm


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(), ["-DSDORT_HIP=AUTO", "-DSDORT_CUDA=AUTO"]),
        (BuildOptions(hip=True, cuda=False), ["-DSDORT_HIP=ON", "-DSDORT_CUDA=OFF"]),
        (BuildOptions(hip=False, cuda=True), ["-DSDORT_HIP=OFF", "-DSDORT_CUDA=ON"]),
        (
            BuildOptions(("gfx1100", "gfx942"), compiler="/a/clang++", ort_include="/b"),
            [
                "-DSDORT_HIP=AUTO", "-DSDORT_CUDA=AUTO", "-DSDORT_HIP_ARCHS=gfx1100;gfx942",
                "-DSDORT_HIP_COMPILER=/a/clang++", "-DSDORT_ORT_INCLUDE=/b",
            ],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ninja", [False, True])
def test_cmake_is_given_each_option(
    options: BuildOptions, expected: list[str], ninja: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name if ninja and name == "ninja" else None)
    assert _definitions(options) == expected + (["-G", "Ninja"] if ninja else [])


def test_what_cmake_said_is_read_by_its_name() -> None:
    text = "-- left out: gfx950;gfx1250;\nx -- left out: a\n-- ONNX Runtime headers: here (API 21)\n-- empty: \n"
    assert _stated(text, "left out") == ("gfx950", "gfx1250")
    assert _stated(text, "ONNX Runtime headers") == ("here (API 21)",)
    assert (_stated(text, "empty"), _stated(text, "nothing")) == ((), ())


@pytest.mark.parametrize("name", ["gfx90a", "gfx942", "gfx1100", "gfx12345"])
def test_architectures_that_there_may_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    _check(BuildOptions((name,)))
    for wrong in ("gfx12", "gfx123456", "gfx90A", f"x{name}", f"{name} ", "gfx90g"):
        with pytest.raises(UsageError, match=f"--arch {wrong}: "):
            _check(BuildOptions((name, wrong)))


@pytest.mark.parametrize("compiler", ["c++", "g++", "clang++", "mine"])
def test_any_compiler_will_do_and_none_is_told(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setattr(shutil, "which", lambda name: name if name in ("cmake", compiler) else None)
    _check(BuildOptions())
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "cmake" else None)
    with pytest.raises(UsageError, match=r"there is no C\+\+ compiler here"):
        _check(BuildOptions())


def test_a_failed_command_shows_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(command: Any, *, merge: bool) -> Any:
        assert merge
        return SimpleNamespace(returncode=1 if command[0] == "bad" else 0, stdout="\n".join(map(str, range(50))) + "\n")

    monkeypatch.setattr(builds, "run_child", child)
    assert builds._run(["good"]).startswith("0\n1")
    with pytest.raises(Exception, match=r"failed:\n20\n21\n") as caught:
        builds._run(["bad", "one"])
    assert str(getattr(caught.value, "hint", "")) == "The whole command: bad one"


def operator(name: str, by_default: bool = True) -> LibraryOperator:
    return LibraryOperator("com.microsoft", name, True, True, by_default)


DESCRIBED = Description((operator("A"), operator("B"), operator("C", by_default=False)), ())


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """As SessionOptions: what it was given, and the environment at that moment."""
    seen: dict[str, Any] = {"entries": {}}

    def registered(place: str) -> None:
        seen.update(place=place, names=os.environ.get("SDORT_OPS"), provider=os.environ["SDORT_OPS_PROVIDER"])

    for name in ("SDORT_OPS", "SDORT_OPS_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    checked = SimpleNamespace(place="/proc/self/fd/9", reason=str)
    monkeypatch.setattr(library, "checked_library", lambda path: checked)
    monkeypatch.setattr(library, "describe_library", lambda path: DESCRIBED)
    monkeypatch.setattr(library, "use_tuning_table", lambda: seen.update(table=True))
    return SimpleNamespace(
        seen=seen, register_custom_ops_library=registered, add_session_config_entry=seen["entries"].__setitem__
    )


@pytest.mark.parametrize(
    ("provider", "asked", "left_out", "names"),
    [
        ("cpu", None, (), None),
        ("cpu", "A", (), "A"),
        ("cpu", None, ("A",), "B,C"),
        ("rocm", None, ("A",), "B,C"),
        ("cuda", None, ("A",), "B"),
        ("cuda", "all", ("A",), "B,C"),
        ("cuda", "A,C", ("A",), "C"),
        ("rocm", "A", ("A",), "none"),
        ("cuda", None, ("A", "B"), "none"),
    ],
)
def test_the_library_registers_all_that_is_not_left_out(
    provider: str, asked: str | None, left_out: tuple[str, ...], names: str | None, settings: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if asked:
        monkeypatch.setenv("SDORT_OPS", asked)
    library.register(settings, tmp_path, provider, left_out)
    seen = settings.seen
    found = seen["names"] if seen["names"] is None else ",".join(sorted(seen["names"].split(",")))
    assert (found, seen["provider"], seen["place"], seen["table"]) == (names, provider, "/proc/self/fd/9", True)
    assert os.environ.get("SDORT_OPS") == asked
    off = {"optimization.disable_specified_optimizers": "ConvActivationFusion"}
    assert seen["entries"] == (off if provider == "cpu" else {})


def test_another_provider_gets_the_kernels_of_the_cpu_and_a_failure_leaves_the_environment(
    settings: Any, tmp_path: Path
) -> None:
    library.register(settings, tmp_path, "migraphx")
    assert settings.seen["provider"] == "cpu"

    def fail(_: str) -> None:
        raise RuntimeError("a test")

    settings.register_custom_ops_library = fail
    with pytest.raises(ProviderError, match=r"cannot load .*: a test"):
        library.register(settings, tmp_path, "rocm", ("A",))
    assert "SDORT_OPS" not in os.environ


@pytest.mark.parametrize("vendors", [(), ("amd",), ("nvidia",), ("amd", "nvidia")])
def test_why_a_provider_has_no_kernels(
    vendors: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = tuple(CodeObject(vendor, "x", 1) for vendor in vendors)
    monkeypatch.setattr(library, "describe_library", lambda path: Description((), codes))
    monkeypatch.setattr(library, "resolve", lambda setting: tmp_path)
    for provider, vendor in (("rocm", "amd"), ("cuda", "nvidia")):
        reason = why_no_kernels(provider)
        assert reason == (None if vendor in vendors else f"the library here has no kernels for {vendor} GPUs")
    monkeypatch.setattr(library, "resolve", lambda setting: None)
    assert "is not built here" in str(why_no_kernels("rocm"))

    def fail(_: str) -> Path:
        raise UsageError("others can write it")

    monkeypatch.setattr(library, "resolve", fail)
    assert why_no_kernels("cuda") == "others can write it"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_the_machines_table_is_used_where_the_user_names_none(
    there: bool, own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SDORT_OPS_TUNING", raising=False)
    monkeypatch.setattr(library, "tuning_table", lambda: tmp_path / "t.tsv")
    if own:
        monkeypatch.setenv("SDORT_OPS_TUNING", "/own")
    if there:
        (tmp_path / "t.tsv").touch()
    library.use_tuning_table()
    expected = "/own" if own else str(tmp_path / "t.tsv") if there else None
    assert os.environ.get("SDORT_OPS_TUNING") == expected


def test_a_record_has_the_hash_of_now_and_of_before(tmp_path: Path) -> None:
    for stored, hashes in (
        ({"sha256": "a", "previous": "b"}, {"a", "b"}),
        ({"sha256": "a", "previous": ""}, {"a"}),
        ({"previous": "b"}, {"b"}),
        ({"sha256": 1, "previous": ["b"], "other": "c"}, set()),
        (["a"], set()),
    ):
        (tmp_path / "build.json").write_text(json.dumps(stored))
        assert library._built_hashes(tmp_path / "build.json") == hashes
    assert library._built_hashes(tmp_path / "none.json") == set()


HEAD = """<ir_version: 10, opset_import: ["": 18, "other": 1]>
g (float[2, 3, 8] x, float16[2, 3, 8] h, double[2, 3, 8] d, """
TAIL = "float[8] w, float16[8] v, double[8] u, float[3, 8] m, float w0) => (float[a, b, c] y) { "
NORMS: dict[str, tuple[str, str]] = {
    "plain": ("y = LayerNormalization (x, w)", ""),
    "half": ("y = LayerNormalization (h, v)", ""),
    "two outputs": ("y, mean = LayerNormalization (x, w)", "mean"),
    "three outputs": ("y, mean, deviation = LayerNormalization (x, w)", "mean, deviation"),
    "the last output alone": ("y, , deviation = LayerNormalization (x, w)", "deviation"),
    "double": ("y = LayerNormalization (d, u)", "a scale of the type DOUBLE"),
    "two axes": ("y = LayerNormalization <axis = -2> (x, m)", ""),
    "two axes and one of the scale": ("y = LayerNormalization <axis = -2> (x, w)", "1 dimensions for 2"),
    "one axis and two of the scale": ("y = LayerNormalization (x, m)", "2 dimensions for 1"),
    "a positive axis": ("y = LayerNormalization <axis = 1> (x, w)", ""),
    "of a cast scale": ("s = Cast <to = 1> (u)  y = LayerNormalization (x, s)", ""),
    "of a scale cast to double": ("s = Cast <to = 11> (w)  y = LayerNormalization (d, s)", "DOUBLE"),
    "of an unknown scale": ("s = Identity (w)  y = LayerNormalization (x, s)", "UNDEFINED"),
    "of another domain": ("y, mean = other.LayerNormalization (d, u)", ""),
    "a mean of a cast": ("c = Cast <to = 1> (h)  y = ReduceMean (c)", "may become a LayerNormalization of two types"),
    "a mean": ("y = ReduceMean (x)", ""),
    "a sum of a cast": ("c = Cast <to = 1> (h)  y = ReduceSum (c)", ""),
    "the second norm": ("n = LayerNormalization (x, w)  y = LayerNormalization (n, u)", "a scale of the type DOUBLE"),
}


@pytest.mark.parametrize("name", NORMS)
def test_forms_of_a_layer_normalization(name: str) -> None:
    body, reason = NORMS[name]
    found = unserved_layer_norm(parser.parse_model(f"{HEAD}{TAIL}{body} }}"))
    assert (found is None) == (not reason)
    assert reason in (found or "")


def test_the_type_of_a_scale_is_a_weights_or_a_constants_too() -> None:
    for kind, served in ((onnx.TensorProto.FLOAT, True), (onnx.TensorProto.BFLOAT16, False)):
        for constant in (False, True):
            body = "y = LayerNormalization (x, s)"
            model = parser.parse_model(f"{HEAD}{TAIL}{body} }}")
            tensor = onnx.TensorProto(name="s", data_type=kind, dims=[8], raw_data=bytes(32))
            if constant:
                model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["s"], value=tensor))
            else:
                model.graph.initializer.append(tensor)
            assert (unserved_layer_norm(model) is None) is served
