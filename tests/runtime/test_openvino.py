"""OpenVINO's plugin really computes: the demo's parts and its image as on ONNX Runtime's CPU provider."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from support.any_vendor import openvino_library
from support.pipelines import locked, trace_folder

from sdort.cli import cli
from sdort.errors import ProviderError
from sdort.exporter.command import export
from sdort.graph.signature import Array
from sdort.optimizer.command import optimize
from sdort.providers import CPU, PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session, open_session

OPENVINO = PROVIDERS["openvino"]
LIMIT = 5e-5
"""Greatest error of fp32 by the standard deviation."""
SIZES = {"batch_size": 2, "height": 16, "width": 16}


@dataclass(frozen=True)
class Demo:
    """The demo, which is trained, optimized for OpenVINO, and the plugin's library."""

    folder: Path
    library: str

    def session(self, component: str, **options: object) -> Session:
        """A component on OpenVINO."""
        asked = RuntimeOptions("openvino", ep_libraries={"openvino": self.library}, **options)  # type: ignore[arg-type]
        return open_session(self.folder / component / "model.onnx", component, OPENVINO, asked)

    def on_cpu(self, component: str) -> Session:
        return open_session(self.folder / component / "model.onnx", component, CPU, RuntimeOptions("cpu"))


@pytest.fixture(scope="module")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    library = openvino_library()
    folder, traces = tmp_path_factory.mktemp("demo"), trace_folder(request.config)
    with locked(traces):
        export("demo", folder / "onnx", cache_dir=traces)
    optimize(folder / "onnx", folder / "fast", provider="openvino")
    return Demo(folder / "fast", library)


def some_inputs(session: Session, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {
        name: tuple(size if isinstance(size, int) else SIZES.get(str(size), 8) for size in spec.shape)
        for name, spec in session.inputs.items()
    }
    return {
        name: rng.integers(1, 99, shape) if session.inputs[name].dtype.kind == "i" else rng.standard_normal(shape)
        for name, shape in shapes.items()
    }


def worst(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The greatest error by the standard deviation."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - value).max() / value.std()) for name, value in expected.items())


@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_decoder"])
def test_a_component_is_that_of_the_cpu(demo: Demo, component: str) -> None:
    here, there = demo.session(component), demo.on_cpu(component)
    for seed in range(2):
        inputs = some_inputs(there, seed)
        assert worst(here.run(inputs), there.run(inputs)) < LIMIT


def test_a_bound_run_sees_what_was_written_since_it_was_bound(demo: Demo) -> None:
    """ONNX Runtime copies an input to OpenVINO's memory when it is bound."""
    here, there = demo.session("unet", split=False), demo.on_cpu("unet")
    inputs = {name: value.astype(np.float32) for name, value in some_inputs(there, 0).items()}
    values = {name: here.upload(value) for name, value in inputs.items()}
    binding, output = here.io_binding(), here.upload(np.zeros((2, 4, 16, 16), np.float32))
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("out_sample", output)
    for seed in range(3):
        inputs = {name: value.astype(np.float32) for name, value in some_inputs(there, seed).items()}
        for name, value in inputs.items():
            values[name].update_inplace(np.ascontiguousarray(value))
        here.run_bound(binding)
        assert worst({"out_sample": output.numpy()}, there.run(inputs)) < LIMIT


def test_without_sdorts_option_a_cpu_with_bf16_computes_in_it(demo: Demo) -> None:
    """What the option is for; OpenVINO's processors without bf16 compute in fp32 anyhow."""
    flags = Path("/proc/cpuinfo").read_text().split()
    if not {"amx_bf16", "avx512_bf16"} & {*flags}:
        pytest.skip("a processor without bf16")
    there = demo.on_cpu("unet")
    inputs = some_inputs(there, 0)
    own = demo.session("unet", provider_options={"load_config": json.dumps({"CPU": {}})})
    assert worst(own.run(inputs), there.run(inputs)) > 100 * LIMIT


def test_run_from_start_to_end(demo: Demo, tmp_path: Path) -> None:
    for name, words in (("openvino", ["--ep-library", f"openvino={demo.library}"]), ("cpu", [])):
        command = ["run", str(demo.folder), "--prompt", "a red circle", "--steps", "3", "--seed", "1"]
        done = CliRunner().invoke(cli, [*command, "--provider", name, *words, "-o", str(tmp_path / f"{name}.png")])
        assert done.exit_code == 0, done.output
        assert f" on {name}" in done.output
    found, expected = (np.asarray(Image.open(tmp_path / f"{name}.png"), float) for name in ("openvino", "cpu"))
    assert expected.std() > 10
    assert np.abs(found - expected).max() <= 1


def test_placement_is_that_of_the_plugin(demo: Demo) -> None:
    words = ["inspect", str(demo.folder), "--provider", "openvino", "--ep-library", f"openvino={demo.library}"]
    done = CliRunner().invoke(cli, [*words, "--placement", "--device-kind", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    shares = {each["component"]: each["shares"] for each in json.loads(done.stdout)["placement"]}
    assert {share["provider"] for share in shares["unet"]} >= {OPENVINO.ep}
    alone = CliRunner().invoke(cli, words)
    assert alone.exit_code == 2
    assert "are for --placement" in alone.output


def test_warm_and_verify_run_it(demo: Demo) -> None:
    device = ["--provider", "openvino", "--ep-library", f"openvino={demo.library}", "--component", "vae_encoder"]
    for command in (["warm", "--size", "64x64"], ["verify", "--no-torch", "--inputs", "random", "--no-images"]):
        done = CliRunner().invoke(cli, [command[0], str(demo.folder), *command[1:], *device])
        assert done.exit_code == 0, done.output


def test_a_device_that_is_not_there_is_an_error(demo: Demo) -> None:
    with pytest.raises(ProviderError, match="has no device 7: it finds 1 here"):
        demo.session("unet", device_id=7)
