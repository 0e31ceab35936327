"""Memory that runs out and a GPU that fails, inside onnxruntime-rocm's real provider on a stub of HIP (rocm_stub)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from onnx import parser
from support import rocm_stub
from support.loop_models import UNET

ROOT = Path(__file__).resolve().parents[2]

# A model, and when to fail at what: the stub reads its setting at every call.
SCRIPT = """
import os, pathlib, sys
import click, numpy
import sdort.runtime.session
from sdort.console import set_verbosity
from sdort.cli.reporting import reporting
from sdort.generation.latents.decode import Decoder, Plan
from sdort.runtime.step.bound_unet import Batch
from sdort.generation.denoising.device_loop import Loop
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.generation.schedules.recurrence import Recurrence
from sdort.runtime.step.step_conditions import StepConditions

# What reads the file before ONNX Runtime does is not installed here, and knows no GPU.
sdort.runtime.session.check_file = lambda path, component: None
sdort.runtime.session.refuse_wrong_operators = lambda *of: None
set_verbosity(0)
rng = numpy.random.default_rng(0)

def now(moment):
    print(moment)
    if moment == sys.argv[2]:
        os.environ["SDORT_STUB_FAIL"] = sys.argv[3]

def open_session(component):
    now("open")
    options = RuntimeOptions("rocm", custom_ops="off")
    return sdort.runtime.session.open_session(pathlib.Path(sys.argv[1]), component, ROCM, options)

def denoise():
    loop = Loop(open_session("unet"))
    now("loop")
    table = rng.normal(size=(5, 5))
    steps = iter(range(1, 5))
    conditions = StepConditions.fixed([{"encoder_hidden_states": rng.normal(size=(1, 5, 6)).astype("f")}] * 2, 4)
    noise = rng.normal(size=(1, 1, 4, 8, 8)).astype("f")
    recurrence, batch = Recurrence(numpy.arange(4), table[:-1], table[-1]), Batch(2, 1, (4, 8, 8))
    loop.denoise(recurrence, batch, conditions, noise, [-1.0, 2.0], lambda _: now(f"step {next(steps)}"))
    now("end")

def decode():
    decoder = Decoder(open_session("vae_decoder"), {}, 2)
    for image in decoder.decode(rng.normal(size=(4, 4, 128, 128)).astype("f"), Plan()):
        print(image.shape)
        now("first image")

try:
    with reporting(False):
        globals()[sys.argv[4]]()
except click.exceptions.Exit as end:
    sys.exit(end.exit_code)
"""

# On the device: 4 MiB for four images of 128 x 128 latents (a MiB each), and the output, three quarters of that.
DECODER = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 4, H, W] latent_sample) => (float[N, 3, H2, W2] sample) {
    larger = Constant <value_ints = [1, 1, 2, 2]> ()
    first = Constant <value_ints = [0]> ()
    last = Constant <value_ints = [3]> ()
    axis = Constant <value_ints = [1]> ()
    tiled = Tile (latent_sample, larger)
    sample = Slice (tiled, first, last, axis)
}"""

MODELS = {"denoise": UNET.format(io="float", clock="int64", n="N", more="", last="out = Identity (timed)", to=1)}
MODELS["decode"] = DECODER


def run(folder: Path, what: str, when: str, failure: str, **settings: str) -> subprocess.CompletedProcess[str]:
    path = folder / "model.onnx"
    path.write_bytes(parser.parse_model(MODELS[what]).SerializeToString())
    return rocm_stub.runtime().run(SCRIPT, str(path), when, failure, what, PYTHONPATH=str(ROOT), **settings)


def test_without_a_fault_all_of_it_runs(tmp_path: Path) -> None:
    for what, last in (("denoise", "end"), ("decode", "first image")):
        done = run(tmp_path, what, "never", "")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == last


@pytest.mark.parametrize("when", ["loop", "step 2", "step 4"])
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("hipMemcpy:719", "HIP failure 719: unspecified launch failure"),
        ("hipStreamSynchronize:700", "HIP failure 700: an illegal memory access was encountered"),
        ("hipLaunchKernel:719", "HIP error hipErrorLaunchFailure:unspecified launch failure"),
    ],
)
def test_a_gpu_that_fails_is_a_sentence(when: str, failure: str, text: str, tmp_path: Path) -> None:
    done = run(tmp_path, "denoise", when, failure)
    assert done.returncode == 6, done.stderr
    assert done.stdout.splitlines()[-1] == when
    # The whole of it: no file of ONNX Runtime's, no traceback.
    pattern = rf"Error: component '(unet|scheduler)': rocm lost the GPU: {text}\n  Its driver says why \(dmesg\).*\n"
    assert re.fullmatch(pattern, done.stderr)


@pytest.mark.parametrize("failure", ["hipMemcpy:719", "hipStreamSynchronize:700"])
def test_a_gpu_that_fails_at_the_first_copy_is_a_sentence(failure: str, tmp_path: Path) -> None:
    done = run(tmp_path, "decode", "open", failure)
    assert done.returncode == 6, done.stderr
    assert done.stdout == "open\n"
    assert done.stderr.startswith("Error: component 'vae_decoder': rocm lost the GPU: HIP failure")


def test_no_memory_for_the_loop_is_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "denoise", "loop", "hipMalloc:2")
    assert done.returncode == 6
    said = (
        r"Error: component 'unet': rocm ran out of memory: Failed to allocate memory for requested buffer of size \d+\n"
    )
    assert re.fullmatch(said + r"  Take fewer images at once or a smaller size\.\n", done.stderr)


def test_the_later_memory_ends_the_larger_the_parts(tmp_path: Path) -> None:
    """From the first allocation on even the smallest tile fails; what was got before is used again in smaller parts."""
    ends = [run(tmp_path, "decode", "open", f"hipMalloc:2:{first}") for first in range(1, 5)]
    assert [end.returncode for end in ends] == [6, 0, 0, 0]
    retries = [end.stderr.count("it goes on") for end in ends]
    assert (retries[0], retries[-1]) == (3, 0)
    assert len(set(retries[1:-1])) == 2
    assert retries == sorted(retries, reverse=True)
    assert [end.stdout.count("(3, 256, 256)") for end in ends] == [0, 4, 4, 4]
    message = (
        "Error: component 'vae_decoder': rocm ran out of memory: Failed to allocate memory for requested buffer of"
    )
    assert ends[0].stderr.splitlines()[3].startswith(message)


SLICES = "warning: the decoder ran out of memory; it goes on image by image"


@pytest.mark.parametrize(
    ("memory", "plans"),
    [
        (64, []),
        (5, [SLICES]),
        (2, [SLICES, f"{SLICES}, in tiles of 64 x 64 latents"]),
    ],
)
def test_the_decoder_goes_on_in_what_memory_there_is(memory: int, plans: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "decode", "never", "", memory=str(memory))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == plans
    assert done.stdout.count("(3, 256, 256)") == 4


def test_where_even_the_smallest_tile_is_too_large(tmp_path: Path) -> None:
    done = run(tmp_path, "decode", "never", "", memory="0")
    assert done.returncode == 6
    assert "Error: component 'vae_decoder': rocm ran out of memory" in done.stderr
    assert done.stderr.count("it goes on") == 3
    assert "Traceback" not in done.stderr
