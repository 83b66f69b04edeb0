"""Models as objects with `fit`, `predict`, `evaluate`, `save` and `load`, which follow the conventions of scikit-learn.

    model = seqloom.Classifier(model="lstm").fit(texts, labels, validation=0.1)
    model.predict(["a dull film"])
    model.save("runs/mine")

`fit` writes the recipe that `seqloom init` would write, and trains it. Texts may be lists, arrays, or
columns of pandas and polars.
"""

import inspect
import json
import math
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqloom.core.device import choose_device
from seqloom.data.detect import Detected
from seqloom.predict.loader import load
from seqloom.recipes.drafts import Request, draft_recipe
from seqloom.train.events import Evaluated, Event
from seqloom.training import train_recipe

MISSING = "call fit first, or load a run"


def check_texts(values: Any, name: str) -> list[str]:
    """Return texts as a list; raise a TypeError or ValueError that names the index of an item that is not a text."""
    items = check_list(values, name, "texts")
    for index, item in enumerate(items):
        if isinstance(item, str):
            continue
        if item is None or (isinstance(item, float) and math.isnan(item)):
            raise ValueError(f"{name}[{index}] must be text, got {item!r}: drop or fill missing values first")
        hint = "; join its words with spaces" if isinstance(item, list | tuple) else ""
        raise TypeError(f"{name}[{index}] must be text, got {type(item).__name__}{hint}")
    return items


