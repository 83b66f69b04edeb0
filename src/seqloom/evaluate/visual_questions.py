"""Metrics of visual question answering.

    accuracy             the fraction of questions whose answer is exact
    follow_up_accuracy   the accuracy on questions that need the previous questions of their dialogue
    choice_accuracy      the fraction of multiple-choice questions whose most probable choice is correct

An answer is exact if it equals a reference after the normalization of `seqloom.evaluate.answers`.
`seqloom.decoding.choices` defines the probabilities of choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from seqloom.evaluate.answers import exact


@dataclass(frozen=True)
class TypeAccuracy:
    """The accuracy on the questions of a type."""

    questions: int
    accuracy: float


def compare_answers(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[bool]:
    """Return whether each answer equals one of its references."""
    pairs = zip(answers, references, strict=True)
    return [any(exact(answer, reference) for reference in correct) for answer, correct in pairs]


def score_answers(is_correct: Sequence[bool], is_follow_up: Sequence[bool]) -> dict[str, float]:
    """Compute the accuracy, and the accuracy on follow-up questions if there are any."""
    metrics = {"accuracy": sum(is_correct) / len(is_correct)}
    follow_ups = [value for value, applies in zip(is_correct, is_follow_up, strict=True) if applies]
    if follow_ups:
        metrics["follow_up_accuracy"] = sum(follow_ups) / len(follow_ups)
    return metrics


def accuracy_by_type(is_correct: Sequence[bool], types: Sequence[str]) -> dict[str, TypeAccuracy]:
    """Return the accuracy for each question type, most frequent types first; omit questions without a type."""
    correct: dict[str, list[bool]] = {}
    for value, name in zip(is_correct, types, strict=True):
        if name:
            correct.setdefault(name, []).append(value)
    names = sorted(correct, key=lambda name: (-len(correct[name]), name))
    return {name: TypeAccuracy(len(correct[name]), sum(correct[name]) / len(correct[name])) for name in names}
