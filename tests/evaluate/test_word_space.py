"""Neighbours and analogies compared with loops and gensim, and metrics with their coverage."""

import numpy as np
import pytest

from seqloom.core.errors import DataError, UsageError
from seqloom.evaluate.word_space import Analogy, RatedPair, WordSpace, analogies, as_metrics, measure, rate_pairs

WORDS = ["the", "king", "queen", "man", "woman", "King", "paris", "france", "rome", "italy"]


def space(words=WORDS, width=6, seed=0, **keys):
    return WordSpace(
        list(words), np.random.default_rng(seed).normal(size=(len(words), width)).astype(np.float32), **keys
    )


def cosine(x, y):
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_nearest_words_match_those_of_a_loop():
    word_space = space()
    expected = sorted(
        ((cosine(word_space.vector("king"), word_space.vector(word)), word) for word in WORDS if word != "king"),
        reverse=True,
    )
    actual = word_space.similar("king", 4)
    assert [near.word for near in actual] == [word for _, word in expected[:4]]
    assert [near.score for near in actual] == pytest.approx([score for score, _ in expected[:4]], abs=1e-6)
    assert len(word_space.similar("king", 100)) == len(WORDS) - 1


def test_analogy_adds_unit_vectors():
    word_space = space()
    a, b, c = (word_space.vector(word) / np.linalg.norm(word_space.vector(word)) for word in ("man", "woman", "king"))
    scores = {
        word: cosine(b - a + c, word_space.vector(word)) for word in WORDS if word not in ("man", "woman", "king")
    }
    actual = word_space.analogy("man", "woman", "king", 3)
    assert [near.word for near in actual] == sorted(scores, key=scores.__getitem__, reverse=True)[:3]
    assert actual[0].score == pytest.approx(max(scores.values()), abs=1e-6)


def test_error_for_an_unknown_word_suggests_similar_spellings():
    with pytest.raises(UsageError, match=r"no vector of 'quen'; did you mean queen\?"):
        space().similar("quen")
    with pytest.raises(UsageError, match=r"no vector of 'PARIS'; did you mean paris\?"):
        space().similar("PARIS")
    with pytest.raises(UsageError, match="none of its 10 words has a similar spelling"):
        space().similar("zzzzz")
    assert space(lowercase=True).index("PARIS") == WORDS.index("paris")
    with pytest.raises(UsageError, match="top must be at least 1"):
        space().similar("king", 0)
    with pytest.raises(DataError, match="At least two word vectors"):
        space(["one"])


def test_zero_vector_has_zero_similarity():
    word_space = WordSpace(["a", "b", "c"], np.array([[0, 0], [1, 0], [2, 0]], dtype=np.float32))
    assert [near.score for near in word_space.similar("a")] == [0, 0]
    assert word_space.similar("b")[0].word == "c"


def test_results_match_gensim():
    """Compare neighbours, Spearman's ρ and the accuracy of analogies."""
    models = pytest.importorskip("gensim.models")
    generator = np.random.default_rng(1)
    words = [f"w{n}" for n in range(60)]
    base = generator.normal(size=(6, 5))
    vectors = (base[np.arange(60) % 6] + 3 * base[np.arange(60) // 10] + generator.normal(size=(60, 5)) * 0.4).astype(
        "f4"
    )
    ours, theirs = WordSpace(words, vectors), models.KeyedVectors(5)
    theirs.add_vectors(words, vectors)
    for word in words[:5]:
        assert [n.word for n in ours.similar(word, 7)] == [name for name, _ in theirs.most_similar(word, topn=7)]
    quartets = [[f"w{10 * g + k}" for g, k in ((a, x), (a, y), (b, x), (b, y))]
                for a in range(5) for b in range(5) for x, y in ((0, 1), (2, 5)) if a != b]  # fmt: skip
    questions = [Analogy(quartet[0], quartet[1], quartet[2], quartet[3], syntactic=False) for quartet in quartets]
    right = sum(theirs.most_similar(positive=[b, c], negative=[a], topn=1)[0][0] == d for a, b, c, d in quartets)
    assert 0 < right < len(questions)
    assert analogies(ours, questions)[""].value == pytest.approx(right / len(questions))
    pairs = [RatedPair(words[i], words[j], float(generator.normal())) for i, j in generator.integers(0, 60, (40, 2))]
    cosines = [theirs.similarity(pair.first, pair.second) for pair in pairs]
    stats = pytest.importorskip("scipy.stats")
    assert rate_pairs(ours, pairs).value == pytest.approx(
        stats.spearmanr(cosines, [pair.score for pair in pairs]).statistic
    )


def test_metrics_report_their_coverage():
    word_space = space([f"w{n}" for n in range(20)])
    pairs = [RatedPair(f"w{n}", f"W{n + 1}", n) for n in range(12)] + [RatedPair("w1", "other", 1)] * 4
    questions = [Analogy(f"w{n}", f"w{n + 1}", f"w{n + 2}", f"w{n + 3}", syntactic=n % 2 == 0) for n in range(25)]
    actual = measure(word_space, {"wordsim353": pairs}, questions)
    assert (actual["wordsim353"].evaluated, actual["wordsim353"].total) == (12, 16)
    assert actual["analogies"].evaluated == 17 and actual["analogies"].coverage == 17 / 25
    assert actual["analogies_semantic"].value is None  # not available, because eight questions are too few
    metrics = as_metrics(actual.items())
    assert metrics["wordsim353_coverage"] == 0.75 and "analogies_semantic" not in metrics
    assert actual["wordsim353"].interval is not None


def test_words_differing_in_case_are_one_candidate():
    """`KING` must not hide queen, and it must not be an answer besides king."""
    vectors = np.eye(6, dtype=np.float32)
    rows = {"man": vectors[0], "woman": vectors[0] + vectors[1], "king": vectors[2] + vectors[0]}
    rows |= {
        "queen": vectors[2] + vectors[0] + vectors[1],
        "KING": rows["king"] * 1.01 + vectors[1] * 0.9,
        "x": vectors[5],
    }
    word_space = WordSpace(list(rows), np.stack(list(rows.values())))
    questions = [Analogy("Man", "Woman", "King", "Queen", syntactic=False)] * 10
    assert analogies(word_space, questions)[""].value == 1.0
