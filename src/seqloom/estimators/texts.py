"""Estimators that read texts: classifiers, taggers, translators, language models and word vectors."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from seqloom.core.inputs import check_lengths, check_list, check_text, check_texts, check_words
from seqloom.data.examples import Instruction
from seqloom.data.glossary import Glossary
from seqloom.data.prompts import format_instruction, instruction_suffix
from seqloom.estimators.base import Estimator, Examples, json_lines, value_errors
from seqloom.estimators.labels import (
    IndicatorMatrix,
    LabelEstimator,
    NamedExamples,
    as_label_lists,
    check_label_lists,
    check_labels,
)
from seqloom.predict.multi_label import MultiLabelPredictor
from seqloom.predict.results import Metrics, Predictions


class Classifier(LabelEstimator):
    """A text classifier. It works with `clone`, pipelines, `cross_val_score` and `GridSearchCV` of scikit-learn.

    If the labels of `fit` are lists or sets, a text has any number of labels, and `predict` returns lists. The labels
    may also be a matrix (N, C) of 0 and 1 as in scikit-learn, or a table of 0 and 1; `predict` then returns a matrix.
    """

    tasks: ClassVar = ("classify",)
    predicts_several: ClassVar = True

    def fit(self, texts: Iterable[str], labels: Iterable[Any], *, validation: float = 0.1) -> Self:
        """Train on texts and their labels. The fraction `validation` is held out to select the best checkpoint."""
        matrix = IndicatorMatrix.read(labels)
        make, labels = self._check(texts, labels)
        return self._train_labels(make, labels, validation, None if matrix is None else matrix.columns)

    @staticmethod
    def _check(texts: Iterable[str], labels: Iterable[Any]) -> tuple[NamedExamples, list[Hashable]]:
        """Return a function that creates the examples from the names of all labels, and the list of all labels."""
        checked, labels = check_texts(texts, "texts"), as_label_lists(labels)
        check_lengths(texts=checked, labels=labels)
        lists = check_label_lists(labels)
        several = {} if lists is None else {"multi_label": True}
        data = {"corpus": "table", "text": "text", "label": "label", **several}

        def make(names: list[str]) -> Examples:
            remaining = iter(names)
            rows = names if lists is None else [[next(remaining) for _ in label_list] for label_list in lists]
            return Examples(data, ".jsonl", json_lines(text=checked, label=rows), len(checked))

        return make, check_labels(labels) if lists is None else [label for each in lists for label in each]

    @property
    def _has_several_labels(self) -> bool:
        return isinstance(self.predictor, MultiLabelPredictor)

    def predict(self, texts: Iterable[str]) -> list[Any] | NDArray[np.int64]:
        """Return the label of each text; a blank text has the most frequent label.

        With several labels per text, return the list of labels above their thresholds, with the most probable label
        first. If the labels of `fit` were a matrix, return a matrix (N, C) of 0 and 1 in the order of `classes_`.
        """
        if not self._has_several_labels:
            return self._best(self.predict_proba(texts))
        lists = self._predict_lists(texts)
        if self.names.columns is None:
            return lists
        chosen = [[label in labels for label in self.names.columns] for labels in lists]
        return np.array(chosen, dtype=np.int64).reshape(-1, len(self.names.columns))

    def _predict_lists(self, texts: Iterable[str]) -> list[list[Hashable]]:
        """Return the labels of each text that are above their thresholds, with the most probable label first."""
        predictions = self.predictor.classify(check_texts(texts, "texts"), stream=True)
        return [[self.names.labels.get(name, name) for name in prediction.labels] for prediction in predictions]

    def predict_proba(self, texts: Iterable[str]) -> NDArray[np.float64]:
        """Return the probability of each class for each text (N, C). Rows sum to 1 only if each text has one label."""
        predictions = self.predictor.classify(check_texts(texts, "texts"), stream=True)
        rows = (prediction.candidates for prediction in predictions)
        if not self._has_several_labels:
            return self._probabilities(rows)
        names = [self.names.name(label) for label in self.classes_.tolist()]
        tables = ({candidate.label: candidate.probability for candidate in candidates} for candidates in rows)
        return np.array([[table.get(name, 0.0) for name in names] for table in tables]).reshape(-1, len(names))

    def score(self, texts: Iterable[str], labels: Iterable[Any]) -> float:
        """Return the accuracy: the fraction of texts with the correct label, or with exactly the correct labels."""
        texts, labels = check_texts(texts, "texts"), as_label_lists(labels)
        check_lengths(texts=texts, labels=labels)
        if not self._has_several_labels:
            return self._accuracy(list(self.predict(texts)), labels)
        return sum(set(a) == set(b) for a, b in zip(self._predict_lists(texts), labels, strict=True)) / len(labels)

    def evaluate(self, texts: Iterable[str], labels: Iterable[Any]) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        return self._measure_labels(*self._check(texts, labels))


class Tagger(Estimator):
    """A tagger of words, for example with parts of speech or named entities.

    The model "hmm" is a hidden Markov model, which is estimated in seconds.
    """

    tasks: ClassVar = ("tag", "hmm-tag")

    def fit(
        self, sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]], *, validation: float = 0.1
    ) -> Self:
        """Train on sentences, which are lists of words, and the tags of the words."""
        return self._train(self._examples(sentences, tags), validation)

    @staticmethod
    def _examples(sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> Examples:
        rows, tag_rows = check_list(sentences, "sentences", "sentences"), check_list(tags, "tags", "lists of tags")
        check_lengths(sentences=rows, tags=tag_rows)
        blocks = []
        for index, (row, tag_row) in enumerate(zip(rows, tag_rows, strict=True)):
            words, word_tags = check_words(row, f"sentences[{index}]"), check_words(tag_row, f"tags[{index}]")
            check_lengths(**{f"sentences[{index}]": words, f"tags[{index}]": word_tags})
            blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, word_tags, strict=True)))
        return Examples({"corpus": "conll", "format": "conll"}, ".conll", "\n".join(blocks), len(blocks))

    def predict(self, sentences: Iterable[Sequence[str]]) -> list[list[str]]:
        """Return the tags of the words of each sentence."""
        items = check_list(sentences, "sentences", "sentences")
        lines = [" ".join(check_words(item, f"sentences[{index}]")) for index, item in enumerate(items)]
        return [[word.tag for word in line.words] for line in self.predictor.tag(lines, spaces=True, stream=True)]

    def evaluate(self, sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> Metrics:
        """Return all metrics of `seqloom evaluate`, such as token accuracy and span F1."""
        return self._measure(self._examples(sentences, tags))


def check_glossary(glossary: object) -> None:
    """Raise TypeError unless a glossary is a dictionary, a file, a `Glossary` or None."""
    if not isinstance(glossary, Mapping | Glossary | str | Path | None):
        kind = type(glossary).__name__
        raise TypeError(f"glossary must be a dictionary of source and target terms, or a file; got {kind}")
    for source, target in glossary.items() if isinstance(glossary, Mapping) else ():
        check_text(source, "a source term of glossary")
        if isinstance(target, list | tuple):
            check_texts(target, f"glossary[{source!r}]", "terms")
        else:
            check_text(target, f"glossary[{source!r}]")


class Translator(Estimator):
    """A translator."""

    tasks: ClassVar = ("translate",)

    def fit(self, source: Iterable[str], target: Iterable[str], *, validation: float = 0.05) -> Self:
        """Train on sentences and their translations."""
        return self._train(self._examples(source, target), validation)

    @staticmethod
    def _examples(source: Iterable[str], target: Iterable[str]) -> Examples:
        source, target = check_texts(source, "source"), check_texts(target, "target")
        check_lengths(source=source, target=target)
        data = {"corpus": "parallel", "columns": ("source", "target")}
        return Examples(data, ".jsonl", json_lines(source=source, target=target), len(source))

    def predict(
        self,
        source: Iterable[str],
        *,
        glossary: Glossary | Mapping[str, str | Sequence[str]] | str | Path | None = None,
        force: Iterable[str] = (),
        forbid: Iterable[str] = (),
        **options: Any,
    ) -> list[str]:
        """Return the translation of each sentence; `options` are search options, such as beam.

        If a source term of the `glossary` (a dictionary or a file) occurs in a sentence, the translation contains its
        target term. Every translation contains the terms in `force`, and no translation contains a term in `forbid`.
        """
        sentences = check_texts(source, "source")
        terms = {"force": check_texts(force, "force", "terms"), "forbid": check_texts(forbid, "forbid", "terms")}
        check_glossary(glossary)
        with value_errors():
            translations = self.predictor.translate(sentences, glossary=glossary, stream=True, **terms, **options)
            return [translation.text for translation in translations]

    def evaluate(self, source: Iterable[str], target: Iterable[str]) -> Metrics:
        """Return all metrics of `seqloom evaluate`, such as BLEU and chrF."""
        return self._measure(self._examples(source, target))


def document_examples(texts: Iterable[str]) -> Examples:
    """Return texts as documents: as paragraphs of one file, or as one file per text if texts contain blank lines."""
    texts = [text.strip("\n") for text in check_texts(texts, "texts")]
    check_lengths(texts=texts)
    if not any(map(str.strip, texts)):
        raise ValueError("texts must not all be blank")
    if any(re.search(r"\n\s*\n", text) for text in texts):
        files = {f"{index:07}.txt": text + "\n" for index, text in enumerate(texts) if text.strip()}
        return Examples({"corpus": "text", "documents": "file"}, "", files, len(files))
    return Examples({"corpus": "text", "documents": "paragraph"}, ".txt", "\n\n".join(texts) + "\n", len(texts))


class LanguageModel(Estimator):
    """A language model."""

    tasks: ClassVar = ("language-model",)

    def fit(self, texts: Iterable[str], *, validation: float = 0.05) -> Self:
        """Train on texts, such as sentences or books. The last texts are held out to select the best checkpoint."""
        return self._train(document_examples(texts), validation)

    def predict(self, prompts: Iterable[str], *, max_tokens: int = 50, **options: Any) -> list[str]:
        """Return a continuation of each prompt; `options` are passed to `generate`, such as temperature."""
        prompts = check_texts(prompts, "prompts")
        return [self.predictor.generate(prompt, max_tokens=max_tokens, **options) for prompt in prompts]

    def evaluate(self, texts: Iterable[str]) -> Metrics:
        """Return the perplexity and the other metrics of `seqloom evaluate`."""
        texts = check_texts(texts, "texts")
        check_lengths(texts=texts)
        metrics: Metrics = self.predictor.evaluate_documents(texts)
        return metrics


class InstructionModel(Estimator):
    """A language model that is fine-tuned to follow instructions; `pretrained` is the language model."""

    tasks: ClassVar = ("instruct",)

    def fit(
        self,
        prompts: Iterable[str],
        completions: Iterable[str],
        *,
        inputs: Iterable[str] | None = None,
        validation: float = 0.1,
    ) -> Self:
        """Train on prompts, such as questions or instructions, and their completions.

        `inputs` are the texts that the instructions apply to; "" means no input.
        """
        if self.pretrained is None:
            raise ValueError("pretrained must be a language model to fine-tune; got None")
        return self._train(self._examples(prompts, completions, inputs), validation)

    @staticmethod
    def _examples(prompts: Iterable[str], completions: Iterable[str], inputs: Iterable[str] | None) -> Examples:
        prompts, completions = check_texts(prompts, "prompts"), check_texts(completions, "completions")
        inputs = [""] * len(prompts) if inputs is None else check_texts(inputs, "inputs")
        check_lengths(prompts=prompts, completions=completions, inputs=inputs)
        data = {"corpus": "instructions", "instruction": "instruction", "output": "output"}
        rows = json_lines(instruction=prompts, input=inputs, output=completions)
        return Examples(data, ".jsonl", rows, len(prompts))

    def predict(
        self, prompts: Iterable[str], *, inputs: Iterable[str] | None = None, max_tokens: int = 100, **options: Any
    ) -> list[str]:
        """Return a completion of each prompt. `options` are passed to `generate`; the default is greedy search."""
        prompts = check_texts(prompts, "prompts")
        inputs = [""] * len(prompts) if inputs is None else check_texts(inputs, "inputs")
        if len(inputs) != len(prompts):
            check_lengths(prompts=prompts, inputs=inputs)
        template = self.predictor.recipe.template
        stop = [instruction_suffix(template)] if instruction_suffix(template) else []
        options = {"temperature": 0.0, "stop": stop, "allow_unknown": True, "max_tokens": max_tokens, **options}
        examples = (Instruction(prompt, text, "") for prompt, text in zip(prompts, inputs, strict=True))
        starts = (format_instruction(template, example).rstrip(" ") for example in examples)
        return [self.predictor.generate(start, **options).strip() for start in starts]

    def evaluate(
        self, prompts: Iterable[str], completions: Iterable[str], *, inputs: Iterable[str] | None = None
    ) -> Metrics:
        """Return the loss of the completions and the fraction that greedy search generates exactly."""
        return self._measure(self._examples(prompts, completions, inputs))


class WordVectors(Estimator):
    """Word vectors: word2vec (the models "skipgram" and "cbow") or GloVe ("glove")."""

    tasks: ClassVar = ("word-vectors",)

    def fit(self, texts: Iterable[str], labels: object = None, *, validation: float = 0.05) -> Self:
        """Train on texts. `labels`, which pipelines of scikit-learn pass, are ignored."""
        return self._train(document_examples(texts), validation)

    @property
    def words(self) -> list[str]:
        """The words that have vectors, most frequent first."""
        return list(self.predictor.space.words)

    def vectors(self, words: Iterable[str]) -> NDArray[np.float32]:
        """Return the vector of each word (N, D)."""
        space, words = self.predictor.space, check_words(words, "words")
        with value_errors():
            rows = [space.vector(word) for word in words]
        return np.array(rows, dtype=np.float32).reshape(-1, space.vectors.shape[1])

    def predict(self, words: Iterable[str], *, top: int = 10) -> list[list[str]]:
        """Return the nearest words to each word, best first; the list for an unknown word is empty."""
        predictions = self.predictor.predict(check_words(words, "words"), top=top, stream=True)
        return [[near.word for near in prediction.nearest] for prediction in predictions]

    def most_similar(self, word: str, top: int = 10) -> Predictions[Any]:
        """Return the words with the highest cosine similarity, best first, with their similarities."""
        check_text(word, "word")
        with value_errors():
            return Predictions(self.predictor.nearest(word, top))

    def transform(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Return the mean of the word vectors of each text (N, D), for example in a pipeline of scikit-learn."""
        vectors: NDArray[np.float32] = self.predictor.embed(check_texts(texts, "texts"))
        return vectors

    def evaluate(self, texts: Iterable[str]) -> Metrics:
        """Return the metrics of the vectors on other texts."""
        texts = check_texts(texts, "texts")
        check_lengths(texts=texts)
        return Metrics(self.predictor.task(texts).held_out_metrics(self.predictor.model, "other"))
