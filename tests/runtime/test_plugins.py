"""Plugins of ONNX Runtime: what they take, accept and claim is looked at, and what is wrong ends in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from support.any_vendor import openvino_library

from sdort.errors import ProviderError, SdortError, UsageError
from sdort.files.user_folders import config_file
from sdort.providers import CPU, PROVIDERS, configured, plugins
from sdort.providers.plugins import PluginLibrary, find_plugin, is_there
from sdort.providers.provider import Plugin
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import check_options, provider_options
from sdort.runtime import opener, probe
from sdort.runtime.failures import load_error
from sdort.runtime.plugins import is_of_kind, refuse_untaken, register
from sdort.runtime.session import open_session

OPENVINO = PROVIDERS["openvino"]


@pytest.fixture
def asked() -> RuntimeOptions:
    """A request for OpenVINO by the library of its plugin."""
    return RuntimeOptions("openvino", ep_libraries={"openvino": openvino_library()})


@pytest.fixture(autouse=True)
def _forget() -> Any:
    yield
    probe._why_not.cache_clear()
    configured._read.cache_clear()


# What brings a provider


def test_a_library_that_is_named_comes_before_the_configuration_and_that_before_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = PluginLibrary(OPENVINO.plugins[0], Path("installed.so"), "a package")
    monkeypatch.setattr(plugins, "installed_plugin", lambda plugin: package)
    assert find_plugin(OPENVINO, {}) is package
    config_file().parent.mkdir(parents=True)
    config_file().write_text('[providers]\nopenvino = "mine.so"\n')
    configured._read.cache_clear()
    found = find_plugin(OPENVINO, {})
    assert found is not None
    assert found.path == config_file().parent / "mine.so"
    for name in ("openvino", "OpenVINOExecutionProvider"):
        given = find_plugin(OPENVINO, {name: "given.so"})
        assert given is not None
        assert given.path == Path("given.so")


def test_without_any_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "installed_plugin", lambda plugin: None)
    # What another test registered is in ONNX Runtime's own list from then on.
    runtime = SimpleNamespace(get_available_providers=lambda: [CPU.ep])
    monkeypatch.setattr(probe, "import_onnxruntime", lambda: runtime)
    assert not is_there(OPENVINO, {})
    assert is_there(CPU, {})
    reason = probe.why_not(OPENVINO, RuntimeOptions("openvino"))
    assert reason is not None
    assert "pip install onnxruntime-ep-openvino" in reason
    assert "uninstall" not in reason


CONFIGURATIONS = {
    "no TOML": ("[providers", "is no TOML"),
    "no path": ("[providers]\nopenvino = 5", "something else than paths"),
    "no table": ("providers = 5", "something else than paths"),
    "unknown": ("[providers]\nopenvin = 'a.so'", r"\[providers\] openvin: no plugin"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_that_says_something_else_is_refused(name: str) -> None:
    text, message = CONFIGURATIONS[name]
    config_file().parent.mkdir(parents=True)
    config_file().write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        find_plugin(OPENVINO, {})
    assert str(config_file()) in str(caught.value)


def test_a_configuration_that_others_may_write_is_refused() -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text("")
    config_file().chmod(0o666)
    with pytest.raises(UsageError, match="is not yours alone: other accounts can write it"):
        find_plugin(OPENVINO, {})


def test_a_name_that_no_plugin_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no plugin that sdort knows") as caught:
        RuntimeOptions(ep_libraries={"openvno": "a.so"})
    assert "Did you mean 'openvino'?" in str(caught.value)


def test_packages_are_found_without_being_imported() -> None:
    """Of those that are installed, the one of the provider that is asked for is imported."""
    code = """if True:
        import sys
        from sdort.providers import PROVIDERS
        from sdort.providers.plugins import is_there
        is_there(PROVIDERS["migraphx"], {})
        print([name for name in sys.modules if name.startswith("onnxruntime_ep_")])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What it is asked for


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("load_confg", "has no option 'load_confg'", "Did you mean 'load_config'?"),
        ("device_type", "device_type cannot be set", "Use --device-id"),
        ("precision", "precision cannot be set", "INFERENCE_PRECISION_HINT"),
    ],
)
def test_an_option_that_the_plugin_would_ignore_is_refused(
    asked: RuntimeOptions, name: str, message: str, hint: str
) -> None:
    options = RuntimeOptions("openvino", ep_libraries=asked.ep_libraries, provider_options={name: "GPU"})
    with pytest.raises(UsageError, match=message) as caught:
        check_options(OPENVINO, options)
    assert hint in str(caught.value)


def test_openvino_is_asked_for_fp32(asked: RuntimeOptions) -> None:
    options = provider_options(OPENVINO, asked)
    assert json.loads(options["load_config"]) == {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}


def test_a_kind_of_device_is_for_plugins() -> None:
    with pytest.raises(UsageError, match="no plugin brings cpu"):
        check_options(CPU, RuntimeOptions("cpu", device_kind="gpu"))


@pytest.mark.parametrize(("kind", "wanted"), [(None, True), ("npu", True), ("INTEL", True), ("gpu", False)])
def test_devices_are_chosen_by_kind_or_vendor(kind: str | None, wanted: bool) -> None:
    device = SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name="NPU"), vendor="Intel"))
    assert is_of_kind(device, kind) is wanted


# What does not load


