"""Labels of any hashable type.

A run stores the labels as strings; the file estimator.json of the run restores their types.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from seqloom.core import Json
from seqloom.core.inputs import check_lengths, check_list, is_missing
from seqloom.core.words import is_unicode, one_line
from seqloom.estimators.base import Estimator, Examples
from seqloom.predict.classify import LabelProbability
from seqloom.predict.results import Metrics


class Kind(NamedTuple):
    """A type of labels and its representation in JSON."""

    type: type
    encode: Callable[[Any], Json]
    decode: Callable[[Any], Hashable]


PLAIN = (str, bool, int)  # types of labels that JSON supports
KINDS: dict[str, Kind] = {
    "float": Kind(float, repr, float),
    "tuple": Kind(tuple, lambda value: [encode_label(item) for item in value], lambda v: tuple(map(decode_label, v))),
    "set": Kind(frozenset, lambda value: [encode_label(i) for i in value], lambda v: frozenset(map(decode_label, v))),
    "bytes": Kind(bytes, bytes.hex, bytes.fromhex),
    "datetime": Kind(datetime, datetime.isoformat, datetime.fromisoformat),
    "date": Kind(date, date.isoformat, date.fromisoformat),
    "decimal": Kind(Decimal, str, Decimal),
    "uuid": Kind(UUID, str, UUID),
    "none": Kind(type(None), lambda value: None, lambda value: None),
}


def encode_label(label: Any) -> Json:
    """Return a label as JSON; raise TypeError if a file cannot represent its type."""
    if type(label) in PLAIN and is_unicode(str(label)):
        return label
    for name, kind in KINDS.items():
        if type(label) is kind.type:
            return {name: kind.encode(label)}
    raise TypeError(
        f"labels of type {type(label).__name__} cannot be stored in a run; got {label!r}: use texts or numbers"
    )


def decode_label(content: Json) -> Hashable:
    """Return the label that `encode_label` encoded."""
    if not isinstance(content, dict):
        return content if isinstance(content, PLAIN) else str(content)
    ((name, value),) = content.items()
    return KINDS[name].decode(value)


def check_labels(values: Any, name: str = "labels") -> list[Hashable]:
    """Return labels as a list of hashable Python values."""
    labels = check_list(values, name, "labels")
    for index, label in enumerate(labels):
        if isinstance(label, np.generic):
            labels[index] = label = label.item()
        if is_missing(label):
            raise ValueError(f"{name}[{index}] must be a label; got {label!r}: drop or fill missing values first")
        try:
            hash(label)
        except TypeError:
            hint = "; write a tuple" if isinstance(label, list) else ""
            raise TypeError(f"{name}[{index}] must be hashable; got {type(label).__name__}{hint}") from None
    return labels


def check_label_lists(values: Any, name: str = "labels") -> list[list[Hashable]] | None:
    """Return the labels of each text if every item is a list or a set of labels, otherwise None."""
    items = check_list(values, name, "labels")
    if not items or not all(isinstance(item, list | set) for item in items):
        return None
    return [check_labels(list(item), f"{name}[{index}]") if item else [] for index, item in enumerate(items)]


class IndicatorMatrix(NamedTuple):
    """A matrix (N, C) of 0 and 1, which states whether example n has the label c, and the labels of its columns."""

    values: NDArray[np.int64]
    columns: list[Hashable]

    @classmethod
    def read(cls, labels: Any, name: str = "labels") -> "IndicatorMatrix | None":
        """Return the matrix in an array, a sparse matrix or a table of pandas or polars; None for other labels."""
        shape = getattr(labels, "shape", None)
        if shape is None or len(shape) != 2:
            return None
        convert = next((method for key in TO_ARRAY if (method := getattr(labels, key, None)) is not None), None)
        if convert is None and not isinstance(labels, np.ndarray):
            return None
        columns = list(getattr(labels, "columns", range(shape[1])))
        array = np.asarray(labels if convert is None else convert())
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all() or shape[1] < 2:
            received = f"{'a table' if hasattr(labels, 'columns') else 'an array'} of shape {tuple(shape)}"
            values = "" if array.dtype.kind not in "biuf" or np.isin(array, (0, 1)).all() else " with other values"
            raise ValueError(
                f"{name} must be one label for each text, or a matrix of 0 and 1 with a column for each label; "
                f"got {received}{values}"
            )
        return cls(array.astype(np.int64), check_labels(columns, "the columns"))

    def lists(self) -> list[list[Hashable]]:
        """Return the labels of each example."""
        return [[self.columns[index] for index in np.flatnonzero(row)] for row in self.values]


def as_label_lists(labels: Any) -> list[Any]:
    """Return labels as a list; the rows of an indicator matrix become lists of labels."""
    matrix = IndicatorMatrix.read(labels)
    return check_list(labels, "labels", "labels") if matrix is None else matrix.lists()


class LabelNames:
    """The labels of a classifier, most frequent first, with their frequencies and their names in the run.

    `columns` are the labels of an indicator matrix, in order, or None.
    """

    def __init__(self, counts: Iterable[tuple[Hashable, str, int]], columns: Sequence[Hashable] | None = None) -> None:
        self.rows, self.columns = list(counts), columns
        self.names = {label: name for label, name, _ in self.rows}
        self.labels = {name: label for label, name, _ in self.rows}

    @classmethod
    def of(cls, labels: Sequence[Hashable], columns: Sequence[Hashable] | None = None) -> Self:
        """Give each label a name: its text, with its type if another label has the same text."""
        used, rows = set[str](), []
        for label, count in Counter(labels).most_common():
            text = one_line(str(label)).strip()
            text = text if text and is_unicode(text) else ascii(label)
            options = (text, f"{text} ({type(label).__name__})", *(f"{text} ({n})" for n in range(2, len(labels) + 2)))
            name = next(option for option in options if option not in used)
            used.add(name)
            rows.append((label, name, count))
        return cls(rows, columns)

    def to_json(self) -> Json:
        """Return the labels as JSON; raise TypeError if a label cannot be represented."""
        columns = {} if self.columns is None else {"columns": [encode_label(label) for label in self.columns]}
        return {"labels": [[encode_label(label), name, count] for label, name, count in self.rows], **columns}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Return the labels that `to_json` stored."""
        columns = [decode_label(label) for label in content["columns"]] if "columns" in content else None
        return cls(((decode_label(label), name, count) for label, name, count in content["labels"]), columns)

    def name(self, label: Hashable) -> str:
        """Return the name of a label that need not occur in the training data."""
        return self.names[label] if label in self.names else one_line(str(label)).strip() or ascii(label)


