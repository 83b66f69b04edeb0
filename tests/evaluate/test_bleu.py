import math
import random
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU

from seqloom.evaluate import bleu
from seqloom.evaluate.bleu import Statistics, corpus_statistics, explain
from seqloom.evaluate.translation import bleu_metric, tokens

GUARD = "The guard arrived late because of the rain"
GUARD_REFERENCE = "The guard arrived late because it was raining"

words = st.lists(st.sampled_from(["a", "b", "c", "the", "."]), max_size=9).map(" ".join)
sentences = st.tuples(words, st.lists(words, min_size=1, max_size=3))


def explain_texts(hypothesis: str, *references: str) -> bleu.Explanation:
    return explain(hypothesis.split(), [reference.split() for reference in references])


def fraction(explanation: bleu.Explanation, n: int) -> tuple[int, int]:
    return explanation.statistics.correct[n - 1], explanation.statistics.total[n - 1]


# --- worked examples ------------------------------------------------------------------------------------------------


def test_unigram_precision_counts_common_words() -> None:
    assert fraction(explain_texts("He ate an apple", "He eats an apple"), 1) == (3, 4)


def test_clipping_limits_repeated_words() -> None:
    explanation = explain_texts("he he he", "he eats an apple")  # ignores case
    assert sum(count.unclipped for count in explanation.counts[0]) == 3
    assert fraction(explanation, 1) == (1, 3)
    assert any(
        "p_1 = 1/3" in line and "(without clipping it would be 3/3)" in line
        for line in bleu.describe_sentence(explanation)
    )


def test_counts_are_clipped_to_the_larger_reference_count() -> None:
    explanation = explain_texts("He He He eats tasty fruit", "He eats a sweet apple", "He is eating a tasty apple")
    assert fraction(explanation, 1) == (3, 6)
    counts = {count.ngram[0]: (count.count, count.reference_count, count.clipped) for count in explanation.counts[0]}
    assert counts == {"He": (3, 1, 1), "eats": (1, 1, 1), "tasty": (1, 1, 1), "fruit": (1, 0, 0)}


def test_explanation_shows_precisions_and_scores_of_each_order() -> None:
    explanation = explain_texts(GUARD, GUARD_REFERENCE)
    assert [fraction(explanation, n) for n in range(1, 5)] == [(5, 8), (4, 7), (3, 6), (2, 5)]
    assert explanation.statistics.brevity_penalty == 1
    assert [f"{explanation.statistics.bleu(order):.2f}" for order in range(1, 5)] == [
        "62.50",
        "59.76",
        "56.31",
        "51.70",
    ]
    text = bleu.describe_sentence(explanation)
    assert "  BLEU-4 = 100 × 1 × (5/8 × 4/7 × 3/6 × 2/5)^(1/4) = 51.70" in text
    assert "  BLEU-2 = 100 × 1 × (5/8 × 4/7)^(1/2) = 59.76" in text


def test_documentation_shows_the_explanation() -> None:
    page = (Path(__file__).parents[2] / "docs/explanations/bleu.md").read_text("utf-8")
    (block,) = [block for block in page.split("```")[1::2] if "p_2 = " in block]
    assert set(block.strip("\n").split("\n")) <= set(bleu.describe_sentence(explain_texts(GUARD, GUARD_REFERENCE)))


# --- equal to sacrebleu ---------------------------------------------------------------------------------------------


def assert_same(ours: Statistics, theirs: object) -> None:
    """Compare with a sacrebleu score without smoothing."""
    attributes = vars(theirs)
    assert (list(ours.correct), list(ours.total)) == (attributes["counts"], attributes["totals"])
    assert (ours.length, ours.reference_length) == (attributes["sys_len"], attributes["ref_len"])
    assert ours.brevity_penalty == pytest.approx(attributes["bp"], rel=1e-12)
    if any(ours.correct):  # otherwise, sacrebleu returns early with precisions of 0
        assert [100 * precision for precision in ours.precisions] == pytest.approx(attributes["precisions"], rel=1e-12)
    assert ours.bleu() == pytest.approx(attributes["score"], abs=1e-9)


@settings(max_examples=300, deadline=None)
@given(sentences)
def test_sentence_bleu_matches_sacrebleu(sentence: tuple[str, list[str]]) -> None:
    hypothesis, references = sentence
    explanation = explain_texts(hypothesis, *references)
    columns = [[reference] for reference in references]
    assert_same(explanation.statistics, BLEU(smooth_method="none", tokenize="none").corpus_score([hypothesis], columns))
    smoothed = BLEU(effective_order=True, tokenize="none").sentence_score(hypothesis, references).score
    assert explanation.statistics.smoothed_bleu(is_corpus=False) == pytest.approx(smoothed, abs=1e-9)
    corpus_bleu = BLEU(tokenize="none").corpus_score([hypothesis], columns).score
    assert explanation.statistics.smoothed_bleu() == pytest.approx(corpus_bleu, abs=1e-9)
    assert "".join(bleu.describe_sentence(explanation)) and "".join(
        bleu.describe_corpus(explanation.statistics, 1, explanation.statistics)
    )


TEXTS = (
    "The cat's 3.5 litres, well-known (so-called) — “quoted” &amp; 1,000 €!",
    "Déjà vu: naïve façade; Ünïcode… 東京は日本の首都です。",
    "he He he he the THE the.",
    "שלום עולם नमस्ते दुनिया U+2028:\u2028end",
)


