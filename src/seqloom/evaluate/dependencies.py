"""Attachment scores of dependency trees that are written as text.

The scores follow the definition of the CoNLL 2018 shared task for given words: all words count, including punctuation,
and the part of a relation after a colon is ignored. A prediction that is not a tree with the words of its reference
has no correct attachment.
"""

from collections.abc import Sequence

from seqloom.core.dependency_trees import EXAMPLE, read_tree
from seqloom.core.errors import DataError
from seqloom.core.words import format_value


def attachment_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the attachment scores over all words, from 0 to 100, and the fraction of valid trees.

    UAS = words with the correct head / words; LAS = words with the correct head and relation / words.
    """
    words = heads = relations = valid = 0
    for number, (prediction, reference) in enumerate(zip(predictions, references, strict=True), start=1):
        gold, tree = read_tree(reference), read_tree(prediction)
        if gold is None:
            raise DataError(
                f"The metric attachment needs dependency trees such as {EXAMPLE}, but reference {number:,} is "
                f"{format_value(reference)}. Correct it, or remove attachment from `metrics`."
            )
        words += len(gold.heads)
        if tree is None or len(tree.heads) != len(gold.heads):
            continue
        valid += 1
        for index, head in enumerate(gold.heads):
            if tree.heads[index] == head:
                heads += 1
                relations += universal(tree.relations[index]) == universal(gold.relations[index])
    return {
        "labelled_attachment": 100 * relations / max(words, 1),
        "unlabelled_attachment": 100 * heads / max(words, 1),
        "valid_trees": valid / max(len(references), 1),
    }


def universal(relation: str) -> str:
    """Return the universal part of a relation: acl for acl:relcl."""
    return relation.partition(":")[0]
