"""How well groups that were found without labels agree with labels that were there.

    many to one = words whose label is the most frequent of their group / words
    homogeneity h = 1 − H(label | group) / H(label)      completeness c = 1 − H(group | label) / H(group)
    V-measure = 2 h c / (h + c)

Many to one rises with the number of groups, up to one for each word; V-measure need not (Rosenberg and Hirschberg,
2007).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seqloom.core.errors import DataError


def cluster_figures(labels: Sequence[str], groups: Sequence[int]) -> dict[str, float]:
    """`many_to_one` and `v_measure` of things with a label and a group each."""
    if not labels or len(labels) != len(groups):
        raise DataError(f"There must be a group for each label; got {len(labels)} labels and {len(groups)} groups.")
    _, rows = np.unique(np.array(labels), return_inverse=True)
    _, columns = np.unique(np.array(groups), return_inverse=True)
    table = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(table, (rows, columns), 1)
    return {"many_to_one": float(table.max(axis=0).sum() / table.sum()), "v_measure": v_measure(table)}


def v_measure(table: NDArray[np.float64]) -> float:
    """Of counts (labels, groups)."""
    both, label, group = _entropy(table.ravel()), _entropy(table.sum(axis=1)), _entropy(table.sum(axis=0))
    shared = label + group - both  # H(label) − H(label | group)
    homogeneity = shared / label if label > 0 else 1.0
    completeness = shared / group if group > 0 else 1.0
    whole = homogeneity + completeness
    return 2 * homogeneity * completeness / whole if whole > 0 else 0.0


def _entropy(counts: NDArray[np.float64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
