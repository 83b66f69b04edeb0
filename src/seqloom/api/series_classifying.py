"""Classifiers of series in use: numbers in, a label out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqloom.api.classifying import Judging, Said
from seqloom.core.errors import UsageError
from seqloom.core.tree import to_device
from seqloom.data.labelled_series import LabelledSeries
from seqloom.tasks.series_classify import tree_of


class SeriesClassifier(Judging):
    """A trained classifier of series."""

    what = "a classifier of series"
    used_by = "`seqloom classify` uses it"

    @property
    def variables(self) -> int:
        return self.run.sizes["variables"]

    def classify(self, values: Sequence[float] | NDArray[np.floating[Any]], *, top: int | None = None) -> list[Said]:
        """What a series is, best first: values (T, C), or in one row all of the first variable, then of the second …"""
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 1:
            if len(array) == 0 or len(array) % self.variables:
                raise UsageError(f"{self.name} reads {self.variables} variables; got {len(array)} numbers.")
            array = array.reshape(self.variables, -1).T
        if array.ndim != 2 or array.shape[1] != self.variables or len(array) == 0 or np.isinf(array).any():
            raise UsageError(f"{self.name} reads finite values (T, {self.variables}); got {array.shape}.")
        batch = to_device(tree_of([LabelledSeries(array, "")], {}, len(array)), self.device)
        ordered = self.model.probabilities(batch)[0].sort(descending=True, stable=True)
        pairs = zip(ordered.indices.tolist(), ordered.values.tolist(), strict=True)
        return [Said(self.labels[label], probability) for label, probability in pairs][:top]
