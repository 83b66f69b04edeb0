"""The view "Self-attention": values equal `inspect`, rows sum to 1, controls work, and drawing is fast."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fine_tuning import pretrained_run
from tests.studio.conftest import StudioPage

import seqloom
from seqloom.core.errors import UsageError
from seqloom.inspect.views.attention import Part
from seqloom.studio import run_folder as run_folder_module
from seqloom.studio.server import Studio
from seqloom.studio.views import VIEWS
from seqloom.studio.views.attention import AllHeads, compute_alignment, compute_heads, thumbnails

suits = VIEWS["heads"].suits

TEXT = "The class statement defines a new type."
# Milliseconds from a click to the frame that shows the result
CLICK = """async ([button, shown, wanted]) => {
    const frame = () => new Promise(requestAnimationFrame);
    const goal = document.querySelector(shown);
    const begin = performance.now();
    document.querySelector(button).click();
    while (goal.dataset.shown !== wanted) await frame();
    await frame();
    return performance.now() - begin;
}"""

SUBMIT = """async (wanted) => {
    const frame = () => new Promise(requestAnimationFrame);
    const begin = performance.now();
    document.querySelector(".textbox button").click();
    while (document.querySelector('figure[data-figure="heads"]').dataset.shown !== wanted) await frame();
    await frame();
    return performance.now() - begin;
}"""


def numbers(table: list[list[str]]) -> np.ndarray[Any, Any]:
    """Return the weights in the table of a map, without labels and sums."""
    return np.array([[float(cell) for cell in row[1:-1]] for row in table[1:]])


def sums(table: list[list[str]]) -> list[float]:
    return [float(row[-1]) for row in table[1:]]


def load_part(runs: Path, run: str, name: str, text: str = TEXT) -> Part:
    return seqloom.load(runs / run, "cpu").heads(text).part(name)


# --- values -----------------------------------------------------------------------------------------------------------


def test_values_match_the_output_of_inspect(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("heads", run="gpt", text=TEXT, layer="2", head="3", shades="linear")
    table, part = studio_page.table("head"), load_part(runs, "gpt", "decoder")
    grid = part.grid(2, 3)
    assert [row[0] for row in table[1:]] == grid.rows and table[0][1:-1] == grid.columns
    np.testing.assert_allclose(numbers(table), grid.weights, atol=6e-4)
    np.testing.assert_allclose(sums(table), 1, atol=3e-3)  # float16
    check_statistics(page, part, studio_page.table("head-statistics"))
    check_thumbnails(page, part.words.weights)


def check_statistics(page: Any, part: Part, table: list[list[str]]) -> None:
    statistics = part.statistics()
    assert len(table) == 1 + len(statistics) == 1 + part.layers * part.heads
    for row, item in zip(table[1:], statistics, strict=True):
        np.testing.assert_allclose([float(cell) for cell in row], list(item), rtol=1e-4)
    assert page.locator(".head-plot .head-dot").count() == len(statistics)
    label = page.locator(".head-thumb").first.get_attribute("aria-label")
    assert f"entropy {statistics[0].entropy:.2f} bits" in label and f"distance {statistics[0].distance:.2f}" in label


def check_thumbnails(page: Any, weights: Any) -> None:
    """Larger weights have darker cells on the canvas."""
    thumbnails = page.evaluate(
        """() => [...document.querySelectorAll(".head-thumb canvas")].map(canvas => {
            const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return [canvas.height, canvas.width, [...data].filter((_, i) => i % 4 === 0)];
        })"""
    )
    layers, heads, rows, columns = weights.shape
    assert len(thumbnails) == layers * (heads + 1)  # includes the mean of each layer
    for index, (height, width, red) in enumerate(thumbnails):
        layer, head = divmod(index, heads + 1)
        expected = weights[layer].mean(axis=0) if head == heads else weights[layer, head]
        reds = np.array(red, dtype=int)[np.argsort(expected.ravel())]
        assert (height, width) == (rows, columns) and reds[0] > reds[-1] and (np.diff(reds) <= 1).all()


def test_all_parts_of_a_translator_match_the_python_api(studio_page: StudioPage, runs: Path) -> None:
    text, target = "Sunday, November 15, 2026", "dimanche 15 novembre 2026"
    page = studio_page.open("heads", run="translate-transformer", text=text, target=target)
    assert target in page.locator(".model-output").inner_text()
    view = seqloom.load(runs / "translate-transformer", "cpu").heads(text, target)
    for name, words in (("Decoder", "decoder"), ("Cross-attention", "cross"), ("Encoder", "encoder")):
        page.get_by_role("radio", name=name).check()
        page.locator("h2", has_text=f"{name}: layer 2, head 1").wait_for()
        table, grid = studio_page.table("head"), view.part(words).grid(2, 1)
        assert [row[0] for row in table[1:]] == grid.rows
        np.testing.assert_allclose(numbers(table), grid.weights, atol=6e-4)
        np.testing.assert_allclose(sums(table), 1, atol=3e-3)


def test_gpt_rows_are_queries(studio_page: StudioPage, runs: Path) -> None:
    """Rows and columns are labelled with the input tokens, as queries and keys."""
    page = studio_page.open("heads", run="gpt", text=TEXT, layer="1", head="1", by="tokens", **{"as": "both"})
    tokenizer = seqloom.load(runs / "gpt", "cpu").tokenizer
    read = ["</s>", *(tokenizer.token(token) for token in tokenizer.encode(TEXT))]
    (corner, *columns, _), *rows = studio_page.table("head")
    assert (
        [row[0].strip() for row in rows] == [column.strip() for column in columns] == [token.strip() for token in read]
    )
    assert corner.split("↓") == ["query (attends) ", "  key (attended to) →"]
    titles = page.locator('figure[data-figure="head"]').locator(".axis, .link-title").all_text_contents()
    assert sorted(titles) == ["key (attended to)"] * 2 + ["query (attends)"] * 2


def test_mean_over_heads_of_the_encoder_matches_the_python_api(studio_page: StudioPage, runs: Path) -> None:
    studio_page.open("heads", run="bert", text=TEXT, layer="1", head="mean", by="tokens")
    table, part = studio_page.table("head"), load_part(runs, "bert", "encoder")
    assert table[0][1] == table[1][0] == "[CLS]"
    np.testing.assert_allclose(numbers(table), part.grid(1, tokens=True).weights, atol=6e-4)


# --- controls ---------------------------------------------------------------------------------------------------------


def test_selecting_a_head_updates_map_and_address(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("heads", run="gpt", text=TEXT)
    page.get_by_role("radio", name="layer 1, head 2").click()
    page.locator('figure[data-figure="head"][data-shown="1 2"]').wait_for()
    assert "layer=1" in page.url and "head=2" in page.url
    np.testing.assert_allclose(
        numbers(studio_page.table("head")), load_part(runs, "gpt", "decoder").grid(1, 2).weights, atol=6e-4
    )
    page.keyboard.press("Tab")
    page.get_by_role("radio", name="layer 1, head 2").focus()
    page.keyboard.press("ArrowDown")  # by keyboard
    page.locator('figure[data-figure="head"][data-shown="2 2"]').wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    page.reload()  # the address contains the state
    page.locator('figure[data-figure="head"][data-shown="2 2"]').wait_for()


def test_links_are_highlighted(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("heads", run="gpt", text=TEXT, layer="1", head="1", **{"as": "links"})
    grid = load_part(runs, "gpt", "decoder").grid(1, 1)
    assert page.locator(".links .link").count() == (grid.weights >= 0.04).sum()
    words = page.locator(".links .link-word")
    words.nth(3).hover()  # a word on the left
    lit = page.locator(".links .link.highlighted").count()
    assert lit == (grid.weights[3] >= 0.04).sum()
    shares = [float(text.split()[0]) for text in page.locator(".links .link-weight").all_text_contents() if text]
    np.testing.assert_allclose(shares, [100 * share for share in grid.weights[3] if share >= 0.005], atol=0.6)
    page.mouse.move(5, 5)
    assert page.locator(".links .link.highlighted").count() == 0
    words.first.focus()  # by keyboard
    page.keyboard.press("ArrowDown")
    assert page.locator(".links .link.highlighted").count() == (grid.weights[1] >= 0.04).sum()
    page.keyboard.press("ArrowRight")
    assert page.locator(".links .link.highlighted").count() == (grid.weights[:, 1] >= 0.04).sum()
    widths = [
        float(width)
        for width in page.eval_on_selector_all(".link", "all => all.map(n => n.getAttribute('stroke-width'))")
    ]
    assert widths == sorted(widths) and widths[-1] == pytest.approx(0.6 + 6.4 * grid.weights.max(), abs=0.02)


def test_controls_switch_to_tokens_and_hide_the_end_token(studio_page: StudioPage, runs: Path) -> None:
    part = load_part(runs, "gpt", "decoder")
    page = studio_page.open("heads", run="gpt", text=TEXT, layer="1", head="1")
    page.get_by_role("radio", name="Tokens").check()
    rows = len(part.tokens.rows)
    page.locator(f'figure[data-figure="head"][data-size="{rows}×{rows}"]').wait_for()
    assert len(studio_page.table("head")) == 1 + rows
    page.get_by_label("Show END").uncheck()
    page.locator(f'figure[data-figure="head"][data-size="{rows - 1}×{rows - 1}"]').wait_for()
    table = studio_page.table("head")
    np.testing.assert_allclose(numbers(table), part.grid(1, 1, tokens=True, end=False).weights, atol=6e-4)
    assert min(sums(table)) < 0.99  # the remaining weight is on END


# --- suitable runs and rejected requests ------------------------------------------------------------------------------


def test_view_supports_only_models_with_attention_heads() -> None:
    def of(task: str, **model: Any) -> bool:
        return suits({"task": task, "model": model})

    assert of("translate", kind="transformer") and not of("translate", kind="recurrent-seq2seq")
    assert of("language-model", kind="gpt") and not of("language-model", kind="recurrent-lm")
    assert of("masked-lm", kind="electra") and of("denoise", kind="transformer") and not of("hmm", kind="hmm")
    assert of("classify", kind="classifier", encoder={"kind": "transformer"})
    assert of("tag", kind="fine-tuned-tagger", backbone={"kind": "bert"}, encoder=None)
    assert not of("tag", kind="tagger", encoder={"kind": "recurrent"})
    assert not suits({})


def test_invalid_requests_are_rejected(client: Any, runs: Path) -> None:
    def refuse(path: str = "heads", **question: Any) -> tuple[int, str]:
        answer = client.post(f"/api/{path}", json={"run": "gpt", "text": TEXT, **question})
        return answer.status_code, answer.json()["error"]

    assert refuse(text="word " * 399)[0] == 400 and refuse(text="a" * 2001)[0] == 422
    assert refuse(text=" ") == (400, "The text is empty. Give at least one word.")
    assert refuse(part="cross")[0] == 400 and refuse(part="../x")[0] == 422 and refuse(run="nobody")[0] == 404
    assert refuse("heads/map", layer=3) == (400, "The layer must be from 1 to 2 in decoder self-attention; got 3.")
    assert refuse("heads/map", head=0)[0] == 422 and refuse(target="what")[0] == 400
    assert refuse(run="lm-lstm")[0] == 400 and refuse("alignment", run="gpt")[0] == 400
    with pytest.raises(UsageError, match="only translators accept a target"):
        compute_heads(seqloom.load(runs / "gpt", "cpu"), TEXT, "what")
    with pytest.raises(UsageError, match="without an alignment"):
        compute_alignment(seqloom.load(runs / "lm-lstm", "cpu"), TEXT)


def test_thumbnails_keep_thin_lines() -> None:
    weights = np.zeros((1, 1, 200, 130))
    weights[0, 0, np.arange(130), np.arange(130)] = 0.7
    small = thumbnails(weights, 64)
    assert small.shape == (1, 1, 64, 64) and (small.max(axis=2) == 0.7).all()
    assert thumbnails(weights, 500) is weights


def test_cache_size_is_limited(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest results are evicted. The latest result is always kept."""
    result = compute_heads(seqloom.load(runs / "gpt", "cpu"), TEXT)
    part = result.view.decoder
    assert result.nbytes == 4 * (part.tokens.weights.size + part.words.weights.size)
    monkeypatch.setattr(run_folder_module, "MAX_CACHED_BYTES", int(2.5 * result.nbytes))
    run_folder = run_folder_module.RunFolder(runs)
    computed: list[str] = []

    def look(name: str) -> None:
        def make() -> AllHeads:
            computed.append(name)
            return result

        run_folder.open("gpt").get_or_compute(name, make)

    for name in ("a", "b", "b", "c", "b", "a"):
        look(name)
    assert computed == ["a", "b", "c", "a"]
    monkeypatch.setattr(run_folder_module, "MAX_CACHED_BYTES", 1)
    look("d")
    look("d")
    assert computed[4:] == ["d"]


