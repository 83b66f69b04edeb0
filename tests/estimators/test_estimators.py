"""Estimators: fit, predict, evaluate, save and load, and the conventions of scikit-learn."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimators.examples import reviews

import seqloom
from seqloom import Classifier, LanguageModel, PairClassifier, Tagger, Translator


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier("lstm-small", overrides=["train.epochs=8", "model.encoder.hidden=16"]).fit(*reviews(300))


def test_classifier_learns_and_keeps_the_type_of_labels(classifier: Classifier) -> None:
    texts, labels = reviews(300)
    assert classifier.classes_.tolist() == [0, 1]
    assert classifier.predict(["the film was superb", "the film was dull"]) == [1, 0]
    assert classifier.score(texts, labels) > 0.95
    metrics = classifier.evaluate(texts, labels)
    assert metrics["accuracy"] == pytest.approx(classifier.score(texts, labels))
    probabilities = classifier.predict_proba(texts[:7])
    assert probabilities.shape == (7, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (probabilities.argmax(1) == np.array(classifier.predict(texts[:7]))).all()


def test_saved_model_gives_equal_predictions(classifier: Classifier, tmp_path: Path) -> None:
    texts, _ = reviews(20)
    expected = classifier.predict(texts)
    path = classifier.save(tmp_path / "mine")
    assert Classifier.load(path).predict(texts) == expected
    with pytest.raises(FileExistsError, match="exists"):
        classifier.save(path)
    with pytest.raises(ValueError, match="has the task classify; Tagger needs tag"):
        Tagger.load(path)
    assert seqloom.load(path).recipe.task == "classify"


def test_same_seed_gives_the_same_model() -> None:
    texts, labels = reviews(60)
    models = [Classifier(overrides=["train.epochs=2"], seed=seed).fit(texts, labels) for seed in (3, 3, 4)]
    first, second, other = (model.predict_proba(texts) for model in models)
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize("kind", ["list", "tuple", "array", "pandas", "generator"])
def test_predictions_are_equal_for_any_kind_of_input(classifier: Classifier, kind: str) -> None:
    texts, _ = reviews(6)
    kinds: dict[str, Any] = {"list": list, "tuple": tuple, "array": np.array, "generator": iter, "pandas": list}
    values: Any = kinds[kind](texts)
    if kind == "pandas":
        values = pytest.importorskip("pandas").Series(texts)
    assert classifier.predict(values) == classifier.predict(texts)


def test_tagger_learns_tags_and_rejects_invalid_words(tmp_path: Path) -> None:
    generator = random.Random(2)
    tags_of = {"Ann": "NAME", "Bob": "NAME", "runs": "VERB", "sees": "VERB", "a": "DET", "dog": "NOUN", "cat": "NOUN"}
    sentences = [generator.choices(list(tags_of), k=generator.randint(3, 6)) for _ in range(200)]
    tags = [[tags_of[word] for word in sentence] for sentence in sentences]
    model = Tagger(out=tmp_path / "tagger", overrides=["train.epochs=6", "model.encoder.hidden=16"]).fit(
        sentences, tags
    )
    assert model.predict([["Ann", "sees", "a", "cat"]]) == [["NAME", "VERB", "DET", "NOUN"]]
    assert model.evaluate(sentences, tags)["token_accuracy"] > 0.9
    assert (tmp_path / "tagger" / "model.safetensors").is_file()


def test_translator_predicts_lines_and_reports_bleu_and_chrf() -> None:
    generator = random.Random(3)
    digits = [" ".join(map(str, generator.choices(range(10), k=3))) for _ in range(300)]
    words = dict(enumerate(["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]))
    target = [" ".join(words[int(digit)] for digit in line.split()) for line in digits]
    model = Translator(overrides=["train.epochs=1", "model.d_model=16", "tokenizer.size=300"]).fit(digits, target)
    assert len(model.predict(["1 2 3", "4 5 6"])) == 2
    assert {"bleu", "chrf"} <= model.evaluate(digits[:20], target[:20]).keys()
    one, _ = model.predict(["1 2 3", "4 5 6"], glossary={"2": "neun|null"}, forbid=["drei"], beam=5)
    assert ("neun" in one or "null" in one) and "drei" not in one.split()
    assert "acht" in model.predict(["4 5 6"], force=["acht"], beam=5)[0]
    for options, message in (
        ({"glossary": ["2"]}, "glossary must be a dictionary of source and target terms, or a file; got list"),
        ({"glossary": {"2": None}}, r"glossary\['2'\] must be a string; got None"),
        ({"glossary": "missing.tsv"}, "missing.tsv does not exist"),
        ({"force": "acht"}, "force must be a list of terms; got one string"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            model.predict(["1 2 3"], **options)


def test_pair_classifier_predicts_labels_or_scores() -> None:
    texts, labels = reviews(60)
    settings = ["train.epochs=1", "model.backbone.d_model=16"]
    model = PairClassifier(overrides=settings).fit(texts, texts, ["yes" if label else "no" for label in labels])
    assert set(model.predict(texts[:4], texts[:4])) <= {"yes", "no"}
    scores = PairClassifier(overrides=settings).fit(texts, texts, [i / 10 + 0.01 for i in range(60)])
    assert all(isinstance(score, float) for score in scores.predict(texts[:4], texts[:4]))
    assert "pearson" in scores.evaluate(texts, texts, [i / 10 + 0.01 for i in range(60)])


def test_language_model_lowers_perplexity_and_continues_text() -> None:
    texts = ["the cat sat on the mat . " * 3] * 40
    model = LanguageModel(overrides=["train.epochs=4", "model.hidden=32"]).fit(texts)
    assert model.evaluate(texts[:5])["perplexity"] < 10
    (continuation,) = model.predict(["the cat"], max_tokens=20)
    assert isinstance(continuation, str) and continuation


def test_recipe_may_be_a_dictionary_and_resumes(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat .\n" * 200)
    recipe = {
        "task": "language-model",
        "data": {"corpus": "text", "train": str(tmp_path / "text.txt")},
        "tokenizer": {"kind": "characters"},
        "batch": {"size": 4, "length": 16},
        "model": {"kind": "recurrent-lm", "cell": "gru", "hidden": 8},
        "train": {"steps": 6, "schedule": "constant", "save_every": 2},
    }
    events: list[str] = []
    seqloom.train_recipe(
        recipe, "train.steps=3", out=tmp_path / "run", on_event=lambda event: events.append(type(event).__name__)
    )
    assert events[0] == "Started" and "Finished" in events
    steps: list[int] = []
    seqloom.train_recipe(recipe, out=tmp_path / "run", resume=True, on_event=lambda event: steps.append(event.step))
    assert steps[0] == 3 and steps[-1] == 6
