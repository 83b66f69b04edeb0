"""Attention over a picture: the weights equal the Python API, and the picture is checked and not stored."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from starlette.testclient import TestClient
from tests.predict.test_image_to_text import write_image
from tests.studio.conftest import StudioPage, Window
from tests.studio.test_alignment_view import unpack_response

import seqloom
from seqloom.data.shapes import draw_scenes, render
from seqloom.predict.image_to_text import ImageQuery
from seqloom.studio.run_folder import RunFolder
from seqloom.studio.safety import MAX_BODY_BYTES
from seqloom.studio.server import Studio, make_app
from seqloom.studio.views import VIEWS
from seqloom.studio.views.pictures import MAX_PICTURE_BYTES, MAX_REQUEST_BYTES

SMALL = ["data.train=60", "data.dev=12", "data.test=12", "data.side=24", "model.image.channels=[8,16]", "batch.size=16"]
STEPS = ["train.epochs=null", "train.steps=10", "train.evaluate_every=10", "train.warmup=2"]
TEXT = "a large red circle in the top left"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "runs"
    recurrent = "model.seq2seq={kind: recurrent-seq2seq, hidden: 16, attention: %s}"
    for name, overrides in {"shapes": [], "none": [recurrent % "null"]}.items():
        seqloom.train_recipe("caption-shapes", *SMALL, *STEPS, *overrides, out=path / name)
    seqloom.train_recipe("dialogue-shapes", *SMALL, *STEPS, out=path / "questions")
    return path


@pytest.fixture(scope="module")
def run_folder(folder: Path) -> RunFolder:
    return RunFolder(folder)


@pytest.fixture(scope="module")
def client(run_folder: RunFolder) -> TestClient:
    headers = {"authorization": "Bearer token", "host": "127.0.0.1"}
    return TestClient(make_app(run_folder, "token"), base_url="http://127.0.0.1", headers=headers)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "<img src=x onerror=alert(1)>.png"
    Pillow.fromarray(render(next(draw_scenes("test", 0)), 40)).save(path)
    return path


def question(content: bytes, **more: Any) -> dict[str, Any]:
    return {"run": "shapes", "name": "x.png", "picture": base64.b64encode(content).decode(), **more}


@pytest.mark.parametrize("target", [None, TEXT])
def test_weights_match_the_python_api(client: TestClient, folder: Path, picture: Path, target: str | None) -> None:
    answer = client.post("/api/alignment/picture", json=question(picture.read_bytes(), target=target))
    assert answer.status_code == 200
    head, (maps, on_query, pixels) = unpack_response(answer.content)
    model = seqloom.load(folder / "shapes", "cpu")
    if target is None:
        (expected,) = model.caption(picture, attention=True, max_length=100)
    else:
        expected = model.force(ImageQuery(picture), target)
        assert head["text"] == TEXT and head["given"]
    assert head["words"] == expected.text.split() and head["logProb"] == pytest.approx(expected.log_prob)
    np.testing.assert_allclose(maps, [word.weights for word in expected.words], atol=6e-4)
    assert on_query.shape == (len(head["words"]), 0)
    np.testing.assert_array_equal(pixels, np.array(Pillow.open(picture)))


def test_picture_is_neither_written_nor_cached(
    client: TestClient, run_folder: RunFolder, folder: Path, picture: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert client.post("/api/alignment/picture", json=question(picture.read_bytes())).status_code == 200
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert not run_folder._results


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("text", "x.png must be an image (PNG"),
        ("truncated", "x.png is a damaged or truncated image"),
        ("huge", "x.png must have at most 67,108,864 pixels"),
    ],
)
def test_unusable_pictures_are_rejected(client: TestClient, tmp_path: Path, kind: str, message: str) -> None:
    write_image(tmp_path / "file", kind)
    answer = client.post("/api/alignment/picture", json=question((tmp_path / "file").read_bytes()))
    assert answer.status_code == 400 and message in answer.json()["error"]


def test_requests_are_checked(client: TestClient, picture: Path) -> None:
    content = picture.read_bytes()
    invalid = client.post("/api/alignment/picture", json={**question(content), "picture": "secret!"})
    assert invalid.status_code == 422 and "must be base64" in invalid.text and "secret" not in invalid.text
    without = client.post("/api/alignment/picture", json=question(content, run="none"))
    assert without.status_code == 400 and "has no attention weights" in without.json()["error"]
    empty = client.post("/api/alignment/picture", json=question(b""))
    assert empty.status_code == 400 and len(empty.json()["error"].splitlines()) == 1


def test_only_pictures_may_be_large(client: TestClient, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    Pillow.fromarray(pixels).save(tmp_path / "large.bmp")
    content = (tmp_path / "large.bmp").read_bytes()
    assert MAX_BODY_BYTES < len(content) < MAX_PICTURE_BYTES
    assert client.post("/api/alignment/picture", json=question(content)).status_code == 200
    other = client.post("/api/alignment", json=question(content))
    assert other.status_code == 413 and f"{MAX_BODY_BYTES:,}" in other.json()["error"]
    declared = {"content-length": str(MAX_REQUEST_BYTES + 1)}
    refused = client.post("/api/alignment/picture", content=b"{}", headers=declared)
    assert refused.status_code == 413 and f"{MAX_REQUEST_BYTES:,}" in refused.json()["error"]


def test_view_supports_models_with_attention() -> None:
    suits = VIEWS["alignment"].suits
    assert suits({"task": "caption", "model": {"kind": "image-to-text"}})
    for attention, expected in ((None, False), ({"order": "bahdanau"}, True)):
        seq2seq = {"kind": "recurrent-seq2seq", "attention": attention}
        assert suits({"task": "caption", "model": {"kind": "image-to-text", "seq2seq": seq2seq}}) == expected


def test_question_is_read_with_the_picture(client: TestClient, folder: Path, picture: Path) -> None:
    asked = {"run": "questions", "text": "what colour is the circle"}
    answer = client.post("/api/alignment/picture", json=question(picture.read_bytes(), **asked))
    assert answer.status_code == 200
    head, (maps, on_query, _) = unpack_response(answer.content)
    (expected,) = seqloom.load(folder / "questions", "cpu").ask(picture, asked["text"], attention=True, max_length=100)
    assert head["text"] == expected.text and head["query"] == [*asked["text"].split(), ""]
    np.testing.assert_allclose(on_query, [word.source_weights for word in expected.words], atol=6e-4)
    np.testing.assert_allclose(maps.sum(axis=(1, 2)) + on_query.sum(axis=1), 1, atol=1e-2)
    blank = client.post("/api/alignment/picture", json=question(picture.read_bytes(), run="questions"))
    assert blank.status_code == 400 and blank.json()["error"] == "Enter a question about the picture."


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def page(window: Window, folder: Path) -> Iterator[StudioPage]:
    with Studio(folder, port=None).running() as studio, window.showing(studio) as opened:
        opened.page.goto("about:blank")  # an open page remembers the picture of the preceding test
        yield opened
    assert opened.errors == [] and opened.foreign_requests == []


def test_chosen_picture_is_drawn_with_the_weights(page: StudioPage, folder: Path, picture: Path) -> None:
    opened = page.open("alignment", run="shapes")
    assert "Choose a picture" in opened.locator(".answer").inner_text()
    opened.get_by_label("Picture", exact=True).set_input_files(picture)
    opened.locator("figure[data-shown]").wait_for()
    (expected,) = seqloom.load(folder / "shapes", "cpu").caption(picture, attention=True, max_length=100)
    assert opened.locator(".output-text").inner_text() == expected.text
    labels = opened.locator(".picture-label text").all_text_contents()
    assert labels == ["picture", *expected.text.split()]
    table = page.table("alignment")
    assert [row[0] for row in table[1:]] == expected.text.split() and len(table[0]) == 37
    numbers = [[float(cell) for cell in row[1:]] for row in table[1:]]
    np.testing.assert_allclose(numbers, [word.weights.ravel() for word in expected.words], atol=6e-4)
    colours = opened.locator(".picture-canvas").first.evaluate(
        "node => [...node.getContext('2d').getImageData(0, 0, node.width, node.height).data]"
    )
    shown = np.array(colours).reshape(40, 40, 4)[:, :, :3]
    np.testing.assert_array_equal(shown, np.array(Pillow.open(picture)))
    opened.get_by_label("Force this text").fill(TEXT)
    opened.keyboard.press("Enter")
    opened.locator(".output-text", has_text=TEXT).wait_for()
    assert opened.evaluate("JSON.stringify({...localStorage, ...sessionStorage})").count("<img") == 0
    assert "onerror" not in opened.url and opened.locator(".view img").count() == 0


def test_question_is_asked_on_the_page(page: StudioPage, picture: Path) -> None:
    opened = page.open("alignment", run="questions")
    opened.get_by_label("Picture", exact=True).set_input_files(picture)
    opened.locator("figure[data-shown]").wait_for()
    assert opened.get_by_label("Question").input_value() == "what colour is the circle?"
    assert "%)" in opened.locator(".picture-label text").nth(1).text_content()
    opened.get_by_label("Question").fill("what shape is this")
    opened.keyboard.press("Enter")
    opened.locator('figure[data-shown="2"]').wait_for()
    assert "this" in page.table("alignment")[0] and "END" in page.table("alignment")[0]


def test_unusable_picture_is_reported_on_the_page(page: StudioPage, tmp_path: Path) -> None:
    page.refusals = True
    opened = page.open("alignment", run="shapes")
    (tmp_path / "<b>x.png").write_bytes(b"no image")
    opened.get_by_label("Picture", exact=True).set_input_files(tmp_path / "<b>x.png")
    opened.get_by_role("alert").wait_for()
    assert "<b>x.png must be an image" in opened.get_by_role("alert").inner_text()
    assert opened.locator(".view b").count() == 0