@pytest.mark.parametrize("library", ["/no/such/library.so", "no_plugin"])
def test_a_library_that_does_not_load_is_a_sentence(library: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = sys.modules["_ctypes"].__file__ if library == "no_plugin" else library
    reason = probe.why_not(OPENVINO, RuntimeOptions("openvino", ep_libraries={"openvino": str(path)}))
    assert reason is not None
    assert reason.startswith("the plugin /")
    assert "does not load" in reason
    with pytest.raises(ProviderError, match="openvino cannot be used") as caught:
        probe.choose_provider(RuntimeOptions("openvino", ep_libraries={"openvino": str(path)}))
    assert caught.value.exit_code == 6
    assert capfd.readouterr() == ("", "")


def test_an_old_onnxruntime_takes_no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="1.22.2")
    monkeypatch.setattr("sdort.runtime.plugins.import_onnxruntime", lambda: old)
    with pytest.raises(ProviderError, match=r"1\.22\.2 takes no plugins"):
        register(PluginLibrary(OPENVINO.plugins[0], Path("a.so"), "a.so"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_kind": "npu"}, "has no device 0 of --device-kind npu: it finds 0 here"),
        ({"device_id": 4}, "has no device 4: it finds 1 here"),
    ],
)
def test_a_device_that_is_not_there_is_a_sentence(asked: RuntimeOptions, options: Any, message: str) -> None:
    reason = probe.why_not(OPENVINO, RuntimeOptions("openvino", ep_libraries=asked.ep_libraries, **options))
    assert message in (reason or "")


def test_a_plugin_that_cannot_be_made_falls_back_to_nothing(
    asked: RuntimeOptions, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime 1.31 says so on stdout and goes on with the CPU, unless it is told not to."""
    options = RuntimeOptions(
        "openvino", ep_libraries=asked.ep_libraries, provider_options={"load_config": "{bad"}, fallback=True
    )
    with pytest.raises(ProviderError, match="does not load with these options: JSON parsing error") as caught:
        open_session(saved(tmp_path, "y = Relu (x)"), "unet", OPENVINO, options)
    assert caught.value.exit_code == 6
    assert capfd.readouterr().out == ""


# What is not believed


def test_the_plugin_that_computes_is_believed(asked: RuntimeOptions) -> None:
    assert probe.why_not(OPENVINO, asked) is None


@pytest.fixture
def made(asked: RuntimeOptions, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """What is said of a plugin whose session on the small graph is another one."""
    create = opener.create_session

    def change(**methods: Any) -> str | None:
        def changed(model: bytes, provider: Any, options: Any) -> Any:
            session = create(model, provider, options)
            if provider is CPU:
                return session
            own = {"run": session.run, "get_provider_graph_assignment_info": lambda: taken(OPENVINO.ep, "Conv")}
            return SimpleNamespace(**{**own, **methods})

        monkeypatch.setattr(probe, "create_session", changed)
        return probe.why_not(OPENVINO, asked)

    return change


def taken(execution_provider: str, *operators: str) -> list[Any]:
    nodes = [SimpleNamespace(op_type=name, name=name, domain="") for name in operators]
    return [SimpleNamespace(ep_name=execution_provider, get_nodes=lambda: nodes)]


def test_what_is_left_of_the_test_s_session_is_believed(made: Callable[..., str | None]) -> None:
    assert made() is None


def test_a_plugin_that_takes_nothing_is_not(made: Callable[..., str | None]) -> None:
    reason = made(get_provider_graph_assignment_info=lambda: taken(CPU.ep, "Conv", "MatMul"))
    assert "takes no node of a graph of a convolution and a product" in (reason or "")


def test_a_plugin_that_takes_an_operator_and_cannot_run_it_is_not(made: Callable[..., str | None]) -> None:
    """As onnxruntime-ep-ggml 0.2.0 with a convolution of two axes."""

    def run(*_: Any) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : only 1-D convolutions")

    assert (made(run=run) or "").startswith("only 1-D convolutions")


def test_a_plugin_that_computes_something_else_is_not(made: Callable[..., str | None]) -> None:
    reason = made(run=lambda *_: [np.ones((1, 4, 4, 4), np.float32)])
    assert "computes a convolution and a product wrongly" in (reason or "")


def saved(folder: Path, body: str) -> Path:
    path = folder / "model.onnx"
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2, 4, 8] x) => (float[a, b, c] y) {{ [only] {body} }}"""
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_component_of_which_it_takes_nothing_is_refused(asked: RuntimeOptions, tmp_path: Path) -> None:
    """OpenVINO really leaves this one to the CPU."""
    path = saved(tmp_path, "y = com.microsoft.FastGelu (x)")
    with pytest.raises(ProviderError, match="takes no node of it: all would run on the CPU, as FastGelu") as caught:
        open_session(path, "unet", OPENVINO, asked)
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("nodes", [taken("OpenVINOExecutionProvider", "Conv"), taken(CPU.ep, "Shape", "Gather"), []])
def test_shape_arithmetic_alone_may_stay_on_the_cpu(nodes: list[Any]) -> None:
    library = PluginLibrary(OPENVINO.plugins[0], Path("a.so"), "a.so")
    refuse_untaken(SimpleNamespace(get_provider_graph_assignment_info=lambda: nodes), library, "unet")


def test_what_a_provider_cannot_compile_is_its_error() -> None:
    text = "[ONNXRuntimeError] : 11 : EP_FAIL : Exception from a.cpp:1:\nException from b.cpp:2:\n-- No X here\n\n"
    error: SdortError = load_error(RuntimeError(text), Path("model.onnx"), "unet", OPENVINO)
    assert isinstance(error, ProviderError)
    assert error.message == "openvino cannot compile model.onnx: No X here"


def test_a_plugin_s_module_has_its_package_s_name() -> None:
    assert Plugin("onnxruntime-ep-some-thing", "X", "", {}).module == "onnxruntime_ep_some_thing"
