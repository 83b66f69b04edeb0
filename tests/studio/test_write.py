"""The view "Translate, generate": generated text, next-token distributions and sampling controls."""

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from tests.studio.conftest import StudioPage

from seqloom import load
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.inspect.views.next_tokens import next_tokens
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.studio.server import Studio

DATE = "Sunday, November 15, 2026"


def events(client: TestClient, **question: Any) -> list[dict[str, Any]]:
    answer = client.post("/api/write/stream", json=question)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def wait_for_text(page: Any) -> str:
    """Wait until generation ends. Return the text without the prompt and END."""
    page.wait_for_function("() => /tokens,/.test(document.querySelector('.paper .readout')?.textContent)")
    text: str = page.eval_on_selector_all(
        ".written .tok:not(.end)", "nodes => nodes.map(node => node.textContent).join('').replaceAll('\\u200b', '')"
    )
    return text


def turn(page: Any, label: str, value: float) -> None:
    page.get_by_label(label).evaluate(
        "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


@contextmanager
def wait_for_answer(page: Any, path: str = "write/stream") -> Iterator[None]:
    """Wait until the request that the block causes has finished and its result has been drawn."""
    with page.expect_response(f"**/api/{path}"):
        yield
    page.wait_for_function(
        "() => !document.querySelector('.busy') && !document.body.innerText.includes('Generating …')"
    )


def wait_for_position(page: Any, position: int) -> None:
    page.locator(f'figure[data-figure=next-token][data-position="{position}"]').wait_for()


def tokens_of(page: Any) -> list[str]:
    tokens: list[str] = page.eval_on_selector_all(".written .tok", "nodes => nodes.map(node => node.textContent)")
    return tokens


# --- by itself --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["lm-lstm", "gpt"])
def test_stream_matches_generate(client: TestClient, runs: Path, run: str) -> None:
    options: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7, "max_tokens": 25}
    begin, *tokens, end = events(client, run=run, text="The class", **options)
    assert begin["begin"] == {"source": False, "prompt": "The class", "notes": []}
    text = "".join(load(runs / run, "cpu").generate("The class", **options))
    assert "".join(token["text"] for token in tokens).startswith(text)  # an incomplete character may remain at the end
    assert end == {"end": "end" if tokens[-1]["id"] == 0 else "length"}
    for token in tokens:
        assert 0 < token["p"] <= token["chance"] or token["rank"] > 1
        assert sum(p for _, _, p, _ in token["top"]) <= 1 + 1e-6


@pytest.mark.parametrize("run", ["translate-gru", "translate-transformer"])
def test_greedy_translation_matches_search_with_a_beam_of_one(client: TestClient, runs: Path, run: str) -> None:
    begin, *tokens, _ = events(client, run=run, text=DATE, temperature=0, max_tokens=40)
    (translation,) = load(runs / run, "cpu").translate(DATE, beam=1, max_length=40)
    assert [token["id"] for token in tokens if token["id"]] == translation.candidates[0].ids
    assert "".join(token["text"] for token in tokens) == translation.text
    assert begin["begin"] == {"source": True, "prompt": "", "notes": []}


def test_invalid_requests_are_rejected(client: TestClient) -> None:
    def refused(**question: Any) -> tuple[int, str]:
        answer = client.post("/api/write/stream", json=question)
        return answer.status_code, answer.json()["error"]

    assert refused(run="tagger", text="a")[0] == 400
    assert "does not generate text" in refused(run="tagger", text="a")[1]
    assert refused(run="nobody", text="a")[0] == 404
    assert refused(run="gpt", text="a", temperature=-1)[0] == 422
    assert refused(run="gpt", text="a", max_tokens=401)[0] == 422
    assert refused(run="gpt", text="a" * 2001)[0] == 422
    assert refused(run="gpt", text="a", forced=[10**6]) == (400, "Token ids must be from 0 to 399; got 1000000.")
    assert refused(run="gpt", text="a", forced=[0, 5])[0] == 400
    assert "empty" in refused(run="translate-gru", text=" ")[1]