# --- speed ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudioPage]:
    """A page with a GPT that has 512 positions, and a GPT with 12 layers of 12 heads."""
    folder = tmp_path_factory.mktemp("wide")
    torch.set_num_threads(1)
    positions = {"kind": "learned", "max_length": 512}
    pretrained_run(folder / "long", "gpt", positions=positions)
    pretrained_run(folder / "many", "gpt", layers=12, heads=12, d_model=48, positions=positions)
    with Studio(folder, port=0).running() as studio:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = StudioPage(context.new_page(), studio)
        yield page
        context.close()
        assert page.errors == []


def text_of(studio: Studio, tokens: int) -> str:
    """Return a text with this number of tokens, including END."""
    tokenizer = seqloom.load(studio.run_folder.folder / "long", "cpu").tokenizer
    # Characters that are not merged, with one token per byte
    text = "".join(chr(0x100 + index % 50) for index in range(2000))
    size = next(size for size in range(2000) if len(tokenizer.encode(text[:size])) >= tokens - 1)
    assert len(tokenizer.encode(text[:size])) + 1 in (tokens, tokens + 1)
    return text[:size] if len(tokenizer.encode(text[:size])) + 1 == tokens else f"{text[: size - 1]}x"


def test_head_of_512_tokens_is_drawn_in_100_ms(wide_page: StudioPage) -> None:
    page = wide_page.open("heads", run="long", text=text_of(wide_page.studio, 512), by="tokens", layer="1", head="1")
    selector = 'figure[data-figure="head"]'
    page.locator(f'{selector}[data-shown="1 1"]').wait_for()
    assert page.evaluate("document.querySelector('.map-heat canvas').width") == 512
    times = []
    for layer, head in 2 * ((2, 2), (1, 1), (1, 2), (2, 1)):
        button = f'[role="radio"][aria-label^="layer {layer}, head {head}"]'
        times.append(page.evaluate(CLICK, [button, selector, f"{layer} {head}"]))
    assert np.median(times) <= 100, times  # the median is not affected by load of other processes


def test_grid_of_144_heads_is_drawn_in_one_second(wide_page: StudioPage) -> None:
    """The time is measured from the click to the last thumbnail."""
    page = wide_page.open("heads", run="many", text=text_of(wide_page.studio, 40), by="tokens")
    page.locator('figure[data-figure="heads"][data-shown]').wait_for()
    times = []
    for tokens in (62, 63, 64):  # texts that are not cached
        page.get_by_label("Text", exact=True).fill(text_of(wide_page.studio, tokens))
        times.append(page.evaluate(SUBMIT, f"decoder 12×12 of {tokens}×{tokens}"))
        assert page.locator(".head-thumb canvas").count() == 12 * 13
        assert page.evaluate("document.querySelector('.head-thumb canvas').width") == tokens
    assert np.median(times) <= 1000, times
