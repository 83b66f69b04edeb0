"""Wrong arguments of all estimators and of methods of loaded models. A one-sentence message names the argument."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.estimators.examples import CASES, Case, reviews

import seqloom


class Table:
    """An object like a data frame of pandas or polars, which need not be installed."""

    shape, columns = (120, 2), ("a", "b")

    def __iter__(self) -> Any:
        return iter(self.columns)


NAN = float("nan")
WRONG_LISTS: dict[str, Any] = {
    "None": None,
    "number": 3,
    "text": "a text",
    "bytes": b"a text",
    "dictionary": {"a": 1},
    "set": {"a"},
    "table": Table(),
    "array": np.zeros((120, 2, 2, 2)),
    "missing": [None] * 120,
    "nan": [NAN] * 120,
    "bytes in a list": [b"a"] * 120,
    "objects": [object()] * 120,
    "short": ["a"],
    "empty": [],
}
HASHABLE = ("bytes in a list", "objects", "bytes")  # valid labels
FIT_ARGUMENTS = [(name, argument) for name, case in CASES.items() for argument in case.data]
ONE_TEXT_IS_VALID = {("QuestionAnswering", "contexts")}


def is_valid(name: str, argument: str, kind: str) -> bool:
    if argument == "labels":
        return kind in HASHABLE and not (name == "SeriesClassifier" and kind == "bytes")
    return kind == "text" and (name, argument) in ONE_TEXT_IS_VALID


def explain(call: Callable[[], object]) -> str:
    """Return the message of the TypeError or ValueError that a call raises."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) in (TypeError, ValueError)  # and not a subclass, such as UnicodeDecodeError
    assert "\n" not in message and "object has no attribute" not in message and "/tmp" not in message
    return message


@pytest.mark.parametrize(("name", "argument"), FIT_ARGUMENTS)
@pytest.mark.parametrize("kind", WRONG_LISTS)
def test_errors_of_fit_explain_wrong_arguments(case_of: dict[str, Case], name: str, argument: str, kind: str) -> None:
    case = case_of[name]
    if (argument == "labels" and kind in HASHABLE) or is_valid(name, argument, kind):
        pytest.skip("valid")
    if kind == "short" and len(case.data) == 1:
        pytest.skip("a single argument has no other length; see the test of small data")
    estimator = case.make(overrides=case.overrides, **case.options)
    message = explain(lambda: estimator.fit(**{**case.data, argument: WRONG_LISTS[kind]}))
    assert re.search(rf"\b{argument}\b", message), message
    assert not hasattr(estimator, "predictor_")


@pytest.mark.parametrize("kind", WRONG_LISTS)
@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, case in CASES.items() for argument in case.inputs]
)
def test_errors_of_predict_explain_wrong_arguments(
    fitted: dict[str, Any], case_of: dict[str, Case], name: str, argument: str, kind: str
) -> None:
    case, model = case_of[name], fitted[name]
    single = len(case.inputs) == 1
    if is_valid(name, argument, kind) or (single and kind == "empty") or (single and kind == "short"):
        pytest.skip("valid")
    if name == "Forecaster" and kind in ("None", "number", "array"):
        pytest.skip("valid, or not a horizon")
    names = {"texts": "prompts"} if name == "LanguageModel" else {}
    arguments = {names.get(key, key): case.data.get(key) for key in case.inputs} | {
        names.get(argument, argument): WRONG_LISTS[kind]
    }
    message = explain(lambda: model.predict(**arguments))
    assert re.search(rf"\b{names.get(argument, argument)}\b", message), message


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if name != "Forecaster"])
def test_predictions_for_no_inputs_are_empty(fitted: dict[str, Any], case_of: dict[str, Case], name: str) -> None:
    result = fitted[name].predict(*([] for _ in case_of[name].inputs))
    assert result == [] and isinstance(result, list)


@pytest.mark.parametrize(("name", "argument"), FIT_ARGUMENTS)
def test_errors_of_evaluate_explain_wrong_arguments(
    fitted: dict[str, Any], case_of: dict[str, Case], name: str, argument: str
) -> None:
    if name == "WordVectors":
        argument = "texts"
    for kind in ("None", "number", "dictionary", "table", "array", "nan", "empty"):
        message = explain(lambda: fitted[name].evaluate(**{**case_of[name].data, argument: WRONG_LISTS[kind]}))  # noqa: B023
        assert re.search(rf"\b{argument}\b", message), (kind, message)


@pytest.mark.parametrize("name", CASES)
def test_too_little_data_is_explained(case_of: dict[str, Case], name: str) -> None:
    case = case_of[name]
    estimator = case.make(overrides=case.overrides, **case.options)
    message = explain(lambda: estimator.fit(*(values[:1] for values in case.data.values())))
    # A Python user does not know the keys of recipes and the files
    assert "data." not in message and "file" not in message
    if "labels" in case.data or name == "Forecaster":
        message = explain(lambda: estimator.fit(*(values[:2] for values in case.data.values())))
        assert "data." not in message and "file" not in message


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "labels" in case.data])
def test_a_single_class_is_explained(case_of: dict[str, Case], name: str) -> None:
    case = case_of[name]
    estimator = case.make(overrides=case.overrides, **case.options)
    message = explain(lambda: estimator.fit(**{**case.data, "labels": ["spam"] * 120}))
    assert message == "labels must have at least two classes; got only 'spam'"


