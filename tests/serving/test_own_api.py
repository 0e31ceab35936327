"""sdort's own API, as the page speaks it."""

from __future__ import annotations

import base64
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.adapter_files import make_lora
from support.pipelines import export_family, trace_folder
from support.serving import Running, data_url, pixels, png, running

from sdort.serving import service as service_module


def test_info_says_what_there_is(served: Running) -> None:
    info = served.client.get("/api/info").json()
    [model] = info["models"]
    assert (model["id"], model["sizes"], model["any_size"]) == ("tiny", [[64, 64]], False)
    assert model["tasks"] == ["text", "image", "inpaint"]
    assert model["default"] == {"steps": 25, "guidance": 7.5, "scheduler": "dpm++-2m-karras", "size": [64, 64]}
    assert {"euler", "euler-a", "dpm++-2m-karras"} <= {*info["samplers"]}
    limits = {"steps": 100, "images": 8, "prompt_characters": 4000, "upload_bytes": 32_000_000, "queue": 64}
    assert (info["limits"], info["adapters"]) == (limits, [])


def test_events_tell_of_a_drawing_from_the_queue_to_its_images(served: Running) -> None:
    drawing = served.draw(prompt="a cat", num_images=2, steps=8, seed=5)
    events = served.events(drawing)
    names = [name for name, _ in events]
    assert names[-1] == "done"
    assert names.index("step") < names.index("image")
    steps = [data["step"] for name, data in events if name == "step"]
    assert steps == sorted(steps)
    assert all(data["steps"] == 8 for name, data in events if name == "step")
    for name, data in events:
        if name == "preview":
            assert Image.open(io.BytesIO(base64.b64decode(data["image"].partition(",")[2]))).format == "JPEG"
    images = {data["index"]: data for name, data in events if name == "image"}
    assert sorted(images) == [0, 1]
    assert [images[index]["seed"] for index in (0, 1)] == [5, 6]
    answer = served.client.get(images[1]["url"])
    assert answer.headers["content-type"] == "image/png"
    texts = Image.open(io.BytesIO(answer.content)).info
    assert texts["parameters"] == images[1]["parameters"]
    assert "a cat" in texts["parameters"]


def test_who_comes_later_gets_the_present_state_first(served: Running) -> None:
    drawing = served.draw(num_images=2)
    first, second = served.events(drawing), served.events(drawing)
    assert [name for name, _ in second] == ["image", "image", "done"]
    assert [entry for entry in first if entry[0] in ("image", "done")] == second


def test_an_image_is_begun_from_and_a_mask_keeps_the_rest(served: Running) -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[:, 32:] = 255
    with io.BytesIO() as file:
        Image.fromarray(mask).save(file, "PNG")
        drawing = served.draw(init_image=data_url(png()), mask=data_url(file.getvalue()), strength=0.9, seed=1, steps=4)
    assert served.events(drawing)[-1][0] == "done"
    drawn = pixels(served.client.get(f"/api/images/{drawing}/0.png").content)
    np.testing.assert_allclose(drawn[:, :16], np.broadcast_to((200, 30, 30), (64, 16, 3)), atol=2)
    assert abs(drawn[:, 48:] - (200, 30, 30)).max() > 20


def test_settings_are_read_from_what_was_drawn(served: Running) -> None:
    body = {"prompt": "a cat", "negative_prompt": "fog", "steps": 3, "guidance": 4.0, "seed": 2**62 + 1,
            "scheduler": "euler-a", "width": 64, "height": 64}  # fmt: skip
    drawing = served.draw(**body)
    served.events(drawing)
    content = served.client.get(f"/api/images/{drawing}/0.png").content
    answer = served.client.post("/api/settings", content=content)
    assert answer.json() == {**body, "num_images": 1}
    own = served.draw(steps=3, guidance=4.0)
    assert served.events(own)[-1][0] == "done"
    told = served.client.post("/api/settings", content=served.client.get(f"/api/images/{own}/0.png").content).json()
    assert told["scheduler"] in served.client.get("/api/info").json()["samplers"]
    other = served.draw(**answer.json())
    served.events(other)
    again = served.client.get(f"/api/images/{other}/0.png").content
    np.testing.assert_array_equal(pixels(again), pixels(content))


def test_an_image_that_says_nothing_has_no_settings(served: Running) -> None:
    answer = served.client.post("/api/settings", content=png())
    assert answer.status_code == 422
    assert "says nothing of how it was drawn" in answer.json()["error"]["message"]
    assert served.client.post("/api/settings", content=b"no image").status_code == 422


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"width": 100, "height": 100}, 400, "width"),
        ({"steps": 101}, 400, "steps"),
        ({"num_images": 9}, 400, "num_images"),
        ({"prompt": "a" * 4001}, 400, "prompt"),
        ({"negative_prompt": "a" * 4001}, 400, "negative_prompt"),
        ({"model": "other"}, 404, "model"),
        ({"scheduler": "magic"}, 400, "scheduler"),
        ({"seed": -1}, 422, "seed"),
        ({"seed": 2**63}, 422, "seed"),
        ({"guidance": 1e9}, 422, "guidance"),
        ({"steps": 0}, 422, "steps"),
        ({"unknown": 1}, 422, "unknown"),
        ({"adapters": [{"name": "../../etc/passwd"}]}, 400, "adapters"),
        ({"init_image": "/etc/passwd"}, 400, "init_image"),
        ({"init_image": "data:text/plain;base64,AAAA"}, 400, "init_image"),
        ({"init_image": data_url(b"no image")}, 400, "init_image"),
        ({"init_image": data_url(png(size=(4096, 1025)))}, 400, "init_image"),
        ({"init_image": data_url(png()), "mask": "https://example.com/a.png"}, 400, "mask"),
        ({"prompt": "<lora:../../etc/passwd:1> __../../etc/passwd__"}, 400, None),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_request_that_is_wrong_is_refused_with_its_field(
    served: Running, body: dict[str, Any], status: int, field: str | None
) -> None:
    answer = served.post("/api/images", **{"prompt": "a", "steps": 2, **body})
    assert (answer.status_code, answer.json()["error"].get("field")) == (status, field), answer.text
    assert "passwd" not in answer.json()["error"]["message"] or "there is no" in answer.json()["error"]["message"]
    assert len(served.service.waiting) == 0