def test_tokens_are_streamed(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generation stops when the client disconnects."""
    steps, real = [0], RecurrentLM.step

    def slow(*given: Any) -> Any:
        steps[0] += 1
        time.sleep(0.01)
        return real(*given)

    monkeypatch.setattr(RecurrentLM, "step", slow)
    asking = http.client.HTTPConnection("127.0.0.1", studio.port)
    question = json.dumps({"run": "lm-lstm", "text": "The", "max_tokens": 400, "top_k": 5})
    headers = {"authorization": f"Bearer {studio.token}", "content-type": "application/json"}
    asking.request("POST", "/api/write/stream", question, headers)
    answer = asking.getresponse()
    assert "begin" in json.loads(answer.readline()) and "id" in json.loads(answer.readline())
    assert steps[0] < 300
    answer.close()
    asking.close()
    steps_made = 0
    while steps_made < steps[0]:  # wait until no further step follows
        steps_made = steps[0]
        time.sleep(0.3)
    assert steps_made < 400


# --- through the page -------------------------------------------------------------------------------------------------


def test_page_output_matches_the_output_of_generate(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("write", run="lm-lstm", text="The class", temperature="0.8", seed="3", length="30")
    options: dict[str, Any] = {"temperature": 0.8, "max_tokens": 30}
    model = load(runs / "lm-lstm", "cpu")
    assert wait_for_text(page) == model.generate("The class", seed=3, **options)
    with wait_for_answer(page):
        page.get_by_role("button", name="Another seed").click()
    assert wait_for_text(page) == model.generate("The class", seed=4, **options)
    assert "seed=4" in page.url and page.get_by_label("Seed").input_value() == "4"
    box = page.get_by_label("Prompt")
    box.fill("An object")
    with wait_for_answer(page):
        page.get_by_role("button", name="Generate").click()
    assert wait_for_text(page) == model.generate("An object", seed=4, **options)
    rows = studio_page.table("surprisal")[1:]
    expected = model.score("An object" + wait_for_text(page))[0].log_probs
    log_probs = [float(row[2]) for row in rows]
    assert log_probs == pytest.approx(np.exp(expected[9 : 9 + len(log_probs)]), rel=1e-4)
    page.reload()
    assert wait_for_text(page) == model.generate("An object", seed=4, **options)


def test_slider_values_match_the_score_processors(studio_page: StudioPage, runs: Path) -> None:
    """The page computes the same sampling probabilities as the server."""
    page = studio_page.open("write", run="gpt", text="The class", seed="1", length="12", at="5", redraw="0")
    wait_for_position(page, 5)
    model = load(runs / "gpt", "cpu")
    ids = [event["id"] for event in events_of(page, run="gpt", text="The class", seed=1, max_tokens=12)][:5]
    distributions = next_tokens(model, "The class", ids)
    requests: list[str] = []
    studio_page.on("request", lambda request: requests.append(request.url) if "/api/" in request.url else None)
    for temperature, top_k, top_p in ((1, None, 1), (0.5, None, 1), (1.6, 10, 1), (1, None, 0.6), (0.7, 40, 0.85)):
        turn(page, "Temperature τ", temperature)
        turn(page, "Top-k", 17 if top_k is None else [1, 2, 3, 4, 5, 8, 10, 15, 20, 30, 40].index(top_k))
        turn(page, "Top-p", top_p)
        options = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
        logs = torch.tensor(distributions.log_probs, dtype=torch.float32)[None]
        expected = process(logs, torch.empty(1, 0, dtype=torch.long), options.processors(0))[0].exp().tolist()
        rows = studio_page.table("next-token")[1:]
        assert len(rows) in (200, 201)
        assert [float(row[2]) for row in rows[:200]] == pytest.approx(
            distributions.probabilities[:200].tolist(), rel=1e-4
        )
        assert [float(row[3]) for row in rows[:200]] == pytest.approx(expected[:200], abs=2e-6)
        count = sum(value > 0 for value in expected)
        assert f"{count} of 400 tokens can be sampled" in page.locator("figure[data-figure=next-token]").inner_text()
    assert requests == []  # no requests were sent
    turn(page, "Temperature τ", 0)
    assert [float(row[3]) for row in studio_page.table("next-token")[1:4]] == [1, 0, 0]


def events_of(page: Any, **question: Any) -> list[dict[str, Any]]:
    """Return the events of a request that the page sends."""
    events: list[dict[str, Any]] = page.evaluate(
        """async (question) => {
            const { stream } = await import("/lib/api.js");
            const found = [];
            for await (const event of stream("write/stream", question)) if (event.id !== undefined) found.push(event);
            return found;
        }""",
        question,
    )
    return events


def test_text_after_the_selected_token_is_resampled(studio_page: StudioPage, runs: Path) -> None:
    """The text after the selected position is sampled again, and the text before it is kept."""
    page = studio_page.open("write", run="lm-lstm", text="The", seed="2", length="20")
    wait_for_text(page)
    before = tokens_of(page)
    page.locator(".written .tok").nth(5).click()
    page.keyboard.press("ArrowRight")
    wait_for_position(page, 6)
    assert page.locator("figure[data-figure=next-token] h2").inner_text() == "Next-token distribution at position 7"
    with wait_for_answer(page):
        turn(page, "Temperature τ", 1.9)
    after = tokens_of(page)
    assert after[:6] == before[:6] and after != before
    text = "".join(
        load(runs / "lm-lstm", "cpu").generate("The" + "".join(before[:6]), seed=2, temperature=1.9, max_tokens=20)
    )
    assert "".join(after[6:]).removesuffix(" ⟨end⟩") == text
    assert page.locator(".written .tok.kept").count() == 6
    wait_for_position(page, 6)
    page.locator(".bar-row").first.focus()
    page.keyboard.press("ArrowDown")
    with wait_for_answer(page):
        page.keyboard.press("Enter")
    assert "forced=" in page.url and page.locator(".written .tok.kept").count() == 7


@pytest.mark.parametrize("run", ["lm-lstm", "translate-gru"])
def test_token_is_forced(studio_page: StudioPage, runs: Path, run: str) -> None:
    text = DATE if run == "translate-gru" else "The class"
    page = studio_page.open("write", run=run, text=text, length="15", seed="5", temperature="1", at="2")
    wait_for_position(page, 2)
    before = tokens_of(page)
    row = page.locator(".bar-row:not(.chosen)").nth(1)
    name = row.locator("text.name").text_content().replace("␣", " ").replace("↵", "\n")
    with wait_for_answer(page):
        row.click()
    after = tokens_of(page)
    assert after[:2] == before[:2] and name.strip() in ("</s>", after[2].strip())
    assert page.locator(".bar-row.chosen text.name").text_content().replace("␣", " ").strip() == name.strip()
    forced = [int(token) for token in page.url.split("forced=")[1].split("&")[0].split("%2C")]
    assert len(forced) == 3
    events = events_of(page, run=run, text=text, forced=forced, temperature=1, seed=5, max_tokens=15)
    assert [event["forced"] for event in events[:4]][:3] == [True] * 3
    assert "".join(event["text"] for event in events) == wait_for_text(page)
    with wait_for_answer(page):
        page.get_by_role("button", name="Restart").click()
    assert tokens_of(page) == before and "forced" not in page.url


def test_generation_can_be_stopped(studio_page: StudioPage) -> None:
    page = studio_page.open("write", run="lm-lstm", text="The", length="5")
    wait_for_text(page)
    page.evaluate(  # simulate a slow server
        """() => {
            const real = window.fetch;
            window.fetch = async (...given) => {
                const answer = await real(...given);
                if (!String(given[0]).includes("stream")) return answer;
                const lines = (await answer.text()).trim().split("\\n");
                const signal = given[1].signal;
                const body = new ReadableStream({ async start(to) {
                    for (const line of lines) {
                        await new Promise(done => setTimeout(done, 60));
                        if (signal.aborted) {
                            window.left = true;
                            return to.error(new DOMException("", "AbortError"));
                        }
                        to.enqueue(new TextEncoder().encode(line + "\\n"));
                    }
                    to.close();
                } });
                return new Response(body, { headers: { "content-type": "application/x-ndjson" } });
            };
        }"""
    )
    page.get_by_label("Max tokens").fill("80")
    page.get_by_label("Max tokens").press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.written .tok').length >= 3")
    assert page.locator(".written .tok").count() < 60  # tokens appear during generation
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("() => /stopped/.test(document.querySelector('.paper .readout')?.textContent)")
    count = page.locator(".written .tok").count()
    page.wait_for_function("() => window.left")  # the server has stopped
    assert page.locator(".written .tok").count() == count < 80
    assert page.get_by_role("button", name="Stop").is_disabled()


def test_prompt_is_escaped_and_displayed_from_right_to_left(studio_page: StudioPage) -> None:
    hostile = 'שלום <img src=x onerror="window.hurt=1"> \u202eabc </script> 日本語'
    page = studio_page.open("write", run="gpt", text=hostile, length="8")
    wait_for_text(page)
    assert page.locator(".written .prompt").text_content() == hostile
    assert page.evaluate("window.hurt") is None and page.locator(".view img").count() == 0
    assert page.locator(".written").evaluate("node => getComputedStyle(node).direction") == "rtl"
    boxes = page.locator(".written .generated .tok").evaluate_all(
        "nodes => nodes.map(node => node.getBoundingClientRect()).map(box => [box.top, box.left, box.width])"
    )
    neighbours = [(left, right) for left, right in pairwise(boxes) if left[0] == right[0] and left[2] and right[2]]
    assert neighbours and all(
        left[1] < right[1] for left, right in neighbours
    )  # the generated text runs from left to right


def test_another_seed_requires_sampling(studio_page: StudioPage) -> None:
    page = studio_page.open("write", run="lm-lstm", text="The class", temperature="0", length="5")
    another = page.get_by_role("button", name="Another seed")
    assert another.is_disabled() and "always chosen" in str(another.get_attribute("title"))
    turn(page, "Temperature τ", 1)
    assert another.is_enabled()


def test_masks_are_filled(studio_page: StudioPage, runs: Path) -> None:
    """If a token is selected, it is inserted at the mask, and the other mask is predicted again."""
    text, model = "the [MASK] statement defines a [MASK]", load(runs / "bert", "cpu")
    page = studio_page.open("write", run="bert", text=text)
    page.locator(".written .gap").nth(1).click()
    (prediction,) = model.fill_mask(text, top=200)
    rows = studio_page.table("next-token")[1:]
    assert [float(row[2]) for row in rows] == pytest.approx(
        [candidate.probability for candidate in prediction.masks[1]], rel=1e-4
    )
    page.locator(".bar-row").nth(2).click()
    page.wait_for_function("() => document.querySelectorAll('.written .gap').length === 1")
    after = page.get_by_label("Text with [MASK] tokens").input_value()
    assert after == text.removesuffix(" [MASK]") + model.tokenizer.decode([prediction.masks[1][2].id])
    (prediction,) = model.fill_mask(after, top=3)
    assert [float(row[2]) for row in studio_page.table("next-token")[1:4]] == pytest.approx(
        [candidate.probability for candidate in prediction.masks[0]], rel=1e-4
    )
