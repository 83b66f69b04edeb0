"""Recognition of columns with several labels per text: joined labels, lists, and columns of 0 and 1."""

import re
from collections import Counter
from collections.abc import Sequence

from seqloom.data.corpora.table import FLAGS, split_labels

SEPARATORS = (";", "|", ",")
MIN_JOINED_FRACTION = 0.02  # minimum fraction of cells that have several labels
MIN_SHARED_FRACTION = 0.8  # minimum fraction of labels in joined cells that also occur in another cell
MAX_LABEL_WORDS = 4  # maximum mean number of words in a label
MAX_LABELS = 1000


def find_separator(cells: Sequence[str], *, force: bool = False) -> str | None:
    """Return the separator of cells that join labels of a small set, such as "billing;urgent", or None.

    If parts are rarely repeated, the cells are texts with commas. If parts always occur together, they are a single
    label. With `force`, return the separator that occurs in most cells.
    """
    joined = {separator: sum(separator in cell for cell in cells) for separator in SEPARATORS}
    for separator in sorted(SEPARATORS, key=lambda each: -joined[each]):
        if joined[separator] and (force or _joins_labels(cells, separator)):
            return separator
    return None


def _joins_labels(cells: Sequence[str], separator: str) -> bool:
    label_sets = {cell: split_labels(cell, separator) for cell in cells}
    several = [cell for cell in cells if len(label_sets[cell]) > 1]
    is_decimal = all(re.fullmatch(r"[-+]?\d+,\d+", cell) for cell in several)  # 3,5
    if len(set(several)) < 2 or len(several) < MIN_JOINED_FRACTION * len(cells) or is_decimal:
        return False
    users = Counter(label for labels in label_sets.values() for label in set(labels))  # cells per label
    shared = [users[label] > 1 for cell in set(several) for label in label_sets[cell]]
    return sum(shared) >= MIN_SHARED_FRACTION * len(shared) and _are_labels([label_sets[cell] for cell in cells])


def _are_labels(label_sets: Sequence[Sequence[str]]) -> bool:
    """Return whether the texts are short and repeated."""
    labels = [label for label_set in label_sets for label in label_set]
    distinct = set(labels)
    words = sum(len(label.split()) for label in distinct) / max(1, len(distinct))
    return 1 <= len(distinct) <= min(MAX_LABELS, max(2, len(labels) // 2)) and words <= MAX_LABEL_WORDS


def are_lists(cells: Sequence[object]) -> bool:
    """Return whether the cells are lists of labels, or texts that contain such lists."""
    filled = [cell for cell in cells if cell is not None and cell != ""]
    if not filled or not all(isinstance(cell, list) or str(cell).startswith("[") for cell in filled):
        return False
    if any(isinstance(cell, list) and any(isinstance(item, list | dict) for item in cell) for cell in filled):
        return False
    return _are_labels(
        [[str(item) for item in cell] if isinstance(cell, list) else split_labels(str(cell)) for cell in filled]
    )


def are_parallel(cells: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether the lists in two columns have equal lengths, as words and their tags have."""
    pairs = [(a, b) for a, b in zip(cells, others, strict=True) if isinstance(a, list) and isinstance(b, list)]
    return bool(pairs) and all(len(a) == len(b) for a, b in pairs) and any(len(a) > 1 for a, _ in pairs)


def are_flags(cells: Sequence[object]) -> bool:
    """Return whether all cells are 0 or 1."""
    texts = {"" if cell is None else str(cell).strip().lower() for cell in cells}
    return bool(texts - {""}) and texts <= FLAGS.keys()