def test_arguments_of_the_constructor_are_explained() -> None:
    texts, labels = reviews(40)
    for options, words in (
        ({"model": "bilsm"}, "no model bilsm: did you mean bilstm"),
        ({"model": 3}, "model must be a name such as 'bilstm'; got int"),
        (
            {"overrides": "train.epochs=1"},
            r"overrides must be a list of texts; got one string: write \[overrides\]",
        ),
        ({"overrides": ["train.epoch=1"]}, "train.epoch: no such key; did you mean train.epochs"),
        ({"pretrained": "/nowhere"}, "pretrained must be a run; got '/nowhere'"),
        ({"pretrained": 3}, "pretrained must be the path of a run or a loaded model; got int"),
        ({"device": "gpu"}, "device"),
    ):
        assert re.search(words, explain(lambda: seqloom.Classifier(**options).fit(texts, labels))), words  # noqa: B023
    for validation in (0, 1, 2, -0.1, "a", None, True):
        message = explain(lambda: seqloom.Classifier().fit(texts, labels, validation=validation))  # type: ignore[arg-type]  # noqa: B023
        assert message.startswith("validation must be a fraction of the data, between 0 and 1; got")
    for estimator in (seqloom.Classifier, seqloom.Translator, seqloom.InstructionModel):
        assert "is not trained: call fit first" in explain(lambda: estimator().predict(["a"]))  # noqa: B023
    assert explain(lambda: seqloom.InstructionModel().fit(["a"], ["b"])).startswith(
        "pretrained must be a language model"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("MultipleChoice", (["a"], [["x"]], [0]), r"options\[0\] must be at least two different texts; got \['x'\]"),
        ("MultipleChoice", (["a"], [["x", "x "]], [0]), r"options\[0\] must be at least two different texts"),
        ("MultipleChoice", (["a"], [["x", "y"]], [2]), r"answers\[0\] must be one of .* from 0 to 1; got 2"),
        ("MultipleChoice", (["a"], [["x", "y"]], ["z"]), r"answers\[0\] must be one of .* from 0 to 1; got 'z'"),
        ("MultipleChoice", (["a"], [["x", "y"]], [True]), r"answers\[0\] must be the index or the text .* got bool"),
        ("QuestionAnswering", (["a"], ["b"], ["c"]), r"answers\[0\] must be a part of its context; got 'c'"),
        ("QuestionAnswering", (["a"], [" "], ["c"]), r"contexts\[0\] must not be blank"),
        ("QuestionAnswering", (["a"], ["b"], [[]]), r"answers\[0\] must have at least one answer"),
        ("QuestionAnswering", (["a"], ["b"], [{"txt": "b"}]), r"answers\[0\] must have the key 'text'"),
        ("QuestionAnswering", (["a"], ["b"], [3]), r"answers\[0\] must be a string; got int"),
        ("Tagger", ([["New York"]], [["N"]]), r"sentences\[0\]\[0\] must be a word without spaces; got 'New York'"),
        ("Tagger", ([["a", "b"]], [["N"]]), r"sentences\[0\] \(2\) and tags\[0\] \(1\) differ in length"),
        ("Tagger", (["a b"], [["N"]]), r"sentences\[0\] must be a list of words; got one string: split it into words"),
        ("LanguageModel", ([" ", "\n"],), "texts must not all be blank"),
        ("Forecaster", ([1, "a"],), "values must be an array of numbers, with NaN for missing values"),
        ("Forecaster", ([1.0, float("inf")],), "values must be finite numbers or NaN; got infinity"),
        (
            "Forecaster",
            (np.ones(20), ["x"] * 20),
            r"times\[0\] must be a date such as 2024-03-01, or a number; got 'x'",
        ),
        ("Forecaster", (np.ones(20), [1, 2]), r"values \(20\) and times \(2\) differ in length"),
        ("Forecaster", (np.ones(20), [3] * 20), "repeats|increas|later|same time"),
        ("SeriesClassifier", ([[1.0], [[1.0, 2.0]]], [1, 2]), r"series\[1\] must have 1 variables; got 2"),
        ("SeriesClassifier", ([[NAN], [1.0]], [1, 2]), r"series\[0\] must have at least one number"),
    ],
)
def test_errors_explain_wrong_values_inside_arguments(
    case_of: dict[str, Case], name: str, arguments: tuple[Any, ...], message: str
) -> None:
    case = case_of[name]
    assert re.search(message, explain(lambda: case.make(overrides=case.overrides, **case.options).fit(*arguments)))


# --- the methods of seqloom.load(...) ---------------------------------------------------------------------------------