def as_array(labels: Sequence[Hashable]) -> NDArray[Any]:
    """Return labels as an array, whose elements are objects unless all labels are texts or all are numbers."""
    if {type(label) for label in labels} in ({str}, {int}, {float}, {bool}):
        return np.array(labels)
    array = np.empty(len(labels), dtype=object)
    for index, label in enumerate(labels):
        array[index] = label
    return array


TO_ARRAY = ("toarray", "to_numpy")  # methods of sparse matrices, and of tables of pandas and polars
NamedExamples = Callable[[list[str]], Examples]  # a function that creates examples from the names of their labels


class LabelEstimator(Estimator):
    """An estimator that predicts one label for each example."""

    predicts_several: ClassVar[bool] = False  # whether an example may have several labels
    _names: LabelNames | None = None

    def _train_labels(
        self,
        examples: NamedExamples,
        labels: list[Hashable],
        validation: float,
        columns: Sequence[Hashable] | None = None,
    ) -> Self:
        """Train on examples with these labels. `columns` are the labels of an indicator matrix."""
        names = LabelNames.of(labels, columns)
        if len(names.rows) < 2:
            raise ValueError(f"labels must have at least two classes; got only {', '.join(map(repr, labels[:1]))}")
        if len(labels) <= len(names.rows):
            raise ValueError("at least one class must have two examples: one to train on, and one for validation")
        if self.out is not None:
            names.to_json()  # fail before training if the labels cannot be stored
        self._train(examples([names.names[label] for label in labels]), validation)
        self._names = names
        with suppress(TypeError):
            self._store(names.to_json())
        return self

    def _train_on(self, *arguments: Any) -> Self:
        self._names = None
        return super()._train_on(*arguments)

    def save(self, path: str | Path) -> Path:
        if self._names is not None:
            self._names.to_json()  # raises an error if the labels cannot be stored
        return super().save(path)

    @property
    def names(self) -> LabelNames:
        """The labels and their names in the run."""
        if self._names is None:
            stored = self._stored("labels", LabelNames.from_json)
            self._names = stored or LabelNames((label, label, 1) for label in self.predictor.run.labels)
        return self._names

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels in sorted order, or in the order of an indicator matrix.

        This is the order of the columns of `predict_proba`.
        """
        if self.names.columns is not None:
            return as_array(self.names.columns)
        labels = [self.names.labels.get(name, name) for name in self.predictor.run.labels]
        try:
            return as_array(sorted(labels))
        except TypeError:  # labels of different types cannot be sorted
            return as_array(sorted(labels, key=lambda label: (type(label).__name__, str(label))))

    def _probabilities(self, rows: Iterable[Sequence[LabelProbability]]) -> NDArray[np.float64]:
        """Return the probability of each class (N, C).

        A row without candidates has the relative frequencies in training.
        """
        names = [self.names.name(label) for label in self.classes_.tolist()]
        counts = {name: count for _, name, count in self.names.rows}
        prior = [counts.get(name, 1) / sum(counts.get(other, 1) for other in names) for name in names]
        table = []
        for candidates in rows:
            values = {candidate.label: candidate.probability for candidate in candidates}
            table.append([values.get(name, 0.0) for name in names] if values else prior)
        probabilities = np.array(table).reshape(-1, len(names))
        return probabilities / probabilities.sum(axis=1, keepdims=True)  # scikit-learn requires sums of 1 in float64

    def _best(self, probabilities: NDArray[np.float64]) -> list[Any]:
        """Return the most probable label of each row."""
        labels = self.classes_.tolist()
        return [labels[index] for index in probabilities.argmax(axis=1)]

    def _accuracy(self, predicted: list[Any], labels: Any) -> float:
        expected = check_labels(labels)
        check_lengths(predictions=predicted, labels=expected)
        return sum(a == b for a, b in zip(predicted, expected, strict=True)) / len(expected)

    def _measure_labels(self, examples: NamedExamples, labels: list[Hashable]) -> Metrics:
        return self._measure(examples([self.names.name(label) for label in labels]))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags(multi_label=self.predicts_several),
            input_tags=InputTags(string=True, two_d_array=False),
        )
