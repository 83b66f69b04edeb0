"""The view "Vectors": coordinates and cosines equal those of the model.

Addresses restore the view, and a plot of ten thousand points can be moved.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.studio.conftest import StudioPage, Window

import seqloom
from seqloom.data.word_vectors import write_vectors
from seqloom.inspect.views.points import project_tsne
from seqloom.predict.word_vectors import compute_points, import_vectors
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS

suits = VIEWS["vectors"].suits

Array = np.ndarray[Any, Any]
MANY = 10_000
# Simulate pointer input with one step per frame, and return the median time between frames.
FRAMES = """async (kind) => {
    const canvas = document.querySelector("canvas.scatter"), box = canvas.getBoundingClientRect();
    const pointer = { button: 0, pointerId: 1, bubbles: true, cancelable: true };
    const at = (x, y) => ({ ...pointer, clientX: box.left + x, clientY: box.top + y });
    canvas.setPointerCapture = () => {};
    const gaps = [];
    let last = performance.now();
    if (kind === "drag") canvas.dispatchEvent(new PointerEvent("pointerdown", at(300, 200)));
    for (let i = 1; i <= 40; i++) {
        const deltaY = i <= 20 ? -60 : 60;
        if (kind === "wheel") canvas.dispatchEvent(new WheelEvent("wheel", { ...at(400, 220), deltaY }));
        else canvas.dispatchEvent(new PointerEvent("pointermove", at(300 + 3 * i, 200 + 2 * i)));
        await new Promise(requestAnimationFrame);
        gaps.push(performance.now() - last);
        last = performance.now();
    }
    if (kind === "drag") canvas.dispatchEvent(new PointerEvent("pointerup", at(420, 280)));
    return gaps.sort((one, other) => one - other)[20];
}"""
# The fraction of pixels that differ from the background
PIXELS = """() => {
    const canvas = document.querySelector("canvas.scatter");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    let inked = 0;
    for (let at = 0; at < pixels.length; at += 4) inked += pixels[at] !== pixels[0] || pixels[at + 1] !== pixels[1];
    return inked / (pixels.length / 4);
}"""


@pytest.fixture(scope="module")
def words(runs: Path) -> Any:
    return seqloom.load(runs / "words", "cpu")


def project_pca(vectors: Array) -> Array:
    """Compute PCA by SVD, which the studio does not use."""
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    points = (left * sizes)[:, :2]
    signs = np.sign(points[np.abs(points).argmax(axis=0), [0, 1]])
    projected: Array = points * signs
    return projected


def coordinates(table: list[list[str]]) -> Array:
    return np.array([[float(cell) for cell in row[1:3]] for row in table[1:]])


def read_neighbours(page: Any, panel: str) -> list[tuple[str, Any]]:
    rows = page.locator(f'.panel[data-panel="{panel}"] ol li')
    rows.first.wait_for()
    entries = rows.evaluate_all("rows => rows.map(row => [row.children[0].textContent, row.children[1].textContent])")
    return [(name.removesuffix(" (not shown)"), float(value.replace("−", "-"))) for name, value in entries]


# --- values -----------------------------------------------------------------------------------------------------------


def test_positions_match_pca_and_colours_match_counts(studio_page: StudioPage, words: Any) -> None:
    studio_page.open("vectors", run="words", n="500")
    table = studio_page.table("vectors")
    assert table[0] == ["Words", "x", "y", "count in the training text"]
    assert [row[0] for row in table[1:]] == words.space.words[:500]
    np.testing.assert_allclose(coordinates(table), project_pca(words.space.unit[:500].astype(float)), atol=2e-5)
    counts = words.model.counts.sort(descending=True, stable=True).values[:500].tolist()
    assert [int(row[3].replace(",", "")) for row in table[1:]] == counts


def test_neighbours_and_analogies_match_the_python_api(studio_page: StudioPage, words: Any) -> None:
    page = studio_page.open("vectors", run="words", find="class")
    expected = [(neighbour.word, round(neighbour.score, 3)) for neighbour in words.nearest("class", 10)]
    assert read_neighbours(page, "near") == [(name, pytest.approx(score, abs=1e-3)) for name, score in expected]
    for name, word in (("a", "class"), ("b", "classes"), ("c", "object")):
        page.get_by_role("textbox", name=name, exact=True).fill(word)
    page.get_by_role("button", name="Solve").click()
    expected = [(neighbour.word, neighbour.score) for neighbour in words.analogy("class", "classes", "object", 6)]
    assert read_neighbours(page, "analogy") == [(name, pytest.approx(score, abs=1e-3)) for name, score in expected]
    assert (
        page.locator('.panel[data-panel="analogy"] .chosen').text_content()
        == f"class : classes = object : {expected[0][0]}"
    )
    assert "a=class&b=classes&c=object" in page.url and "find" not in page.url
    page.reload()
    assert read_neighbours(page, "analogy")[0][0] == expected[0][0]


def test_tsne_matches_the_python_api(studio_page: StudioPage, words: Any) -> None:
    page = studio_page.open("vectors", run="words", map="tsne", n="200", perplexity="10")
    page.locator('.vectors-stage[data-state="done"]').wait_for()
    *_, last = project_tsne(compute_points(words, "words"), 200, perplexity=10)
    far = np.abs(last.points).max()
    np.testing.assert_allclose(coordinates(studio_page.table("vectors")), last.points, atol=2e-5 * far)


def test_tsne_is_streamed_then_cached(client: TestClient) -> None:
    ask = {"run": "words", "count": 60, "perplexity": 7}
    steps = [line["step"] for line in map(json.loads, client.post("/api/vectors/tsne", json=ask).text.splitlines())]
    assert steps == list(range(25, 751, 25))
    assert len(client.post("/api/vectors/tsne", json=ask).text.splitlines()) == 1


# --- controls ---------------------------------------------------------------------------------------------------------


def test_search_lists_matching_words_and_selects_the_first(studio_page: StudioPage, words: Any) -> None:
    page = studio_page.open("vectors", run="words", n="500")
    page.get_by_role("searchbox", name="Search").fill("CLASS")
    listed = page.locator(".names button").all_text_contents()
    assert listed[0] == "class" and set(listed) == {name for name in words.space.words[:500] if "class" in name.lower()}
    page.get_by_role("searchbox", name="Search").press("Enter")
    assert read_neighbours(page, "near")[0][0] == words.nearest("class", 1)[0].word
    assert "find=class" in page.url
    page.locator('.panel[data-panel="near"] ol button').first.click()
    page.wait_for_url(lambda url: "find=class" not in url.split("&"))


def test_hovered_point_is_described_and_clicked_point_selected(studio_page: StudioPage, words: Any) -> None:
    page = studio_page.open("vectors", run="words", n="500")
    points = coordinates(studio_page.table("vectors"))
    box = page.locator("canvas.scatter").bounding_box()
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([box["width"] / 2 - 26, box["height"] / 2 - 26]) / ((high - low) / 2)
    scale = np.array([min(room) * min(max(room[0] / room[1], 1), 1.5), -min(room)])
    pixels = np.array([box["width"], box["height"]]) / 2 + (points - (low + high) / 2) * scale
    distances = ((pixels[:, None] - pixels) ** 2).sum(axis=2) + np.diag(np.full(len(pixels), np.inf))
    alone = int(distances.min(axis=1).argmax())  # the point with the largest distance to its nearest neighbour
    page.mouse.move(box["x"] + pixels[alone, 0] + 2, box["y"] + pixels[alone, 1] - 2)
    name = words.space.words[alone]
    readout = page.locator(".scatter-container .readout")
    assert readout.text_content().startswith(f"{name} · count in the training text: ")
    page.mouse.down()
    page.mouse.up()
    assert read_neighbours(page, "near")[0][0] == words.nearest(name, 1)[0].word


def test_keys_pan_and_zoom_and_update_address(studio_page: StudioPage) -> None:
    page = studio_page.open("vectors", run="words", n="500")
    page.locator("canvas.scatter").focus()
    for key in ("ArrowRight", "ArrowUp", "+", "+"):
        page.keyboard.press(key)
    page.wait_for_url(lambda url: "1.690" in url)  # 1.3 · 1.3
    page.keyboard.press("0")
    page.wait_for_url(lambda url: "at=" not in url)


def test_clicking_the_legend_isolates_a_group(studio_page: StudioPage) -> None:
    page = studio_page.open("vectors", run="tagger", n="500")
    key = page.locator(".scatter-key [role=button]")
    key.first.wait_for()
    before = page.evaluate(PIXELS)
    group = key.first.get_attribute("aria-label")
    key.first.focus()
    page.keyboard.press("Enter")
    assert key.first.get_attribute("aria-pressed") == "true" and group == "Show only O"
    assert "only=0" in page.url and before > 0.001
    rows = studio_page.table("vectors")
    assert rows[0][3] == "most frequent tag" and {row[3] for row in rows[1:]} >= {"O", "B-LOC"}


def test_texts_of_the_user_are_projected_and_escaped(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("vectors", run="classifier", kind="sentences", lines="a\nb\nc\nd")
    lines = ["<img src=x onerror=alert(1)>", "Montag, 3. Mai", "lundi 3 mai", "الاثنين ٣ مايو", "五月三日"]
    page.get_by_role("textbox", name="Texts", exact=True).fill("\n".join([*lines, "", lines[1]]))
    page.get_by_role("button", name="Project").click()
    page.get_by_text("5 texts, ").wait_for()
    table = studio_page.table("vectors")
    assert [row[0] for row in table[1:]] == lines
    vectors = seqloom.load(runs / "classifier", "cpu").embed(lines, normalize=True)
    np.testing.assert_allclose(coordinates(table), project_pca(vectors.astype(float)), atol=2e-4)
    assert page.locator(".view img").count() == 0


def test_invalid_requests_are_explained(studio_page: StudioPage, client: TestClient) -> None:
    page = studio_page.open("vectors", run="words", find="clas")
    page.locator("[data-panel=near] .problem", has_text="has no vector of 'clas'; did you mean class").wait_for()
    studio_page.errors.clear()  # the browser logs the rejected request
    answer = client.post("/api/vectors", json={"run": "words", "kind": "sentences", "lines": "one\none"})
    assert answer.status_code == 400 and "two different lines" in answer.json()["error"]
    assert client.post("/api/vectors", json={"run": "words", "kind": "tokens"}).status_code == 400
    assert client.post("/api/vectors", json={"run": "words", "count": 20_001}).status_code == 422
    assert client.post("/api/vectors", json={"run": "hmm-tagger"}).json()["error"].endswith("words, tokens or texts.")


def test_view_supports_only_models_with_vectors() -> None:
    assert suits({"task": "word-vectors"}) and suits({"task": "translate"}) and suits({"task": "tag"})
    assert not suits({"task": "hmm-tag"}) and not suits({"task": "forecast"}) and not suits({"task": "ngram"})


@pytest.mark.parametrize("run", ["lm-lstm", "gpt", "bert", "translate-gru", "translate-transformer", "classifier"])
def test_every_model_kind_has_points(client: TestClient, runs: Path, run: str) -> None:
    model = seqloom.load(runs / run, "cpu")
    first = client.post("/api/vectors", json={"run": run}).json()
    assert first["kinds"][-1] == "sentences" and first["total"] == len(compute_points(model, first["kind"]))
    lines = {"run": run, "kind": "sentences", "lines": "one two\nthree four\nfive six\nseven eight"}
    response = client.post("/api/vectors", json=lines).json()
    assert response["names"] == lines["lines"].split("\n") and np.isfinite(response["points"]).all()


# --- ten thousand points ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("crowd")
    vectors = np.random.default_rng(1).normal(size=(MANY, 8)).astype(np.float32)
    write_vectors(folder / "many.txt", [f"word{n}" for n in range(MANY)], vectors, "text")
    import_vectors(folder / "many.txt", folder / "many")
    with Studio(folder, port=None).running() as serving:
        yield serving


def test_ten_thousand_points_pan_and_zoom_smoothly(window: Window, crowd: Studio) -> None:
    with window.showing(crowd) as opened:
        page = opened.open("vectors", run="many", n=str(MANY))
        page.get_by_text(f"{MANY:,} words, 8 dimensions").wait_for()
        assert page.evaluate(PIXELS) > 0.03
        medians = {kind: page.evaluate(FRAMES, kind) for kind in ("drag", "wheel", "hover")}
    assert max(medians.values()) < 50, medians  # the median is 17 on an idle machine
    assert opened.errors == []