def test_a_size_that_is_not_warm_is_refused_with_the_list(served: Running) -> None:
    message = served.post("/api/images", prompt="a", width=128, height=64).json()["error"]["message"]
    assert message == "tiny draws no images of 128x64 pixels here. It draws: 64x64."


def test_other_sizes_are_drawn_where_that_is_allowed(pipeline: Path) -> None:
    with running(pipeline, any_size=True) as served:
        drawing = served.draw(width=128, height=64)
        assert served.events(drawing)[-1][0] == "done"
        assert pixels(served.client.get(f"/api/images/{drawing}/0.png").content).shape == (64, 128, 3)
        assert served.post("/api/images", prompt="a", width=4096, height=4096).status_code == 400


def test_a_drawing_is_cancelled_while_it_waits_and_while_it_is_drawn(served: Running) -> None:
    drawn, waiting = served.draw(steps=100), served.draw(steps=99)
    stream: list[Any] = []
    thread = threading.Thread(target=lambda: stream.extend(served.events(drawn)))
    thread.start()
    for drawing in (waiting, drawn):
        assert served.client.delete(f"/api/images/{drawing}").status_code == 204
    thread.join(30)
    assert stream[-1] == ("cancelled", {})
    assert served.events(waiting)[-1] == ("cancelled", {})
    assert served.client.get(f"/api/images/{waiting}/0.png").status_code == 404
    assert len(served.service.waiting) == 0


def test_what_nobody_asks_for_is_given_up(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "ABANDONED", 0.2)
    busy, left = served.draw(steps=100, num_images=8), served.draw(steps=99)
    drawing = served.service.find(left)
    assert drawing.unwanted.wait(10)
    assert drawing.end is not None
    assert drawing.end.name == "cancelled"
    served.client.delete(f"/api/images/{busy}")


def test_what_takes_too_long_fails(pipeline: Path) -> None:
    with running(pipeline, timeout=0.3) as served:
        name, data = served.events(served.draw(steps=100, num_images=8))[-1]
        assert (name, data["message"]) == ("failed", "it took longer than 0.3 seconds")
        answer = served.post("/v1/images/generations", prompt="a", n=8, steps=100)
        assert answer.status_code == 504


def test_few_results_are_kept_and_the_oldest_go(pipeline: Path) -> None:
    with running(pipeline, keep=2) as served:
        drawings = []
        for seed in range(3):
            drawings.append(served.draw(seed=seed))
            assert served.events(drawings[-1])[-1][0] == "done"
        states = [served.client.get(f"/api/images/{drawing}/0.png").status_code for drawing in drawings]
        assert states == [404, 200, 200]
        assert served.client.get(f"/api/images/{drawings[0]}/events").status_code == 404


def test_adapters_are_asked_for_by_their_names(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = export_family("sd1", tmp_path, trace_folder(request.config))
    (tmp_path / "loras" / "styles").mkdir(parents=True)
    make_lora(made.checkpoint, tmp_path / "loras" / "styles" / "ink.safetensors", 1)
    (tmp_path / "secret.safetensors").write_bytes(b"no adapter")
    with running(made.out, adapter_folder=tmp_path / "loras") as served:
        assert served.client.get("/api/info").json()["adapters"] == ["styles/ink"]
        plain, _ = drawn_by(served, seed=1)
        inked, content = drawn_by(served, seed=1, adapters=[{"name": "styles/ink", "weight": 0.75}])
        tagged, _ = drawn_by(served, seed=1, prompt="a <lora:ink:0.75>")
        assert abs(inked - plain).max() > 1
        assert abs(tagged - plain).max() > 1
        np.testing.assert_array_equal(drawn_by(served, seed=1)[0], plain)
        told = served.client.post("/api/settings", content=content).json()
        assert told["adapters"] == [{"name": "styles/ink", "weight": 0.75}]
        for name in ("ink", "../secret", str(tmp_path / "secret"), "styles/ink.safetensors"):
            answer = served.post("/api/images", prompt="a", adapters=[{"name": name}])
            assert (answer.status_code, answer.json()["error"]["field"]) == (400, "adapters")
        answer = served.post("/api/images", prompt="a <lora:../secret:1>")
        assert answer.status_code == 400
        assert str(tmp_path) not in answer.text


def drawn_by(served: Running, **body: Any) -> tuple[Any, bytes]:
    drawing = served.draw(**body)
    assert served.events(drawing)[-1][0] == "done"
    content = served.client.get(f"/api/images/{drawing}/0.png").content
    return pixels(content), content
