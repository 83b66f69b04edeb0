"""Small data for every estimator, and settings with which it trains in less than a second."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import seqloom

GOOD, BAD = ["great", "lovely", "brilliant", "superb"], ["dull", "awful", "boring", "weak"]
FILLERS = ["the", "film", "was", "a", "really", "quite", "story", "plot"]
SMALL_BERT = ("train.epochs=1", "model.backbone.d_model=16")


def reviews(count: int) -> tuple[list[str], list[int]]:
    """Return texts that contain a good or a bad word, and their labels 1 and 0."""
    generator, texts, labels = random.Random(1), [], []
    for i in range(count):
        words = [*generator.choices(FILLERS, k=5), generator.choice(GOOD if i % 2 else BAD)]
        generator.shuffle(words)
        texts.append(" ".join(words))
        labels.append(i % 2)
    return texts, labels


@dataclass
class Case:
    """An estimator with valid arguments of `fit`, by name, and the arguments that `predict` shares."""

    make: Any
    data: dict[str, Any]
    inputs: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def fit(self) -> Any:
        return self.make(overrides=self.overrides, **self.options).fit(*self.data.values())


def cases() -> dict[str, Case]:
    texts, labels = reviews(120)
    answers = [text.split()[0] for text in texts]
    waves = [np.sin(np.arange(20) * (0.3 if label else 0.9) + i) for i, label in enumerate(labels)]
    pixels = np.random.default_rng(1).integers(0, 100, (len(texts), 12, 12), dtype=np.uint8)
    images = pixels + 120 * np.array(labels, dtype=np.uint8)[:, None, None]  # images with the label 1 are brighter
    tags = [["GOOD" if word in GOOD else "WORD" for word in text.split()] for text in texts]
    return {
        "Classifier": Case(
            seqloom.Classifier, {"texts": texts, "labels": labels}, ("texts",), ("train.epochs=2",), {"model": "bag"}
        ),
        "PairClassifier": Case(
            seqloom.PairClassifier,
            {"first": texts, "second": texts, "labels": labels},
            ("first", "second"),
            SMALL_BERT,
        ),
        "MultipleChoice": Case(
            seqloom.MultipleChoice,
            {"texts": texts, "options": [["good", "bad"]] * len(texts), "answers": labels},
            ("texts", "options"),
            SMALL_BERT,
        ),
        "QuestionAnswering": Case(
            seqloom.QuestionAnswering,
            {"questions": texts, "contexts": texts, "answers": answers},
            ("questions", "contexts"),
            SMALL_BERT,
        ),
        "Tagger": Case(
            seqloom.Tagger,
            {"sentences": [text.split() for text in texts], "tags": tags},
            ("sentences",),
            options={"model": "hmm"},
        ),
        "Translator": Case(
            seqloom.Translator,
            {"source": texts, "target": texts},
            ("source",),
            ("train.epochs=1", "model.d_model=16", "tokenizer.size=300"),
        ),
        "LanguageModel": Case(
            seqloom.LanguageModel, {"texts": texts}, ("texts",), ("train.epochs=1", "model.hidden=8")
        ),
        "WordVectors": Case(
            seqloom.WordVectors, {"texts": texts}, ("words",), ("train.epochs=1", "model.vector_size=4")
        ),
        "Forecaster": Case(seqloom.Forecaster, {"values": np.sin(np.arange(60) / 3)}, ("horizon",)),
        "ImageClassifier": Case(
            seqloom.ImageClassifier, {"images": images, "labels": labels}, ("images",), ("train.epochs=3",)
        ),
        "SeriesClassifier": Case(
            seqloom.SeriesClassifier, {"series": waves, "labels": labels}, ("series",), ("train.epochs=1",)
        ),
    }


CASES = cases()
