"""The view "Images": its values equal the Python API, files are checked, and the page draws them."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from starlette.testclient import TestClient
from tests.predict.test_image_to_text import write_image
from tests.studio.conftest import TOKEN, StudioPage, Window
from tests.studio.test_alignment_view import unpack_response

import seqloom
from seqloom.data.shapes import draw_scenes, render
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.server import Studio, make_app
from seqloom.studio.views import VIEWS

SMALL = ["data.train=40", "data.dev=10", "data.test=10", "train.epochs=null", "train.steps=4", "train.warmup=2"]
SHAPES = ["data.corpus=shapes", "data.side=24"]
RUNS: dict[str, list[str]] = {
    "glimpses": ["glimpses-mnist", *SHAPES, "model.glimpses=3", "model.scales=2", "model.hidden=16", "batch.size=8"],
    "vit": [
        *("vit-mnist", *SHAPES, "batch.size=8", "model.image.patch=8", "model.image.d_model=16"),
        *("model.encoder.d_model=16", "model.encoder.d_ff=16", "model.encoder.layers=1", "model.encoder.heads=2"),
    ],
    "clips": ["video-digits-clips", "batch.size=8", "model.pooling=attention", "model.encoder=null"],
    "frames": ["video-digits-frames", "batch.size=8"],
    "draw": ["draw-mnist", *SHAPES, "images.channels=1", "model.steps=5", "model.hidden=16", "batch.size=8"],
    "whole": ["draw-mnist", *SHAPES, "model.attention=null", "model.steps=2", "model.hidden=16", "batch.size=8"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "runs"
    for name, (recipe, *options) in RUNS.items():
        seqloom.train_recipe(recipe, *options, *SMALL, out=path / name)
    return path


@pytest.fixture(scope="module")
def client(folder: Path) -> TestClient:
    headers = {"authorization": f"Bearer {TOKEN}", "host": "127.0.0.1"}
    return TestClient(make_app(RunFolder(folder), TOKEN), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "<img src=x onerror=alert(1)>.png"
    Pillow.fromarray(render(next(draw_scenes("test", 0, objects=(1, 1))), 24)).save(path)
    return path


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    rng, path = np.random.default_rng(3), tmp_path / "clip.gif"
    first, *others = [Pillow.fromarray(rng.integers(0, 256, (32, 32), dtype=np.uint8)) for _ in range(6)]
    first.save(path, save_all=True, append_images=others)
    return path


def request(run: str, path: Path) -> dict[str, Any]:
    return {"run": run, "name": path.name, "picture": base64.b64encode(path.read_bytes()).decode()}


@pytest.mark.parametrize("run", ["glimpses", "vit"])
def test_reasons_match_the_python_api(client: TestClient, folder: Path, picture: Path, run: str) -> None:
    answer = client.post("/api/images/classify", json=request(run, picture))
    assert answer.status_code == 200
    head, (pixels, *maps) = unpack_response(answer.content)
    (expected,) = seqloom.load(folder / run, "cpu").classify(picture, why=True)
    assert head["label"] == expected.label and head["maps"] == list(expected.why.maps)
    assert ("rollout" in head["maps"]) == (run == "vit")
    probabilities = [item["probability"] for item in head["labels"]]
    np.testing.assert_allclose(probabilities, [item.probability for item in expected.candidates], rtol=1e-5)
    np.testing.assert_array_equal(pixels, np.array(Pillow.open(picture)))
    for found, values in zip(maps, expected.why.maps.values(), strict=True):
        np.testing.assert_allclose(found, values, atol=2e-3 * np.abs(values).max())
    assert len(head["glimpses"]) == (3 if run == "glimpses" else 0)
    for found, glimpse in zip(head["glimpses"], expected.why.glimpses, strict=True):
        assert found["sides"] == [8, 16] and found["row"] == pytest.approx(glimpse.row)
        assert found["probability"] == pytest.approx(glimpse.probability, rel=1e-5)


def test_frames_match_the_python_api(client: TestClient, folder: Path, clip: Path) -> None:
    head, (pixels,) = unpack_response(client.post("/api/images/clip", json=request("clips", clip)).content)
    (expected,) = seqloom.load(folder / "clips", "cpu").classify(clip, why=True)
    assert head["label"] == expected.label and pixels.shape == (6, 32, 32, 3)
    assert list(head["weights"]) == ["occlusion", "attention"]
    for name, values in head["weights"].items():
        np.testing.assert_allclose(values, expected.why.maps[name], rtol=1e-5)
    head, _ = unpack_response(client.post("/api/images/clip", json=request("frames", clip)).content)
    tagged, same = seqloom.load(folder / "frames", "cpu").tag([clip, clip.read_bytes()])
    assert tagged.frames == same.frames and same.clip == ""
    assert [frame["label"] for frame in head["frames"]] == [frame.label for frame in tagged.frames]


@pytest.mark.parametrize("run", ["draw", "whole"])
def test_steps_match_the_python_api(client: TestClient, folder: Path, run: str) -> None:
    answer = client.post("/api/images/generate", json={"run": run, "samples": 2, "seed": 7})
    _, (canvases, *frames) = unpack_response(answer.content)
    expected = seqloom.load(folder / run, "cpu").generate(2, seed=7)
    assert canvases.shape == (*expected.canvases.shape[:4], 3)
    np.testing.assert_allclose(canvases, np.broadcast_to(255 * expected.canvases, canvases.shape), atol=0.501)
    assert len(frames) == (run == "draw")
    if run == "draw":
        np.testing.assert_allclose(frames[0], expected.frames, rtol=1e-6)
    other = client.post("/api/images/generate", json={"run": run, "samples": 2, "seed": 8})
    assert not np.array_equal(unpack_response(other.content)[1][0], canvases)


@pytest.mark.parametrize(
    ("path", "run", "message"),
    [
        ("classify", "clips", "clips is a classifier of clips. Choose a classifier of images."),
        ("classify", "draw", "draw is a model that generates images. Choose a classifier of images."),
        ("clip", "vit", "vit is a classifier of images. Choose a model of clips."),
    ],
)
def test_other_models_are_rejected(client: TestClient, picture: Path, path: str, run: str, message: str) -> None:
    answer = client.post(f"/api/images/{path}", json=request(run, picture))
    assert answer.status_code == 400 and answer.json()["error"] == message


@pytest.mark.parametrize("kind", ["text", "truncated", "huge"])
@pytest.mark.parametrize(("path", "run"), [("classify", "vit"), ("clip", "frames")])
def test_unusable_files_are_rejected(client: TestClient, tmp_path: Path, kind: str, path: str, run: str) -> None:
    write_image(tmp_path / "x.png", kind)
    answer = client.post(f"/api/images/{path}", json=request(run, tmp_path / "x.png"))
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("x.png ") and len(answer.json()["error"].splitlines()) == 1


def test_invalid_numbers_of_generated_images_are_rejected(client: TestClient) -> None:
    for body in ({"samples": 0}, {"samples": 37}, {"seed": -1}):
        assert client.post("/api/images/generate", json={"run": "draw", **body}).status_code == 422


def test_view_supports_models_of_images() -> None:
    suits = VIEWS["images"].suits
    tasks = ("classify-images", "classify-video", "tag-video", "generate-images")
    assert all(suits({"task": task, "model": {}}) for task in tasks)
    assert not suits({"task": "caption", "model": {"kind": "image-to-text"}})


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(window: Window, folder: Path) -> Iterator[StudioPage]:
    with Studio(folder, port=None).running() as studio, window.showing(studio) as opened:
        opened.page.goto("about:blank")  # an open page remembers the picture of the preceding test
        yield opened
    assert opened.errors == [] and opened.foreign_requests == []


def test_path_of_glimpses_is_drawn(page: StudioPage, folder: Path, picture: Path) -> None:
    opened = page.open("images", run="glimpses")
    assert "Choose a file" in opened.locator(".stage").inner_text()
    opened.get_by_label("Picture", exact=True).set_input_files(picture)
    opened.locator("figure[data-shown]").wait_for()
    (expected,) = seqloom.load(folder / "glimpses", "cpu").classify(picture, why=True)
    assert opened.locator(".label-line .best").inner_text().startswith(expected.label)
    assert opened.locator('[data-figure="glimpses"] circle').count() == 3
    assert opened.locator('[data-figure="glimpses"] .picture-overlay rect').count() == 6
    rows = page.table("glimpses")[1:]
    np.testing.assert_allclose([float(row[1]) for row in rows], [each.row for each in expected.why.glimpses], rtol=1e-4)
    assert opened.locator('[data-figure="maps"] .picture-panel').count() == 1 + len(expected.why.maps)
    cells = sum(values.size for values in expected.why.maps.values())
    assert len(page.table("maps")) == 1 + cells
    assert "onerror" not in opened.url and opened.locator(".view img").count() == 0


def test_frames_of_a_clip_are_drawn(page: StudioPage, folder: Path, clip: Path) -> None:
    opened = page.open("images", run="frames")
    opened.get_by_label("Clip (an animated image)", exact=True).set_input_files(clip)
    opened.locator("figure[data-shown]").wait_for()
    (tagged,) = seqloom.load(folder / "frames", "cpu").tag(clip)
    labels = opened.locator(".picture-label text").all_text_contents()
    assert labels == [f"{number} {frame.label}" for number, frame in enumerate(tagged.frames, start=1)]
    opened.get_by_label("Run", exact=True).select_option("clips")
    opened.locator("figure[data-shown] .frame-bars").first.wait_for()
    assert opened.locator(".frame-bars").count() == 2 * 6
    assert [row[0] for row in page.table("frames")] == ["frame", *map(str, range(1, 7))]


def test_steps_of_generated_images_are_drawn(page: StudioPage) -> None:
    opened = page.open("images", run="draw", samples="2", seed="3")
    opened.locator("figure[data-shown]").wait_for()
    assert opened.locator("figure h2").inner_text() == "The canvas after step 5 of 5"
    assert opened.locator(".picture-overlay rect").count() == 2
    opened.get_by_label("Step", exact=True).fill("2")
    assert opened.locator("figure h2").inner_text() == "The canvas after step 2 of 5" and "step=2" in opened.url
    opened.get_by_role("button", name="Play").click()
    opened.get_by_role("heading", name="The canvas after step 5 of 5").wait_for()
    opened.get_by_role("button", name="Play").wait_for()
    assert len(page.table("steps")) == 1 + 2 * 5
    opened.get_by_label("Images", exact=True).fill("3")
    opened.keyboard.press("Enter")
    opened.locator('figure[data-shown="2"]').wait_for()
    assert opened.locator(".picture-panel").count() == 3 and "samples=3" in opened.url


def test_unusable_file_is_reported_on_the_page(page: StudioPage, tmp_path: Path) -> None:
    page.refusals = True
    opened = page.open("images", run="vit")
    (tmp_path / "<b>x.png").write_bytes(b"no image")
    opened.get_by_label("Picture", exact=True).set_input_files(tmp_path / "<b>x.png")
    opened.get_by_role("alert").wait_for()
    assert "<b>x.png must be an image" in opened.get_by_role("alert").inner_text()
    assert opened.locator(".view b").count() == 0