def corpus(seed: int, references: int) -> tuple[list[str], list[list[str]]]:
    """Draw lines, some of which are blank, and references with deleted, repeated and added words."""
    draw = random.Random(seed)
    pool = [piece for text in TEXTS for piece in text.split(" ")]

    def edit_line(line: list[str]) -> list[str]:
        reference_words = [word for word in line for _ in range(draw.choice((0, 1, 1, 1, 1, 2)))]
        return reference_words + draw.choices(pool, k=draw.randint(0, 3))

    hypotheses = [draw.choices(pool[:9] if draw.random() < 0.6 else pool, k=draw.randint(0, 14)) for _ in range(30)]
    columns = [[" ".join(edit_line(line)) for line in hypotheses] for _ in range(references)]
    return [" ".join(line) for line in hypotheses], columns


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "none", "zh"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("references", [1, 2, 3])
def test_corpus_bleu_matches_sacrebleu(tokenize: str, lowercase: bool, references: int) -> None:
    for seed in range(6):
        hypotheses, columns = corpus(seed, references)
        metric = BLEU(tokenize=tokenize, lowercase=lowercase, smooth_method="none")
        expected = [[tokens(metric, line) for line in lines] for lines in zip(*columns, strict=True)]
        ours = corpus_statistics([tokens(metric, line) for line in hypotheses], expected)
        assert_same(ours, metric.corpus_score(hypotheses, columns))
        usual = bleu_metric(tokenize, lowercase=lowercase).corpus_score(hypotheses, columns).score
        assert ours.smoothed_bleu() == pytest.approx(usual, abs=1e-9)
        assert ours.bleu() > 0  # negative control: there are matching n-grams


def differs(owner: object, name: str, broken: object) -> bool:
    """Return whether the comparison above fails if a function is replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, broken)
        for seed in range(6):
            hypotheses, columns = corpus(seed, 2)
            expected = [[line.split() for line in lines] for lines in zip(*columns, strict=True)]
            ours = corpus_statistics([line.split() for line in hypotheses], expected)
            try:
                assert_same(ours, BLEU(tokenize="none", smooth_method="none").corpus_score(hypotheses, columns))
            except AssertionError:
                return True
    return False


def test_wrong_arithmetic_is_detected() -> None:
    plain = bleu.count_ngrams
    assert not differs(bleu, "count_ngrams", plain)
    assert differs(bleu.Count, "clipped", property(lambda count: count.unclipped))
    assert differs(bleu, "count_ngrams", lambda hypothesis, references, n: plain(hypothesis, references[:1], n))
    assert differs(
        bleu, "count_ngrams", lambda hypothesis, references, n: plain(hypothesis, [list(chain(*references))], n)
    )
    assert differs(bleu, "closest_length", lambda length, lengths: min(lengths))
    assert differs(bleu, "closest_length", lambda length, lengths: min(lengths, key=lambda r: (abs(r - length), -r)))


# --- edge cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lengths", "closest"), [([3, 5], 3), ([5, 3], 3), ([9, 4, 9], 4), ([7], 7), ([2, 5], 5)])
def test_closest_length_prefers_the_shorter_reference(lengths: list[int], closest: int) -> None:
    assert bleu.closest_length(4, lengths) == closest


def test_brevity_penalty_applies_only_to_short_hypotheses() -> None:
    def penalty(c: int, r: int) -> float:
        return replace(explain_texts("a", "a").statistics, length=c, reference_length=r).brevity_penalty

    assert penalty(9, 8) == 1
    assert penalty(8, 8) == 1
    assert penalty(8, 9) == pytest.approx(math.exp(1 - 9 / 8))
    assert penalty(0, 3) == 0
    assert penalty(0, 0) == 1


def test_missing_4_grams_are_explained() -> None:
    explanation = explain_texts("He ate it", "He ate it today")
    assert explanation.statistics.bleu() == 0
    text = "\n".join(bleu.describe_sentence(explanation))
    assert "4-grams: a hypothesis of 3 tokens has none" in text
    assert "there is no 4-gram: the hypothesis needs at least 4 tokens, so BLEU-4 is 0" in text
    assert "BP = exp(1 − r/c) = exp(1 − 4/3) = 0.7165" in text
    theirs = BLEU(effective_order=True, tokenize="none").sentence_score("He ate it", ["He ate it today"]).score
    assert f"sacrebleu's score for this line: {theirs:.2f}" in text
    assert f"100 × 0.7165 × (3/3 × 2/2 × 1/1)^(1/3) = {theirs:.2f}" in text
    assert "does not smooth if an order has no n-grams" in "\n".join(
        bleu.describe_corpus(explanation.statistics, 1, explanation.statistics)
    )


def test_smoothing_is_explained() -> None:
    text = "\n".join(bleu.describe_sentence(explain_texts("He He He eats tasty fruit", "He eats fruit", "tasty apple")))
    assert "one factor is 0 because no 3-gram matches, so BLEU-3 and all higher orders are 0" in text
    assert "× 0.5/4 × 0.25/3)^(1/4)" in text
    assert "does not smooth if no token matches" in "\n".join(bleu.describe_sentence(explain_texts("a b c d e", "f g")))


def test_empty_hypothesis_scores_zero() -> None:
    explanation = explain_texts("", "He ate")
    assert explanation.statistics.bleu() == explanation.statistics.smoothed_bleu(is_corpus=False) == 0
    assert "  the hypothesis is empty, so BP = 0" in bleu.describe_sentence(explanation)


def test_all_reference_lengths_are_listed() -> None:
    text = bleu.describe_sentence(explain_texts("a b c d", "a b c", "a b c d e", "a b c d e f"))
    assert "  c = 4 tokens in the hypothesis, r = 3 in the reference, the closest of the lengths 3, 5, 6" in text


def test_explanation_respects_the_line_width() -> None:
    hypothesis = " ".join(f"word{i}" for i in range(60))
    assert max(map(len, bleu.describe_sentence(explain_texts(hypothesis, "another text"))[2:])) <= bleu.LINE_WIDTH
