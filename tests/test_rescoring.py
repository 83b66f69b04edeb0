"""The benchmark of rescoring: weights between a baseline and a model, and the oracle."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.random_models import translator

from seqloom.evaluate.translation import bleu

LISTS = [("abc de", [("fed c", -1.0), ("abc de", -1.5)]), ("a bad", [("dab a", -0.5), ("a bad", -9.0), ("b", -12.0)])]
REFERENCES = ["abc de", "a bad"]


@pytest.fixture
def rescoring(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    yield importlib.import_module("rescoring")
    sys.modules.pop("rescoring")


def test_weights_interpolate_between_baseline_and_model(rescoring: Any) -> None:
    """w = 0 ranks by the given scores, and w = 1 by the log-probabilities of forced decoding."""
    model = translator()
    scores = rescoring.score_lists(model, LISTS, REFERENCES, "en")
    assert scores[0.0] == bleu([candidates[0][0] for _, candidates in LISTS], REFERENCES, language="en")
    forced = []
    for source, candidates in LISTS:
        ranked = model.rescore([(source, [text for text, _ in candidates])], weight=1.0, length_penalty=0.0)[0]
        forced.append(ranked.candidates[0].text)
    assert scores[1.0] == bleu(forced, REFERENCES, language="en")
    assert list(scores) == [step / 10 for step in range(11)]


def test_oracle_selects_the_translation_closest_to_the_reference(rescoring: Any) -> None:
    assert rescoring.oracle(LISTS, REFERENCES) == REFERENCES


def test_lists_contain_the_log_probabilities_of_the_search(rescoring: Any) -> None:
    model = translator()
    ((source, candidates),) = rescoring.list_translations(model, ["abc"], 3)
    (direct,) = model.translate(["abc"], beam=3, n_best=3, length_penalty=0.0)
    assert source == "abc" and candidates == [(each.text, each.log_prob) for each in direct.candidates]
    assert [score for _, score in candidates] == sorted((score for _, score in candidates), reverse=True)
