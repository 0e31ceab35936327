"""OpenAI's and A1111's endpoints, held to the clients that people use."""

from __future__ import annotations

import base64
import io
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import webuiapi
from PIL import Image
from support.serving import Running, pixels, png, running


@pytest.fixture(scope="module")
def client(served: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def webui(served: Running) -> Any:
    return webuiapi.WebUIApi(port=served.port, sampler="Euler a", steps=2)


def decoded(image: Any) -> Any:
    return pixels(base64.b64decode(image.b64_json))


def holed() -> bytes:
    """A red picture whose right half is transparent."""
    picture = np.full((64, 64, 4), (200, 30, 30, 255), np.uint8)
    picture[:, 32:, 3] = 0
    with io.BytesIO() as file:
        Image.fromarray(picture).save(file, "PNG")
        return file.getvalue()


def test_openai_lists_models_and_draws(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "sdort"
    answer = client.images.generate(
        model="tiny", prompt="a cat", n=2, size="64x64", response_format="b64_json", extra_body={"steps": 2, "seed": 1}
    )
    first, second = map(decoded, answer.data or [])
    assert first.shape == (64, 64, 3)
    assert (first != second).any()


@pytest.mark.parametrize("with_mask", [True, False], ids=["mask", "hole of the image"])
def test_openai_edits_draw_what_is_transparent(client: openai.OpenAI, with_mask: bool) -> None:
    files: dict[str, Any] = {"image": png(), "mask": holed()} if with_mask else {"image": holed()}
    answer = client.images.edit(**files, prompt="a cat", extra_body={"steps": 4, "seed": 1})
    [drawn] = map(decoded, answer.data or [])
    np.testing.assert_allclose(drawn[:, :16], np.broadcast_to((200, 30, 30), (64, 16, 3)), atol=2)
    assert abs(drawn[:, 48:] - (200, 30, 30)).max() > 20


def test_openai_gets_errors_as_its_own(client: openai.OpenAI, served: Running) -> None:
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.images.generate(model="dall-e-3", prompt="a")
    with pytest.raises(openai.BadRequestError, match="draws no images of 256x256"):
        client.images.generate(prompt="a", size="256x256")
    with pytest.raises(openai.UnprocessableEntityError, match="stream"):
        client.images.generate(prompt="a", stream=True)
    with pytest.raises(openai.BadRequestError, match="no transparent part"):
        client.images.edit(image=png(), mask=png(), prompt="a")
    answer = served.client.post("/v1/images/edits", data={"prompt": "a"}, files={"other": png()})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "image")
    answer = served.client.post("/v1/images/edits", data={"n": "x"}, files={"image": png()})
    assert answer.status_code == 422


def test_a1111_draws_text_and_images(webui: Any) -> None:
    result = webui.txt2img(prompt="a cat", negative_prompt="fog", seed=5, width=64, height=64, batch_size=2)
    assert [np.asarray(image).shape for image in result.images] == [(64, 64, 3)] * 2
    assert result.info["all_seeds"] == [5, 6]
    assert "Sampler: Euler a" in result.info["infotexts"][0]
    assert "Negative prompt: fog" in result.info["infotexts"][0]
    mask = Image.new("L", (64, 64))
    mask.paste(255, (32, 0, 64, 64))
    red = Image.open(io.BytesIO(png()))
    drawn = webui.img2img([red], prompt="a cat", mask_image=mask, seed=1, width=64, height=64, denoising_strength=0.9)
    image = np.asarray(drawn.images[0]).astype(int)
    np.testing.assert_allclose(image[:, :16], np.broadcast_to((200, 30, 30), (64, 16, 3)), atol=2)
    other = webui.img2img(
        [red], mask_image=mask, inpainting_mask_invert=1, seed=1, width=64, height=64, denoising_strength=0.9
    )
    image = np.asarray(other.images[0]).astype(int)
    np.testing.assert_allclose(image[:, 48:], np.broadcast_to((200, 30, 30), (64, 16, 3)), atol=2)


def test_a1111_lists_what_there_is(webui: Any) -> None:
    assert {"Euler a", "DPM++ 2M"} <= {sampler["name"] for sampler in webui.get_samplers()}
    assert webui.util_get_model_names() == ["tiny"]
    webui.util_set_model("tiny")
    assert webui.get_options()["sd_model_checkpoint"] == "tiny"
    assert {"karras", "automatic"} <= {each["name"] for each in webui.get_schedulers()}


def test_a1111_has_its_schedule_types(webui: Any) -> None:
    texts = {
        scheduler: webui.txt2img(width=64, height=64, sampler_name="DPM++ 2M", scheduler=scheduler).info["infotexts"][0]
        for scheduler in ("Karras", "karras", "automatic", "Exponential")
    }
    assert ["Schedule type: Karras" in text for text in texts.values()] == [True, True, True, False]
    assert "Schedule type: Exponential" in texts["Exponential"]


@pytest.mark.parametrize(
    "more", [{"enable_hr": True}, {"restore_faces": True}, {"tiling": True}, {"alwayson_scripts": {"x": {"args": [1]}}}]
)
def test_a1111_refuses_what_would_be_another_image(webui: Any, more: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=f"422.*{next(iter(more))}"):
        webui.txt2img(width=64, height=64, **more)


def test_a1111_tells_progress_and_interrupts(webui: Any) -> None:
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(webui.txt2img(width=64, height=64, steps=100, batch_size=8))
    )
    assert webui.get_progress()["state"]["job_count"] == 0
    thread.start()
    for _ in range(500):
        progress = webui.get_progress()
        if progress["progress"] > 0 and progress["current_image"]:
            break
        time.sleep(0.005)
    assert 0 < progress["progress"] <= 1
    assert progress["state"]["sampling_steps"] == 100
    assert Image.open(io.BytesIO(base64.b64decode(progress["current_image"]))).format == "JPEG"
    webui.interrupt()
    thread.join(30)
    [result] = results
    assert len(result.images) < 8


def test_models_are_asked_for_by_name_and_take_turns_in_memory(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(f"one={pipeline}", f"two={pipeline}") as served:
        engine = served.engine
        assert engine.open_models == ["one", "two"]
        monkeypatch.setattr(engine, "_has_room", lambda model, size: not engine.open_models)
        engine._open.pop("one").close()
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)
        for name in ("one", "two", "one"):
            client.images.generate(model=name, prompt="a", extra_body={"steps": 2})
            assert engine.open_models == [name]
