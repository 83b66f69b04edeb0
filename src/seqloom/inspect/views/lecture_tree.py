"""The beam search of the lectures with k = 2: the translation of "il a m'entarté" into "he hit me with a pie".

    tree = lecture_tree()
    tree.candidates[0].text, tree.candidates[0].log_prob      he hit me with a pie, −4.3

The lectures print the score Σ log p of each continuation. `SCORES` contains these scores. The log-probability of a word
is the difference between its score and the score of its parent. The lectures show two words for each hypothesis; all
other words have probability 0 here. The lectures stop after the last word, so END has probability 1 there.
"""

import math

import torch
from torch import Tensor

from seqloom.core import END
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.views.search_tree import SearchRecorder, SearchTree, TreeNames, build_tree
from seqloom.text.base import END_TEXT

SCORES = {  # hypothesis → Σ log p
    "he": -0.7,
    "I": -0.9,
    "he hit": -1.7,
    "he struck": -2.9,
    "I was": -1.6,
    "I got": -1.8,
    "he hit a": -2.8,
    "he hit me": -2.5,
    "I was hit": -2.9,
    "I was struck": -3.8,
    "he hit a tart": -4.0,
    "he hit a pie": -3.4,
    "he hit me with": -3.3,
    "he hit me on": -3.5,
    "he hit a pie in": -4.8,
    "he hit a pie with": -4.5,
    "he hit me with a": -3.7,
    "he hit me with one": -4.3,
    "he hit me with a pie": -4.3,
    "he hit me with a tart": -4.6,
    "he hit me with one pie": -5.0,
    "he hit me with one tart": -5.3,
}
COMPLETE = ("he hit me with a pie", "he hit me with a tart")
WORDS = (END_TEXT, *dict.fromkeys(hypothesis.split()[-1] for hypothesis in SCORES))  # the vocabulary; END has id 0


class LectureModel:
    """A model with the probabilities of the lectures, whose state is the words read so far."""

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return DecodeState(torch.zeros(rows or 1, 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        read = torch.cat([state.hidden, tokens], dim=1)  # (B, T), END first
        rows = [next_log_probs(decode(row)) for row in read.tolist()]
        return StepOutput(torch.tensor(rows, dtype=torch.float64), DecodeState(read))


def next_log_probs(hypothesis: str) -> list[float]:
    """Return log p of each word of the vocabulary after a hypothesis."""
    total = SCORES.get(hypothesis, 0.0)
    log_probs = [SCORES.get(f"{hypothesis} {word}".strip(), -math.inf) - total for word in WORDS]
    return [0.0 if hypothesis in COMPLETE else -math.inf, *log_probs[1:]]


def decode(tokens: list[int]) -> str:
    return " ".join(WORDS[token] for token in tokens if token != END)


def lecture_tree(beam: int = 2) -> SearchTree:
    """Search with a beam of `beam` hypotheses, which are ranked by Σ log p."""
    config = BeamConfig(beam=beam, n_best=beam, length_penalty=0.0, max_length=8)
    recorder = SearchRecorder()
    (hypotheses,) = beam_search(LectureModel(), rows=1, options=config, end=END, recorder=recorder)
    names = TreeNames(WORDS.__getitem__, lambda tokens: decode(list(tokens)))
    return build_tree(recorder.steps, hypotheses, config, names)
