"""Which component a file is, and which files of a folder are components."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from sdort.errors import BadModelError, UsageError
from sdort.onnx_io.components import find_components

FLOAT, HALF, LONG = "float", "float16", "int64"


def identify(path: Path) -> str:
    """The component that the model in ``path`` is, by its inputs and outputs."""
    (name,) = find_components(path)
    return name


def write(path: Path, inputs: str, outputs: str, convs: tuple[tuple[int, ...], ...] = (), op: str = "Conv") -> Path:
    """A model of that signature; its nodes do not matter, except the weights of convolutions."""
    names = [text.split()[-1] for text in inputs.replace("], ", "];").split(";")]
    results = [text.split()[-1] for text in outputs.replace("], ", "];").split(";")]
    body = " ".join(f"{name} = Identity ({names[0]})" for name in results)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {body} }}')
    for index, shape in enumerate(convs):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), f"w{index}"))
        domain = "com.microsoft" if op == "NhwcConv" else ""
        model.graph.node.add(op_type=op, domain=domain, input=[names[0], f"w{index}"], output=[f"c{index}"])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def unet(path: Path) -> Path:
    inputs = "float[B, 4, H, W] sample, int64[1] timestep, float[B, S, 32] encoder_hidden_states"
    return write(path, inputs, "float[B, 4, H, W] out_sample")


def text_encoder(path: Path) -> Path:
    return write(path, "int64[B, S] input_ids", "float[B, S, 32] last_hidden_state, float[B, 32] pooler_output")


def text_encoder_2(path: Path) -> Path:
    return write(path, "int64[B, S] input_ids", "float[B, 32] text_embeds, float[B, S, 32] last_hidden_state")


def vae_decoder(path: Path) -> Path:
    return write(path, "float[B, 4, H, W] latent_sample", "float[B, 3, H, W] sample")


def vae_encoder(path: Path) -> Path:
    return write(path, "float[B, 3, H, W] sample", "float[B, 8, H, W] latent_parameters")


WRITERS = {
    "text_encoder": text_encoder,
    "text_encoder_2": text_encoder_2,
    "unet": unet,
    "vae_encoder": vae_encoder,
    "vae_decoder": vae_decoder,
}


@pytest.mark.parametrize("component", WRITERS)
def test_a_file_of_any_name_is_recognised(tmp_path: Path, component: str) -> None:
    path = WRITERS[component](tmp_path / "whatever.onnx")
    assert find_components(path) == {component: path}


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("float[B, 9, H, W] a, float[B] b, float[B, S, D] c", "float[B, 4, H, W] y", "unet"),  # inpainting
        (
            "float16[B, 4, H, W] a, float16[1] t, float16[B, S, D] c, float16[B, D] d, float16[B, 6] e",
            "float16[B, 4, H, W] y",
            "unet",
        ),
        ("int32[B, 77] ids, int64[B, 77] mask", "float16[B, 77, D] y", "text_encoder"),
        ("float[B, 16, H, W] z", "float[B, 3, H, W] y", "vae_decoder"),
        ("float[B, 3, H, W] x", "float[B, 4, H, W] y", "vae_encoder"),
    ],
)
def test_variants(tmp_path: Path, inputs: str, outputs: str, expected: str) -> None:
    assert identify(write(tmp_path / "model.onnx", inputs, outputs)) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("float[B, 3, 224, 224] image", "float[B, 1000] classes"),
        ("float[B, 3, H, W] image", "float[B, 3, H, W] upscaled"),
        ("float[B, 4, H, W] a", "float[B, 8, H, W] b"),
        ("int64[B, S] ids", "float[B, 2] label"),
        ("int64[B, S] ids", "int64[B, S, 2] y"),
        ("float[B, S] ids", "float[B, S, 8] y"),
        ("float[B, 4, H, W] a, float[B, S, D] c", "float[B, 4, H, W] y"),  # no timestep
        ("float[B, 4, H, W] a, int64[1] t", "float[B, 4, H, W] y"),  # no text
        ("float[B, 4, H, W] a, int64[1] t, float[B, S, D] c", "float[B, 4, H, W] y, float[B, S, D] z"),
    ],
)
def test_other_models_are_refused_with_what_they_are(tmp_path: Path, inputs: str, outputs: str) -> None:
    path = write(tmp_path / "model.onnx", inputs, outputs)
    with pytest.raises(BadModelError, match="no diffusion component: it maps") as caught:
        find_components(path)
    assert inputs.split()[-1] in caught.value.message
    assert outputs.split()[-1] in caught.value.message
    assert caught.value.hint
    assert "Expected" in caught.value.hint


@pytest.mark.parametrize("op", ["Conv", "NhwcConv"])
def test_dynamic_channels_are_read_from_the_convolutions(tmp_path: Path, op: str) -> None:
    """diffusers' conversion script names the channel axis, as it does all others."""
    signature = "float[batch, channels, height, width]"
    first, last = ((8, 4, 3, 3), (3, 8, 3, 3)) if op == "Conv" else ((8, 3, 3, 4), (3, 3, 3, 8))
    path = write(tmp_path / "a.onnx", f"{signature} x", f"{signature} y", (first, last), op)
    assert identify(path) == "vae_decoder"
    first, last = ((8, 3, 3, 3), (8, 8, 1, 1))
    assert identify(write(tmp_path / "b.onnx", f"{signature} x", f"{signature} y", (first, last), op)) == "vae_encoder"
    for name in ("vae_encoder", "vae_decoder"):
        path = write(tmp_path / name / "model.onnx", f"{signature} x", f"{signature} y")
        assert identify(path) == name  # nothing else tells


