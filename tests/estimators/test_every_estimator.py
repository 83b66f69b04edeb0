"""Every estimator: storage, display, and input of any kind, and the results that only one class has."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.estimators.examples import CASES, Case, reviews

import seqloom
from seqloom import (
    Classifier,
    Forecaster,
    InstructionModel,
    LanguageModel,
    MultipleChoice,
    QuestionAnswering,
    SeriesClassifier,
    Tagger,
)

NAMES = [*CASES, "InstructionModel"]


def predict(model: Any, name: str, case_of: dict[str, Case]) -> Any:
    if name == "Forecaster":
        return model.predict(5).tolist()
    data = case_of["LanguageModel" if name == "InstructionModel" else name]
    inputs = [data.data.get(key, ["film"] * 4)[:4] for key in data.inputs]
    return model.predict(*inputs)


@pytest.mark.parametrize("name", NAMES)
def test_saved_model_gives_equal_predictions(
    fitted: dict[str, Any], case_of: dict[str, Case], name: str, tmp_path: Path
) -> None:
    model = fitted[name]
    expected = predict(model, name, case_of)
    assert isinstance(expected, list) and len(expected) in (4, 5)
    original = model.predictor.run.path
    path = model.save(tmp_path / "saved")
    model.predictor_ = seqloom.load(original)
    loaded = type(model).load(path)
    assert predict(loaded, name, case_of) == expected
    assert type(loaded.predictor) is type(seqloom.load(path))
    with pytest.raises(FileExistsError, match="exists; choose another directory"):
        model.save(path)
    other = Tagger if name == "Classifier" else Classifier
    with pytest.raises(ValueError, match=f"has the task .*; {other.__name__} needs"):
        other.load(path)


@pytest.mark.parametrize("name", NAMES)
def test_estimators_have_an_informative_repr(fitted: dict[str, Any], name: str) -> None:
    pytest.importorskip("matplotlib")
    model = fitted[name]
    assert repr(model).startswith(f"{name}(") and "): <" in repr(model) and "; dev: " in repr(model)
    html = model._repr_html_()
    assert html.startswith(f"<p>{name}(") and '<img alt="' in html and "<recurrent" not in html
    assert model._repr_png_().startswith(b"\x89PNG")
    assert type(model)()._repr_html_() == f"<p>{name}(): not trained</p>" and type(model)()._repr_png_() is None


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_a_table(fitted: dict[str, Any], case_of: dict[str, Case], name: str) -> None:
    metrics = fitted[name].evaluate(*case_of[name].data.values())
    assert metrics and all(isinstance(value, float) for value in metrics.values())
    assert json.loads(json.dumps(metrics)) == metrics or name == "Forecaster"
    assert metrics._repr_html_().count("<tr>") == len(metrics) + 1


def test_files_of_the_user_are_not_overwritten(tmp_path: Path) -> None:
    texts, labels = reviews(40)
    (tmp_path / "mine.jsonl").write_text("precious")
    model = Classifier("bag", out=tmp_path / "mine", overrides=["train.epochs=1"]).fit(texts, labels)
    assert (tmp_path / "mine.jsonl").read_text() == "precious"
    assert model.predictor.run.path == tmp_path / "mine"
    with pytest.raises(FileExistsError, match="mine exists; set another `out`, or remove it first"):
        model.fit(texts, labels)


def test_run_of_an_estimator_can_be_evaluated(tmp_path: Path) -> None:
    texts, labels = reviews(40)
    Classifier("bag", out=tmp_path / "mine", overrides=["train.epochs=1"]).fit(texts, labels)
    run = seqloom.load(tmp_path / "mine")
    assert "accuracy" in run.evaluate("dev")
    assert [p.label for p in run.classify(texts[:3])] == [
        str(p) for p in Classifier.load(tmp_path / "mine").predict(texts[:3])
    ]


def test_files_are_read_as_in_init(tmp_path: Path) -> None:
    """Read cells with quotes, line breaks and emoji, Windows-1252, a translation memory, tagged words, and books."""
    words = [("printer", "it"), ("invoice", "billing")]
    rows = (f'{i},"He said ""hi"" 😀\n{words[i % 2][0]} {i}",{words[i % 2][1]}\n' for i in range(80))
    (tmp_path / "tickets.csv").write_text("id,body,queue\n" + "".join(rows))
    settings = {"model": "bag", "overrides": ["train.epochs=4"]}
    tickets = Classifier(**settings).fit_file(tmp_path / "tickets.csv", column="body", label="queue")  # type: ignore[arg-type]
    assert tickets.predict(["the printer", "an invoice"]) == ["it", "billing"]
    assert tickets.evaluate_file(tmp_path / "tickets.csv")["accuracy"] == 1
    old = "".join(f"„Grüße“ – {words[i % 2][0]} {i},{words[i % 2][1]}\n" for i in range(80))
    (tmp_path / "old.csv").write_bytes(f"text,label\n{old}".encode("cp1252"))
    windows = Classifier(**settings).fit_file(tmp_path / "old.csv")  # type: ignore[arg-type]
    assert windows.predictor.recipe.data.encoding == "cp1252" and windows.predict(["printer"]) == ["it"]
    units = (
        f'<tu><tuv xml:lang="en"><seg>{i} pears</seg></tuv><tuv xml:lang="de"><seg>{i} Birnen</seg></tuv></tu>'
        for i in range(60)
    )
    memory = f'<tmx version="1.4"><header srclang="en"/><body>{"".join(units)}</body></tmx>'
    (tmp_path / "memory.tmx").write_text(f'<?xml version="1.0"?>{memory}')
    translator = seqloom.Translator(overrides=["train.steps=2", "model.d_model=16"]).fit_file(tmp_path / "memory.tmx")
    assert translator.predictor.run.data["source"] == "en" and "bleu" in translator.evaluate_file(
        tmp_path / "memory.tmx"
    )
    sentences = (f"Ann{n}\tB-PER\nlives\tO\nin\tO\nRome{n}\tB-LOC\n" for n in range(60))
    (tmp_path / "names.conll").write_text("\n".join(sentences))
    tagger = Tagger("hmm").fit_file(tmp_path / "names.conll")
    assert tagger.predict([["Ann3", "lives"]]) == [["B-PER", "O"]]
    (tmp_path / "books").mkdir()
    for number in range(3):
        (tmp_path / "books" / f"{number}.txt").write_text("Chapter one.\n\nIt was a dark night.\n" * 20)
    books = LanguageModel(overrides=["train.steps=2", "model.hidden=8"]).fit_file(tmp_path / "books")
    assert books.predictor.run.data["counts"]["train"]["documents"] == 3
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        Classifier().fit_file(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="was not recognized as data for the task pair"):
        seqloom.PairClassifier().fit_file(tmp_path / "old.csv")


def test_multiple_choice_takes_indices_and_texts_of_answers() -> None:
    texts, _ = reviews(120)
    ends = ["idea", "plan", "film"]
    rows = [[f"a good {ends[i % 3]}", f"a bad {ends[i % 2]}"] for i in range(120)]
    options = [row if i % 3 else row[::-1] for i, row in enumerate(rows)]
    right = [int(i % 3 == 0) for i in range(120)]
    settings = ["train.epochs=4", "model.backbone.d_model=16", "train.lr=5.0e-3", "train.warmup=5", "batch.tokens=256"]
    models = [
        MultipleChoice(overrides=settings).fit(texts, options, answers)
        for answers in (right, np.array(right), [row[index] for row, index in zip(options, right, strict=True)])
    ]
    first, *others = (model.predict(texts, options) for model in models)
    assert others == [first, first] and models[0].score(texts, options, right) > 0.9
    assert models[0].predict([" "], [["a", "b"]]) == [0]


def test_question_answering_finds_spans() -> None:
    places, names = ["Rome", "Oslo", "Lima", "Bern"], ["Ann", "Bob", "Eve"]
    contexts = [f"{names[i % 3]} lives in {places[i % 4]} ." for i in range(240)]
    questions = [f"Where does {names[i % 3]} live?" for i in range(240)]
    answers = [places[i % 4] for i in range(240)]
    squad = [{"text": [a], "answer_start": [c.index(a)]} for a, c in zip(answers, contexts, strict=True)]
    settings = ["train.epochs=6", "model.backbone.d_model=32", "train.lr=3.0e-3"]
    model = QuestionAnswering(overrides=settings).fit(questions, contexts, answers)
    predicted = model.predict(questions[:12], contexts[:12])
    assert all(answer in context for answer, context in zip(predicted, contexts, strict=False))
    assert model.predict(questions[:2], contexts[0]) == model.predict(questions[:2], [contexts[0]] * 2)
    metrics = model.evaluate(questions, contexts, answers)
    assert (
        metrics
        == model.evaluate(questions, contexts, squad)
        == model.evaluate(questions, contexts, [[answer] for answer in answers])
    )
    assert metrics["answer_exact"] > 0.9


def test_hidden_markov_tagger_learns_tags(fitted: dict[str, Any], case_of: dict[str, Case]) -> None:
    model, data = fitted["Tagger"], case_of["Tagger"].data
    assert model.predictor.recipe.task == "hmm-tag"
    assert model.predict(data["sentences"][:5]) == data["tags"][:5]
    assert model.evaluate(**data)["token_accuracy"] > 0.95


def test_instructions_are_learned() -> None:
    prompts, _ = reviews(80)
    base = LanguageModel(overrides=["train.epochs=2", "model.hidden=32"]).fit(prompts)
    settings = ["train.epochs=10", "train.lr=1.0e-2", "train.warmup=5", "batch.tokens=512"]
    tuned = InstructionModel(pretrained=base, overrides=settings).fit(prompts, ["film"] * 80)
    assert tuned.predict(prompts[:2], max_tokens=10) == ["film", "film"]
    assert tuned.evaluate(prompts, ["film"] * 80)["exact"] == 1
    assert all(isinstance(text, str) for text in tuned.predict(prompts[:2], inputs=["a plot", ""], max_tokens=10))
    with pytest.raises(ValueError, match=r"prompts \(1\) and inputs \(2\) differ in length"):
        tuned.predict(["the film"], inputs=["a", "b"])


def test_texts_with_blank_lines_are_single_documents() -> None:
    books = [f"chapter {i}\n\nthe cat sat on the mat\n\nthe end" for i in range(30)]
    model = LanguageModel(overrides=["train.epochs=1", "model.hidden=8"]).fit(books)
    assert model.predictor.recipe.data.documents == "file"
    assert model.predictor.run.data["counts"]["train"]["documents"] >= 28
    lines = LanguageModel(overrides=["train.epochs=1", "model.hidden=8"]).fit(["the cat sat"] * 40)
    assert lines.predictor.run.data["counts"]["train"]["documents"] == 38


def test_word_vectors_find_neighbours_and_transform_texts(fitted: dict[str, Any]) -> None:
    model = fitted["WordVectors"]
    assert {"film", "story"} <= set(model.words) and model.vectors(["film", "story"]).shape == (2, 4)
    (nearest, unknown) = model.predict(["film", "zzz"], top=3)
    assert [near.word for near in model.most_similar("film", top=3)] == nearest and len(nearest) == 3 and unknown == []
    np.testing.assert_allclose(
        model.transform(["film story"])[0], model.vectors(["film", "story"]).mean(axis=0), rtol=1e-5
    )
    with pytest.raises(ValueError, match="has no vector of 'flim'; did you mean film"):
        model.vectors(["flim"])


# --- series -----------------------------------------------------------------------------------------------------------


def test_forecast_of_a_seasonal_series_is_exact_and_needs_no_files(tmp_path: Path) -> None:
    season = np.array([1.0, 5, 2, 8, 3, 9, 4])
    values = np.tile(season, 20) + np.arange(140) / 10
    model = Forecaster("ar").fit(values[:133], season=7)
    np.testing.assert_allclose(model.predict(7), values[133:], atol=1e-3)
    np.testing.assert_allclose(model.predict(3, values[:100]), values[100:103], atol=1e-3)
    assert model.evaluate(values[133:])["mase"] < 0.01
    forecast = model.forecast(7)
    assert forecast._repr_png_().startswith(b"\x89PNG")  # type: ignore[union-attr]
    low, high = forecast.intervals[0.8]
    assert (low <= high).all()
    model.save(tmp_path / "saved")
    loaded = Forecaster.load(tmp_path / "saved")
    expected = model.predict(7)
    del model  # removes the temporary folder with the series
    np.testing.assert_array_equal(loaded.predict(7), expected)


@pytest.mark.parametrize("model", ["ar", "kalman", "lstm", "ffn", "transformer"])
def test_every_forecaster_is_selected_by_name(model: str) -> None:
    overrides = ["train.steps=2"] if model in ("lstm", "ffn", "transformer") else []
    trained = Forecaster(model, overrides=overrides).fit(np.sin(np.arange(40)))
    assert trained.predictor.run.recipe["model"]["kind"] == model and trained.predict(4).shape == (4,)


def test_times_come_from_the_index_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2024-01-01", periods=100, freq="D")
    values = np.sin(np.arange(100) * 2 * np.pi / 7)
    model = Forecaster("ar").fit(pandas.Series(values, index=index))
    assert model.predictor.season == 7 and model.forecast(2).labels == ["2024-04-10", "2024-04-11"]
    by_list = Forecaster("ar").fit(list(values), [str(day.date()) for day in index])
    np.testing.assert_array_equal(by_list.predict(5), model.predict(5))
    table = pandas.DataFrame({"a": values, "b": values**2}, index=index)
    several = Forecaster("ar").fit(table)
    assert several.predictor.columns == ("a", "b") and several.predict(3).shape == (3, 2)
    with pytest.raises(ValueError, match="values must have 2 variables, as in training; got 1"):
        several.predict(3, values)


def test_missing_values_of_a_series_are_kept_as_gaps() -> None:
    values = np.sin(np.arange(30) / 2)
    values[[10, 11, 20]] = np.nan
    model = Forecaster("kalman").fit(values)
    assert np.isnan(model.history.values).sum() == 3 and np.isfinite(model.predict(5)).all()


def test_series_of_several_lengths_and_variables_are_classified() -> None:
    waves = [np.sin(np.arange(20 + i % 7) * (0.2 if i % 2 else 1.2)) for i in range(80)]
    labels = ["slow" if i % 2 else "fast" for i in range(80)]
    model = SeriesClassifier(overrides=["train.epochs=6"]).fit(waves, labels)
    assert model.score(waves, labels) > 0.9
    both = [np.stack([wave, -wave], axis=1) for wave in waves]
    double = SeriesClassifier(overrides=["train.epochs=6"]).fit(both, labels)
    assert double.score(both, labels) > 0.9
    with pytest.raises(ValueError, match="2"):
        double.predict(waves)
