import logging
import math
import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.compat import corpus_bleu, corpus_chrf

from seqloom.core.errors import DataError
from seqloom.decoding.beam import BeamConfig
from seqloom.evaluate import translation
from seqloom.evaluate.translation import (
    TranslatedLine,
    bleu,
    bleu_tokenizer,
    by_length,
    describe_decoding,
    length_unit,
    report,
    score_translations,
    sentence_length,
)

WORDS = ("the", "cat", "sat", "on", "a", "mat", "while", "The", "Owl", "slept", "in", "hay", ".")


def draw_lines(count: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Draw hypotheses and references that differ in one of five words."""
    draw = random.Random(seed)
    references = [draw.choices(WORDS, k=draw.randint(3, 25)) for _ in range(count)]
    hypotheses = [[word if draw.random() < 0.8 else draw.choice(WORDS) for word in line] for line in references]
    return [" ".join(line) for line in hypotheses], [" ".join(line) for line in references]


def test_scores_match_sacrebleu() -> None:
    hypotheses, expected = draw_lines(60)
    metrics = score_translations(hypotheses, expected, language="de").metrics
    assert list(metrics) == ["bleu", "bleu_lowercase", "chrf", "exact_match"]
    assert metrics["bleu"] == corpus_bleu(hypotheses, [expected], force=True).score
    assert (
        metrics["bleu_lowercase"]
        == corpus_bleu(hypotheses, [expected], force=True, lowercase=True).score
        > metrics["bleu"]
    )
    assert metrics["chrf"] == corpus_chrf(hypotheses, [expected]).score
    assert metrics["bleu"] == bleu(hypotheses, expected, language="de")


def test_exact_match_ignores_only_white_space() -> None:
    hypotheses = ["a b", " a  b ", "a\u00a0b", "A b", "a b .", ""]
    metrics = score_translations(hypotheses, ["a b"] * 5 + [""], language="en").metrics
    assert metrics["exact_match"] == 3 / 5  # blank pairs are excluded
    assert score_translations([""], [""], language="en").metrics["exact_match"] == 0


def test_perfect_translation_has_maximum_scores() -> None:
    _, expected = draw_lines(10)
    metrics = score_translations(expected, expected, language="en").metrics
    assert [round(metrics[name], 9) for name in ("bleu", "bleu_lowercase", "chrf", "exact_match")] == [100, 100, 100, 1]


@pytest.mark.parametrize(
    ("language", "tokenize"),
    [
        *(("en", "13a"), ("", "13a"), ("ko", "13a"), ("pt-BR", "13a"), ("thx", "13a"), ("jam", "13a")),
        *(
            ("ja", "char"),
            ("zh", "char"),
            ("th", "char"),
            ("ja-JP", "char"),
            ("zh-Hant-TW", "char"),
            ("zh_Hans", "char"),
        ),
    ],
)
def test_tokenizer_depends_on_the_language(language: str, tokenize: str) -> None:
    assert bleu_tokenizer(language) == tokenize
    signatures = score_translations(["東京 です"], ["東京 です"], language=language).signatures
    assert f"|tok:{tokenize}|" in signatures["bleu"] and "|case:mixed|" in signatures["bleu"]
    assert f"|tok:{tokenize}|" in signatures["bleu_lowercase"] and "|case:lc|" in signatures["bleu_lowercase"]
    assert "|nc:6|" in signatures["chrf"] and "version:" in signatures["chrf"]
    spaced = tokenize == "13a"
    assert length_unit(language) == ("words" if spaced else "characters")
    assert sentence_length("東京 です ", language) == (2 if spaced else 4)


def test_invalid_inputs_are_rejected() -> None:
    with pytest.raises(DataError, match="2 references and 1 translations"):
        score_translations(["a"], ["a", "b"], language="en")
    with pytest.raises(DataError, match="no sentence pairs to evaluate"):
        score_translations([], [], language="en")


def test_scoring_logs_no_warnings_or_downloads(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        score_translations(["a tokenized line ."] * 120, ["a tokenized line ."] * 120, language="ja")
    assert caplog.records == []


def test_sacrebleu_and_torch_are_imported_lazily() -> None:
    program = (
        "import sys, seqloom.evaluate.translation, seqloom.evaluate.bleu;"
        "sys.exit('torch' in sys.modules or 'sacrebleu' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# --- by length ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=200), st.integers(0, 5000))
def test_every_sentence_is_in_one_row(lengths: list[int], last_length: int) -> None:
    lengths = [*lengths, last_length]
    rows = by_length(lengths, ["a b c d"] * len(lengths), ["a b c d"] * len(lengths), language="en")
    assert sum(row.pairs for row in rows) == len(lengths)
    assert (rows[0].low, rows[-1].high) == (min(lengths), max(lengths))
    assert all(first.high < second.low for first, second in pairwise(rows))
    for row in rows:
        assert row.pairs == sum(row.low <= length <= row.high for length in lengths)
        assert row.pairs >= min(len(lengths), translation.MIN_BUCKET_SIZE)
    assert len(rows) <= translation.MAX_BUCKETS + 1


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([1] * 3 + [12] * 50 + [31] * 50, [(1, 12, 53), (31, 31, 50)]),  # few short sentences
        ([1] * 30 + [12] * 50 + [31] * 5, [(1, 1, 30), (12, 31, 55)]),  # few long sentences
        ([3] * 30 + [4] * 30 + [900], [(3, 3, 30), (4, 900, 31)]),  # an outlier does not widen the buckets
        ([5] * 4, [(5, 5, 4)]),
        ([0] * 2, [(0, 0, 2)]),
    ],
)
def test_small_buckets_are_merged(lengths: list[int], rows: list[tuple[int, int, int]]) -> None:
    buckets = by_length(lengths, ["a"] * len(lengths), ["a"] * len(lengths), language="en")
    assert [(row.low, row.high, row.pairs) for row in buckets] == rows


def test_bleu_of_each_row_is_that_of_its_sentences() -> None:
    hypotheses, expected = draw_lines(300)
    lengths = [len(line.split()) for line in expected]
    rows = by_length(lengths, hypotheses, expected, language="en")
    assert len(rows) >= 4
    for row in rows:
        members = [index for index, length in enumerate(lengths) if row.low <= length <= row.high]
        assert row.bleu == bleu([hypotheses[i] for i in members], [expected[i] for i in members], language="en")


def test_buckets_do_not_depend_on_the_hypotheses() -> None:
    hypotheses, expected = draw_lines(300)
    lengths = [len(line.split()) for line in expected]
    first, second = (by_length(lengths, lines, expected, language="en") for lines in (hypotheses, expected))
    assert [(row.low, row.high, row.pairs) for row in first] == [(row.low, row.high, row.pairs) for row in second]
    assert [row.bleu for row in second] == pytest.approx([100] * len(second))


# --- reports --------------------------------------------------------------------------------------------------------


def test_report_contains_scores_metrics_and_length_buckets() -> None:
    hypotheses, expected = draw_lines(40)
    lines = [
        TranslatedLine(f"source {i}", reference, hypothesis)
        for i, (hypothesis, reference) in enumerate(zip(hypotheses, expected, strict=True))
    ]
    result = report(
        lines,
        source_language="en",
        target_language="de",
        decoding="beam 5",
        before={"loss": 1.0, "perplexity": math.e},
        after={"baseline_bleu": 3.0},
    )
    scores = score_translations(hypotheses, expected, language="de")
    assert result.metrics == {"loss": 1.0, "perplexity": math.e, **scores.metrics, "baseline_bleu": 3.0}
    assert [*result.metrics][:2] == ["loss", "perplexity"] and [*result.metrics][-1] == "baseline_bleu"
    assert result.signatures == scores.signatures
    assert [(row.low, row.high, row.pairs) for row in result.by_length] == [(2, 2, 40)]
    assert (result.unit, result.decoding, result.hypotheses) == ("words", "beam 5", hypotheses)


def test_examples_show_mistakes_first() -> None:
    lines = [TranslatedLine("s", "right", "right" if i % 4 else "wrong") for i in range(40)]
    result = report(lines, source_language="en", target_language="de", decoding="")
    assert [line.hypothesis for line in result.examples(4)] == ["wrong"] * 4
    assert [line.hypothesis for line in result.examples(12)] == ["wrong"] * 10 + ["right"] * 2
    assert result.examples(0) == []
    assert len(result.examples(100)) == 40


def test_decoding_is_described_with_its_non_default_options() -> None:
    assert describe_decoding(BeamConfig()) == "beam search, 5 hypotheses, length penalty 1"
    assert describe_decoding(BeamConfig(beam=1)) == "greedy search"
    full = BeamConfig(beam=3, length_penalty=0.6, coverage_penalty=0.2, min_length=2, max_length=9, stopping="exact")
    assert describe_decoding(full) == (
        "beam search, 3 hypotheses, length penalty 0.6, coverage penalty 0.2, "
        "at least 2 tokens, at most 9 tokens, exact stopping"
    )
