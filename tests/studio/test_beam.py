"""The view "Beam search": the tree equals that of the search. Its best leaf is the output of `seqloom translate`."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.studio.conftest import StudioPage
from tests.studio.test_write import turn, wait_for_answer

from seqloom import load
from seqloom.cli.app import main

DATE = "Sunday, November 15, 2026"


def post_beam(client: TestClient, **question: Any) -> dict[str, Any]:
    answer = client.post("/api/beam", json=question)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def print_translation(run: Path, *options: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(["translate", str(run), DATE, *options, "--device", "cpu"]) == 0
    return out.getvalue().rstrip("\n")


def best_candidate(page: Any) -> str:
    text: str = page.locator(".beam-list .candidate .candidate-text").first.text_content()
    return text


def display_text(text: str) -> str:
    """Return a text as the list displays it, with symbols for white space."""
    return text if text.strip() else text.replace(" ", "␣").replace("\n", "↵") or "(empty)"


@pytest.mark.parametrize("run", ["translate-gru", "translate-transformer"])
def test_best_leaf_matches_the_output_of_translate(studio_page: StudioPage, runs: Path, run: str) -> None:
    page = studio_page.open("beam", run=run, text=DATE)
    assert best_candidate(page) == display_text(print_translation(runs / run))
    rows = studio_page.table("beam")[1:]
    leaf = max((row for row in rows if row[8] == "1"), key=lambda row: int(row[0]))
    (translation,) = load(runs / run, "cpu").translate(DATE)
    assert leaf[7] == ("finished" if translation.candidates[0].finished else "in the beam when the search stopped")
    assert float(leaf[5]) == pytest.approx(translation.log_prob, rel=1e-4)
    assert float(leaf[6]) == pytest.approx(translation.score, rel=1e-4)


def test_required_terms_match_the_output_of_translate(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("beam", run="translate-gru", text=DATE)
    plain = best_candidate(page)
    with wait_for_answer(page, "beam"):
        page.get_by_label("Required terms").fill("mardi; le")
        page.get_by_label("Required terms").press("Enter")
    expected = display_text(print_translation(runs / "translate-gru", "--force", "mardi", "--force", "le"))
    assert best_candidate(page) == expected != plain
    assert "mardi" in expected
    assert len(studio_page.table("beam")) > 10


def test_terms_require_a_translator(client: TestClient) -> None:
    answer = client.post("/api/beam", json={"run": "lm-lstm", "text": "the", "terms": ["cat"]})
    assert answer.status_code == 400 and "only translations can have required terms" in answer.text
    unknown = client.post("/api/beam", json={"run": "translate-gru", "text": DATE, "terms": [" "]})
    assert unknown.status_code == 400 and "A term must be one or more words" in unknown.text


def test_beam_size_penalty_and_n_best_controls_match_translate(studio_page: StudioPage, runs: Path) -> None:
    page = studio_page.open("beam", run="translate-gru", text=DATE)
    with wait_for_answer(page, "beam"):
        turn(page, "Beam size k", 2)
    assert best_candidate(page) == display_text(print_translation(runs / "translate-gru", "--beam", "2"))
    rows = studio_page.table("beam")[1:]
    for step in {row[0] for row in rows}:
        here = [row for row in rows if row[0] == step]
        assert sum(row[7] not in ("pruned", "finished") for row in here) <= 2 and len(here) <= 4
    with wait_for_answer(page, "beam"):
        turn(page, "Length penalty α", 0)
    assert best_candidate(page) == display_text(
        print_translation(runs / "translate-gru", "--beam", "2", "--length-penalty", "0")
    )
    for row in studio_page.table("beam")[1:]:
        assert float(row[5]) == pytest.approx(float(row[6]))  # without a penalty, the score is Σ log p
    with wait_for_answer(page, "beam"):
        turn(page, "Beam size k", 6)
    with wait_for_answer(page, "beam"):
        turn(page, "n-best", 4)
    lines = print_translation(
        runs / "translate-gru", "--beam", "6", "--length-penalty", "0", "--n-best", "4"
    ).splitlines()
    candidates = page.locator(".beam-list ol .candidate-text").all_text_contents()
    assert candidates == [display_text(line.split(" ||| ")[1]) for line in lines]
    assert "beam=6" in page.url and "penalty=0" in page.url and "nbest=4" in page.url


@pytest.mark.parametrize("run", ["lm-lstm", "gpt"])
def test_candidates_of_a_language_model_match_the_python_api(studio_page: StudioPage, runs: Path, run: str) -> None:
    page = studio_page.open("beam", run=run, text="The class", beam="3", nbest="3", length="6")
    hypotheses = load(runs / run, "cpu").search("The class", max_tokens=6, beam=3, n_best=3)
    assert page.locator(".beam-list ol .candidate-text").all_text_contents() == [
        display_text(hypothesis.text) for hypothesis in hypotheses
    ]
    assert page.locator(".search-tree .root .word").text_content() == "The class"
    sums = page.locator(".beam-list ol .candidate-sum b").all_text_contents()
    assert [float(value.replace("−", "-")) for value in sums] == pytest.approx(
        [hypothesis.score for hypothesis in hypotheses], abs=6e-4
    )


def test_search_tree_shows_requested_nodes_and_steps(studio_page: StudioPage, client: TestClient) -> None:
    page = studio_page.open("beam", run="translate-gru", text=DATE, beam="3")
    nodes = post_beam(client, run="translate-gru", text=DATE, beam=3)["nodes"]
    check_nodes(page, nodes)
    check_edges(page)
    check_path(page)
    page.get_by_label("Show pruned").uncheck()
    assert page.locator(".search-tree .box.pruned").count() == 0 and "pruned=0" in page.url
    turn(page, "Steps shown", 2)
    assert page.locator(".search-tree .box").count() == sum(node[2] <= 2 and node[8] != "pruned" for node in nodes)
    page.get_by_role("button", name="Play").click()
    assert page.get_by_label("Steps shown").input_value() == "1"
    page.wait_for_function("() => document.querySelector('.beam-steps input').value === '2'")
    page.get_by_role("button", name="Stop").click()


def check_nodes(page: Any, nodes: list[Any]) -> None:
    assert page.locator(".search-tree .box").count() == len(nodes)
    for fate in ("pruned", "ended", "kept"):
        assert page.locator(f".search-tree .box.{fate}").count() == sum(node[8] == fate for node in nodes)
    assert page.locator(".search-tree .edge-log-prob").count() == len(nodes) - 1  # log p on every edge
    transforms = page.locator(".search-tree .box").evaluate_all(
        "boxes => boxes.map(box => box.getAttribute('transform'))"
    )
    assert len(set(transforms)) == len(transforms)  # nodes do not overlap


def check_edges(page: Any) -> None:
    """In each column, nodes are in the order of their parents. The best path is a straight line."""
    edges = page.evaluate(
        """() => {
            const at = new Map([...document.querySelectorAll(".search-tree .box")].map(box => {
                const [x, y] = box.getAttribute("transform").match(/[\\d.]+/g).map(Number);
                return [box.dataset.node, { x, y, first: box.classList.contains("first") }];
            }));
            return [...document.querySelectorAll(".search-tree .edge-of")].map(edge => {
                const from = edge.querySelector("path").getAttribute("d").match(/[\\d.]+/g).map(Number);
                const to = at.get(edge.dataset.edge);
                return { x: to.x, from: from[1], to: to.y, first: to.first };
            });
        }"""
    )
    for x in {edge["x"] for edge in edges}:
        column = sorted((edge["to"], edge["from"]) for edge in edges if edge["x"] == x)
        assert [start for _, start in column] == sorted(start for _, start in column)
    assert len({edge["to"] for edge in edges if edge["first"]}) == 1


def check_path(page: Any) -> None:
    page.locator(".beam-list .candidate").first.click()
    first = page.locator(".search-tree .box.first").count()
    assert page.locator(".search-tree.highlighted .box.on-path").count() == first
    assert "pick=" in page.url
    page.locator('.search-tree .box[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert "rank 1 at step 1" in first
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != first
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "start"


def test_invalid_requests_are_rejected(client: TestClient) -> None:
    def refused(**question: Any) -> int:
        return client.post("/api/beam", json=question).status_code

    assert refused(run="translate-gru", text=DATE, beam=17) == 422
    assert refused(run="translate-gru", text=DATE, beam=2, n_best=3) == 400
    assert refused(run="translate-gru", text="") == 400
    assert refused(run="translate-gru", text="a b " * 400) == 400
    assert refused(run="classifier", text="a") == 400
    assert refused(run="../x", text="a") == 404