def test_a_pipeline_folder_in_pipeline_order(tmp_path: Path) -> None:
    for component in reversed(WRITERS):
        WRITERS[component](tmp_path / component / "model.onnx")
    write(tmp_path / "safety_checker" / "model.onnx", "float[B, 3, 224, 224] clip_input", "bool[B] has_nsfw_concepts")
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "model_index.json").write_text("{}")
    found = find_components(tmp_path)
    assert list(found) == [*WRITERS, "safety_checker"]
    assert all(path == tmp_path / name / "model.onnx" for name, path in found.items())


def test_sdxl_text_encoders_by_folder(tmp_path: Path) -> None:
    """The first of SDXL may give pooled output first, the second may not: the folder decides."""
    text_encoder_2(tmp_path / "text_encoder" / "model.onnx")
    text_encoder(tmp_path / "text_encoder_2" / "model.onnx")
    assert list(find_components(tmp_path)) == ["text_encoder", "text_encoder_2"]


def test_one_components_folder(tmp_path: Path) -> None:
    path = unet(tmp_path / "unet" / "model.onnx")
    assert find_components(tmp_path / "unet") == {"unet": path}
    assert find_components(tmp_path) == {"unet": path}


def test_another_file_name_if_it_is_alone(tmp_path: Path) -> None:
    path = unet(tmp_path / "unet" / "unet_fp16.onnx")
    assert find_components(tmp_path) == {"unet": path}
    unet(tmp_path / "unet" / "unet_fp32.onnx")
    with pytest.raises(BadModelError, match="several models") as caught:
        find_components(tmp_path)
    assert "unet_fp16.onnx, unet_fp32.onnx" in caught.value.message
    unet(tmp_path / "unet" / "model.onnx")
    assert find_components(tmp_path) == {"unet": tmp_path / "unet" / "model.onnx"}


def test_a_model_in_the_wrong_folder(tmp_path: Path) -> None:
    vae_encoder(tmp_path / "vae_decoder" / "model.onnx")
    with pytest.raises(BadModelError, match="is no vae_decoder: it maps") as caught:
        find_components(tmp_path)
    assert caught.value.component == "vae_decoder"


def test_folders_without_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        find_components(tmp_path / "missing")
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"")
    with pytest.raises(BadModelError, match="holds no ONNX pipeline") as caught:
        find_components(tmp_path)
    assert caught.value.hint
    assert "sdort export" in caught.value.hint


def test_a_graph_without_inputs_is_nothing(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g () => (float[1, 1, 1] y) {
      y = Constant <value = float[1, 1, 1] {0}> () }"""
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    with pytest.raises(BadModelError, match="it maps nothing to y: float"):
        identify(tmp_path / "model.onnx")


def test_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    with pytest.raises(BadModelError, match="is not an ONNX model") as caught:
        find_components(tmp_path)
    assert caught.value.component == "unet"
    assert caught.value.hint
    assert "git lfs pull" in caught.value.hint