METHODS: list[tuple[str, str, str, Callable[[Any, Any], Any]]] = [
    ("Classifier", "predict", "texts", lambda model, value: model.predict(value)),
    ("Classifier", "classify", "texts", lambda model, value: model.classify(value)),
    ("Classifier", "embed", "texts", lambda model, value: model.embed(value)),
    ("Classifier", "similar", "queries", lambda model, value: model.similar(value, ["a film"])),
    ("Classifier", "similar", "texts", lambda model, value: model.similar("a film", value)),
    ("Tagger", "tag", "texts", lambda model, value: model.tag(value)),
    ("Translator", "translate", "texts", lambda model, value: model.translate(value)),
    ("PairClassifier", "match", "pairs", lambda model, value: model.match(value)),
    ("MultipleChoice", "choose", "examples", lambda model, value: model.choose(value)),
    ("QuestionAnswering", "answer", "questions", lambda model, value: model.answer(value, "a film")),
    ("LanguageModel", "score", "texts", lambda model, value: model.score(value)),
    ("LanguageModel", "complete", "texts", lambda model, value: model.complete(value)),
    ("LanguageModel", "choose", "texts", lambda model, value: model.choose(value, ["a", "b"])),
    ("LanguageModel", "evaluate_documents", "documents", lambda model, value: model.evaluate_documents(value)),
    ("WordVectors", "predict", "texts", lambda model, value: model.predict(value)),
]
TEXT_METHODS: list[tuple[str, str, Callable[[Any, Any], Any]]] = [
    ("LanguageModel", "prompt", lambda model, value: model.generate(value)),
    ("LanguageModel", "prompt", lambda model, value: model.search(value)),
    ("QuestionAnswering", "context", lambda model, value: model.answer(["a"], value)),
    ("Translator", "prefix", lambda model, value: model.translate(["a"], prefix=value)),
]


OPTIONS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("LanguageModel", "max_tokens must be a whole number; got 'x'", lambda model: model.generate(max_tokens="x")),
    ("LanguageModel", "seed must be a whole number; got None", lambda model: model.generate(seed=None)),
    ("LanguageModel", "temperature must be a number; got 'hot'", lambda model: model.generate(temperature="hot")),
    ("LanguageModel", "no option 'temprature': did you mean temp", lambda model: model.generate(temprature=1)),
    ("LanguageModel", "stop must be a list of texts; got one string", lambda model: model.generate(stop="b")),
    ("LanguageModel", r"stop\[0\] must be a string; got int", lambda model: model.generate(stop=[3])),
    ("LanguageModel", "beam must be a number; got 'x'", lambda model: model.search("the", beam="x")),
    ("LanguageModel", r"choices\[1\] must be a string; got int", lambda model: model.choose(["a"], ["a", 2])),
    (
        "LanguageModel",
        r"shots\[0\] must be a text and its label; got 1 items",
        lambda m: m.complete("a", shots=[("a",)]),
    ),
    (
        "LanguageModel",
        r"shots\[0\]\[1\] must be a string; got int",
        lambda model: model.complete("a", shots=[("a", 1)]),
    ),
    ("Translator", "no option 'bean': did you mean beam", lambda model: model.translate(["a"], bean=3)),
    ("Translator", "beam must be a number; got 'x'", lambda model: model.translate(["a"], beam="x")),
]


@pytest.mark.parametrize(("name", "message", "call"), OPTIONS)
def test_options_of_methods_are_explained(
    fitted: dict[str, Any], name: str, message: str, call: Callable[[Any], Any]
) -> None:
    assert re.search(message, explain(lambda: call(fitted[name].predictor)))


def test_arguments_of_functions_are_explained() -> None:
    recipe = "lm-char-lstm"
    for message, call in (
        ("recipe must be a name, the path .* or a dictionary; got int", lambda: seqloom.train_recipe(3)),  # type: ignore[arg-type]
        (r"overrides\[0\] must be a string; got int", lambda: seqloom.train_recipe(recipe, 3)),  # type: ignore[arg-type]
        ("track must be a list of names; got one string", lambda: seqloom.train_recipe(recipe, track="mlflow")),
        ("on_event must be a function of an event; got int", lambda: seqloom.train_recipe(recipe, on_event=3)),  # type: ignore[arg-type]
        ("path must be the path of a run; got NoneType", lambda: seqloom.load(None)),  # type: ignore[call-overload]
    ):
        assert re.search(message, explain(call)), message


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method[0]}.{method[1]}({method[2]})")
def test_errors_of_loaded_models_explain_wrong_lists(fitted: dict[str, Any], method: Any) -> None:
    name, _, argument, call = method
    model = fitted[name].predictor
    for kind, value in WRONG_LISTS.items():
        if kind in ("text", "short", "empty"):
            continue
        message = explain(lambda: call(model, value))  # noqa: B023
        assert re.search(rf"\b{argument}\b", message), (kind, message)


@pytest.mark.parametrize(("name", "argument", "call"), TEXT_METHODS)
def test_errors_of_loaded_models_explain_wrong_texts(
    fitted: dict[str, Any], name: str, argument: str, call: Callable[[Any, Any], Any]
) -> None:
    for value in (None, 3, b"a", ["a"], NAN):
        assert explain(lambda: call(fitted[name].predictor, value)).startswith(f"{argument} must be a string; got")  # noqa: B023
