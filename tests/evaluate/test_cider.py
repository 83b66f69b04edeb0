"""CIDEr-D: an independent computation with dense vectors, and properties of the score."""

import numpy as np
import pytest

from seqloom.evaluate.cider import cider_d

RNG = np.random.default_rng(3)


def dense_cider_d(captions: list[list[str]], references: list[list[list[str]]]) -> float:
    """Compute CIDEr-D from the formula of the paper with a matrix of all n-grams."""
    scores = np.zeros(len(captions))
    for n in (1, 2, 3, 4):

        def grams(text: list[str], n: int = n) -> list[str]:
            return [" ".join(text[i : i + n]) for i in range(len(text) + 1 - n)]

        every = {gram for text in [*captions, *(r for refs in references for r in refs)] for gram in grams(text)}
        index = {gram: column for column, gram in enumerate(sorted(every))}

        def count(text: list[str], grams: object = grams, index: dict[str, int] = index) -> np.ndarray:
            vector = np.zeros(len(index))
            for gram in grams(text):  # type: ignore[operator]
                vector[index[gram]] += 1
            return vector

        frequency = np.sum([np.any([count(r) > 0 for r in refs], axis=0) for refs in references], axis=0)
        idf = np.log(len(references)) - np.log(np.maximum(1, frequency))
        for i, (caption, refs) in enumerate(zip(captions, references, strict=True)):
            g = count(caption) * idf
            for reference in refs:
                h = count(reference) * idf
                norm = np.linalg.norm(g) * np.linalg.norm(h)
                similarity = (np.minimum(g, h) @ h) / norm if norm > 0 else 0
                penalty = np.exp(-((len(caption) - len(reference)) ** 2) / 72)
                scores[i] += 10 * penalty * similarity / len(refs) / 4
    return float(100 * scores.mean())


def draw(words: int, most: int) -> list[str]:
    return [f"w{min(int(RNG.exponential(words / 4)), words)}" for _ in range(RNG.integers(0, most))]


@pytest.mark.parametrize("images", [2, 5, 12])
def test_score_matches_the_published_formula(images: int) -> None:
    for _ in range(8):
        references = [[draw(8, 9) for _ in range(RNG.integers(1, 6))] for _ in range(images)]
        captions = [refs[0][:3] + draw(10, 7) for refs in references]
        expected = dense_cider_d(captions, references)
        assert cider_d(captions, references) == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_caption_that_equals_its_only_reference_scores_1000() -> None:
    texts = ["a dog runs on grass", "two men talk to a woman", "the red car is fast"]
    words = [text.split() for text in texts]
    assert cider_d(words, [[each] for each in words]) == pytest.approx(1000)
    assert cider_d(words[1:] + words[:1], [[each] for each in words]) < 20


def test_frequent_words_count_less_and_repetition_does_not_help() -> None:
    references = [[f"a dog w{n} v{n} runs".split()] for n in range(10)]
    rare = cider_d([f"w{n} v{n}".split() for n in range(10)], references)
    frequent = cider_d([["a", "dog"]] * 10, references)
    assert frequent == 0 < rare
    once, twice = (cider_d([[f"w{n}", f"v{n}"] * times for n in range(10)], references) for times in (1, 2))
    assert twice < once


def test_captions_without_words_score_0() -> None:
    assert cider_d([[], ["a"]], [[["a", "b"]], [["c"]]]) == 0
    assert cider_d([["a"]], [[["a"]]]) == 0  # a single image: every n-gram occurs in all images