def check_list(values: Any, name: str, of: str) -> list[Any]:
    """Return the values as a list; raise TypeError if they are a single text or not iterable."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a list of {of}, got one text: write [{name}]")
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise TypeError(f"{name} must be a list of {of}, got {type(values).__name__}")
    if hasattr(values, "columns") and hasattr(values, "shape"):
        raise TypeError(f"{name} must be one column, got a table with {len(values.columns)}: choose one")
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


def check_lengths(**values: Sequence[Any]) -> None:
    """Raise ValueError unless all lists have the same length and are not empty."""
    lengths = {name: len(items) for name, items in values.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(" and ".join(f"{name} ({length})" for name, length in lengths.items()) + " differ in length")
    if 0 in lengths.values():
        raise ValueError(f"{next(iter(lengths))} must not be empty")


def print_event(event: Event) -> None:
    """Print one line for each evaluation during training, in a notebook or a terminal."""
    if isinstance(event, Evaluated):
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in list(event.metrics.items())[:4])
        print(f"step {event.step}  {event.split}: {metrics}{'  (best)' if event.best else ''}")


class Estimator:
    """A model that is untrained, trained by `fit`, or loaded from a run.

    Args:
        model: a model of `seqloom init --model`, such as lstm or transformer; None chooses one that
            suits the amount of data and the device.
        pretrained: the run to fine-tune, or None.
        out: the run directory; None uses a temporary directory until `save`.
        overrides: changes to the recipe, such as "train.epochs=3".
        seed: the random seed.
        device: auto, cpu, cuda or mps.
        progress: whether `fit` prints the progress of training.
    """

    task: ClassVar[str]

    def __init__(
        self,
        model: str | None = None,
        *,
        pretrained: str | Path | None = None,
        out: str | Path | None = None,
        overrides: Sequence[str] = (),
        seed: int = 1,
        device: str = "auto",
        progress: bool = False,
    ) -> None:
        self.model, self.pretrained, self.out, self.overrides = model, pretrained, out, overrides
        self.seed, self.device, self.progress = seed, device, progress

    # --- training and storage ---------------------------------------------------------------------------------------

    def _fit(self, rows: str, extension: str, data: Mapping[str, object], validation: float) -> Self:
        """Write the data and the recipe, and train."""
        if not 0 < validation < 1:
            raise ValueError(
                f"validation must be the fraction of the data to hold out, between 0 and 1, got {validation}"
            )
        if self.out is None:
            temporary = tempfile.mkdtemp(prefix="seqloom-")
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)  # removed with this object
            run = Path(temporary, "run")
        else:
            run = Path(self.out)
        folder = run.parent
        folder.mkdir(parents=True, exist_ok=True)
        file, recipe = folder / f"{run.name}{extension}", folder / f"{run.name}.yaml"
        file.write_text(rows, encoding="utf-8")
        fractions = {"dev_fraction": validation, "test_fraction": 0.0}
        detected = Detected(self.task, {**data, "train": str(file.absolute()), **fractions}, "")
        pretrained = None if self.pretrained is None else Path(self.pretrained)
        request = Request([file], model=self.model, pretrained=pretrained, device=choose_device(self.device).type)
        recipe.write_text(draft_recipe(detected, request, "utf-8", run.name, str(recipe)).recipe, encoding="utf-8")
        settings = (f"seed={self.seed}", f"train.device={self.device}", *self.overrides)
        self.predictor_ = train_recipe(recipe, *settings, out=run, on_event=print_event if self.progress else None)
        return self

    @property
    def predictor(self) -> Any:
        """The trained model, with all its methods: see `seqloom.load`."""
        if not hasattr(self, "predictor_"):
            raise ValueError(f"This {type(self).__name__} is not trained: {MISSING}")
        return self.predictor_

    def save(self, path: str | Path) -> Path:
        """Copy the run to a new directory and return its path."""
        path = Path(path)
        if path.exists():
            raise FileExistsError(f"{path} exists; choose another directory")
        shutil.copytree(self.predictor.run.path, path)
        self.predictor_ = load(path, self.device)
        return path

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """Open a run of this task."""
        predictor = load(path, device)
        if predictor.recipe.task != cls.task:
            raise ValueError(f"{path} has the task {predictor.recipe.task}; {cls.__name__} needs {cls.task}")
        estimator = cls(device=device)
        estimator.predictor_ = predictor
        return estimator

    def _evaluate(self, rows: str, extension: str, data: Mapping[str, object]) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="seqloom-") as folder:
            file = Path(folder, f"data{extension}")
            file.write_text(rows, encoding="utf-8")
            metrics: dict[str, float] = self.predictor.on_file(file, data).report("other").metrics
            return metrics

    # --- conventions of scikit-learn --------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if value != defaults[name]}
        arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        state = repr(self.predictor_) if hasattr(self, "predictor_") else "not trained"
        return f"{type(self).__name__}({arguments}): {state}"

    def _repr_png_(self) -> bytes | None:
        """Return the training curve, for notebooks."""
        picture: bytes | None = self.predictor_._repr_png_() if hasattr(self, "predictor_") else None
        return picture


class Classifier(Estimator):
    """A text classifier. It works with `clone`, pipelines and `cross_val_score` of scikit-learn."""

    task = "classify"
    data: ClassVar = {"corpus": "table", "text": "text", "label": "label"}

    def fit(self, texts: Any, labels: Any, *, validation: float = 0.1) -> Self:
        """Train on texts and their labels. The fraction `validation` is held out to select the best checkpoint."""
        texts, labels = check_texts(texts, "texts"), check_list(labels, "labels", "labels")
        check_lengths(texts=texts, labels=labels)
        for index, label in enumerate(labels):
            if label is None or (isinstance(label, float) and math.isnan(label)):
                raise ValueError(f"labels[{index}] must be a label, got {label!r}: drop or fill missing values first")
        self._labels = {str(label): label for label in labels}
        self._fit(self._rows(texts, labels), ".jsonl", self.data, validation)
        return self

    @staticmethod
    def _rows(texts: Sequence[str], labels: Sequence[Any]) -> str:
        rows = ({"text": text, "label": str(label)} for text, label in zip(texts, labels, strict=True))
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    @property
    def classes_(self) -> list[Any]:
        """The labels, in the order of the columns of `predict_proba`."""
        labels = getattr(self, "_labels", {})
        return [labels.get(label, label) for label in self.predictor.run.labels]

    def predict(self, texts: Any) -> list[Any]:
        """Return the label of each text."""
        labels = getattr(self, "_labels", {})
        predicted = (prediction.label for prediction in self.predictor.predict(check_texts(texts, "texts")))
        return [labels.get(label, label) for label in predicted]

    def predict_proba(self, texts: Any) -> NDArray[np.float64]:
        """Return the probability of each class for each text (N, C)."""
        labels = list(self.predictor.run.labels)
        predictions = self.predictor.classify(check_texts(texts, "texts"), top=len(labels))
        rows = [{c.label: c.probability for c in prediction.candidates} for prediction in predictions]
        return np.array([[row.get(label, 1 / len(labels)) for label in labels] for row in rows])

    def score(self, texts: Any, labels: Any) -> float:
        """Return the accuracy."""
        labels = check_list(labels, "labels", "labels")
        predicted = self.predict(texts)
        check_lengths(texts=predicted, labels=labels)
        return sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)

    def evaluate(self, texts: Any, labels: Any) -> dict[str, float]:
        """Return all metrics of `seqloom evaluate`."""
        texts, labels = check_texts(texts, "texts"), check_list(labels, "labels", "labels")
        check_lengths(texts=texts, labels=labels)
        return self._evaluate(self._rows(texts, labels), ".jsonl", self.data)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(string=True, two_d_array=False),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")


class Tagger(Estimator):
    """A tagger of words, for example with parts of speech or named entities."""

    task = "tag"
    data: ClassVar = {"corpus": "conll", "format": "conll"}

    def fit(self, sentences: Any, tags: Any, *, validation: float = 0.1) -> Self:
        """Train on sentences, which are lists of words, and the tags of the words."""
        return self._fit(self._rows(sentences, tags), ".conll", self.data, validation)

    @staticmethod
    def _rows(sentences: Any, tags: Any) -> str:
        sentences, tags = check_list(sentences, "sentences", "sentences"), check_list(tags, "tags", "lists of tags")
        check_lengths(sentences=sentences, tags=tags)
        blocks = []
        for index, (words, word_tags) in enumerate(zip(sentences, tags, strict=True)):
            words = check_texts(words, f"sentences[{index}]")
            word_tags = check_texts(word_tags, f"tags[{index}]")
            check_lengths(**{f"sentences[{index}]": words, f"tags[{index}]": word_tags})
            if spaced := [word for word in (*words, *word_tags) if len(word.split()) != 1]:
                raise ValueError(f"sentences[{index}] must have words and tags without spaces, got {spaced[0]!r}")
            blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, word_tags, strict=True)))
        return "\n".join(blocks)

    def predict(self, sentences: Any) -> list[list[str]]:
        """Return the tags of the words of each sentence."""
        items = check_list(sentences, "sentences", "sentences")
        words = [check_texts(item, f"sentences[{index}]") for index, item in enumerate(items)]
        if spaced := [word for sentence in words for word in sentence if len(word.split()) != 1]:
            raise ValueError(f"sentences must have words without spaces, got {spaced[0]!r}")
        tagged = self.predictor.tag([" ".join(sentence) for sentence in words], spaces=True)
        return [[word.tag for word in line.words] for line in tagged]

    def evaluate(self, sentences: Any, tags: Any) -> dict[str, float]:
        """Return all metrics of `seqloom evaluate`."""
        return self._evaluate(self._rows(sentences, tags), ".conll", self.data)


class Translator(Estimator):
    """A translator."""

    task = "translate"
    data: ClassVar = {"corpus": "parallel", "columns": ("source", "target")}

    def fit(self, source: Any, target: Any, *, validation: float = 0.05) -> Self:
        """Train on sentences and their translations."""
        return self._fit(self._rows(source, target), ".jsonl", self.data, validation)

    @staticmethod
    def _rows(source: Any, target: Any) -> str:
        source, target = check_texts(source, "source"), check_texts(target, "target")
        check_lengths(source=source, target=target)
        rows = ({"source": a, "target": b} for a, b in zip(source, target, strict=True))
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def predict(self, source: Any) -> list[str]:
        """Return the translation of each sentence."""
        return [translation.text for translation in self.predictor.predict(check_texts(source, "source"))]

    def evaluate(self, source: Any, target: Any) -> dict[str, float]:
        """Return all metrics of `seqloom evaluate`, such as BLEU and chrF."""
        return self._evaluate(self._rows(source, target), ".jsonl", self.data)


class PairClassifier(Estimator):
    """A classifier of sentence pairs, or a model of their similarity if the labels are scores."""

    task = "pair"
    data: ClassVar = {"corpus": "sentence-pairs", "first": "first", "second": "second", "label": "label"}

    def fit(self, first: Any, second: Any, labels: Any, *, validation: float = 0.1) -> Self:
        """Train on pairs of texts and their labels or scores."""
        return self._fit(self._rows(first, second, labels), ".jsonl", self.data, validation)

    @staticmethod
    def _rows(first: Any, second: Any, labels: Any) -> str:
        first, second = check_texts(first, "first"), check_texts(second, "second")
        labels = check_list(labels, "labels", "labels")
        check_lengths(first=first, second=second, labels=labels)
        rows = ({"first": a, "second": b, "label": str(c)} for a, b, c in zip(first, second, labels, strict=True))
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def predict(self, first: Any, second: Any) -> list[Any]:
        """Return the label or the score of each pair."""
        first, second = check_texts(first, "first"), check_texts(second, "second")
        check_lengths(first=first, second=second)
        matches = self.predictor.match(list(zip(first, second, strict=True)))
        return [match.label if match.score is None else match.score for match in matches]

    def evaluate(self, first: Any, second: Any, labels: Any) -> dict[str, float]:
        """Return all metrics of `seqloom evaluate`."""
        return self._evaluate(self._rows(first, second, labels), ".jsonl", self.data)


class LanguageModel(Estimator):
    """A language model."""

    task = "language-model"
    data: ClassVar = {"corpus": "text", "documents": "paragraph"}

    def fit(self, texts: Any, *, validation: float = 0.05) -> Self:
        """Train on texts. The last texts are held out to select the best checkpoint."""
        texts = check_texts(texts, "texts")
        check_lengths(texts=texts)
        return self._fit("\n\n".join(texts), ".txt", self.data, validation)

    def predict(self, prompts: Any, *, max_tokens: int = 50, **options: Any) -> list[str]:
        """Return a continuation of each prompt."""
        prompts = check_texts(prompts, "prompts")
        return ["".join(self.predictor.generate(prompt, max_tokens=max_tokens, **options)) for prompt in prompts]

    def evaluate(self, texts: Any) -> dict[str, float]:
        """Return the perplexity and the other metrics of `seqloom evaluate`."""
        metrics: dict[str, float] = self.predictor.evaluate_documents(check_texts(texts, "texts"))
        return metrics
