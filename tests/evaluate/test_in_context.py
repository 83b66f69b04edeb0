"""Recall from the context by models whose predictions are known."""

from typing import Any

import torch
from torch import Tensor

from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.evaluate.perplexity import RecallQuestion, recall

V = 9


class Copying:
    """A model that predicts the token that followed the last occurrence of the current token, or otherwise 1."""

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState({"read": torch.empty(rows or 1, 0, dtype=torch.long)})

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        read = torch.cat([state.hidden["read"], tokens], dim=1)
        scores = torch.zeros(len(read), V)
        for row, row_scores in zip(read.tolist(), scores, strict=True):
            matches = [index for index in range(len(row) - 1) if row[index] == row[-1]]
            row_scores[row[matches[-1] + 1] if matches else 1] = 5.0
        return StepOutput(scores.log_softmax(dim=1), DecodeState({"read": read}))


def test_accuracy_is_computed_for_each_group() -> None:
    documents = [[2, 7, 3, 8, 2, 7, 3, 4], [2, 1]]  # the keys are 2 and 3; the last answer for 3 has changed
    questions = [
        [
            RecallQuestion(1, 2, "first"),
            RecallQuestion(3, 4, "first"),
            RecallQuestion(5, 6, "again"),
            RecallQuestion(7, 8, "again"),
        ],
        [RecallQuestion(1, 2, "first")],
    ]
    metrics = recall(Copying(), documents, questions, end=0)
    assert metrics == {"first": 1 / 3, "again": 1 / 2}  # only the 1 in the second document is a default prediction
    assert recall(Copying(), documents, questions, end=0, rows=1) == metrics  # the result does not depend on batches


def test_all_tokens_of_an_answer_must_be_correct() -> None:
    model: Any = Copying()
    document = [2, 5, 6, 3, 2, 5, 6, 3, 2, 5, 7]
    questions = [RecallQuestion(5, 7, "right"), RecallQuestion(9, 11, "wrong")]
    assert recall(model, [document], [questions], end=0) == {"right": 1.0, "wrong": 0.0}


def test_no_questions_give_no_metrics() -> None:
    assert recall(Copying(), [[1, 2]], [[]], end=0) == {}
