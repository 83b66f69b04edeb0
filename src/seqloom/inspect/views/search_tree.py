"""Beam search as a tree: all continuations that a search compares, and the outcome of each.

    tree = search_tree(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026", beam=3)
    tree.candidates[0].text      the output of `seqloom translate --beam 3`

A step of beam search compares up to 2k continuations of the k hypotheses. Each continuation is a node with a status:
`kept` in the beam, `ended` (complete), or `pruned`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from seqloom.core.errors import UsageError
from seqloom.core.words import LINE_BREAKS
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.rules import Hypothesis, SearchStep
from seqloom.inspect.capture import TrainedModel
from seqloom.inspect.views.next_tokens import Ids, prepare_decoding
from seqloom.runs.trained import (
    SearchingModel,
    TranslatingModel,
)
from seqloom.tasks.terms_base import require_terms
from seqloom.text import END

# The status of a continuation. Forced nodes belong to a prompt or prefix; open nodes were in the final beam.
Status = Literal["root", "forced", "kept", "open", "ended", "pruned"]


@dataclass(frozen=True)
class TreeNode:
    """A continuation: the tokens from the root to this node."""

    id: int  # index in the list of nodes
    parent: int | None
    step: int  # token number, counted from 1; the root is 0
    token: int
    text: str  # display name of the token
    log_prob: float  # log-probability of the token
    total: float  # Σ log p from the root
    score: float  # length-normalized log-probability, which determines the rank
    rank: int  # rank among all continuations of its step, counted from 1
    status: Status
    best: int | None = None  # rank, counted from 1, of the best n-best hypothesis that contains the node


@dataclass(frozen=True)
class TreeText:
    """The text of a hypothesis."""

    text: str
    tokens: list[str]
    score: float
    log_prob: float
    finished: bool
    node: int  # id of its last node


@dataclass(frozen=True)
class SearchTree:
    """All continuations that a beam search compared."""

    nodes: list[TreeNode]
    candidates: list[TreeText]  # the n-best hypotheses, best first
    others: list[TreeText]  # finished hypotheses outside the n-best
    options: BeamConfig
    forced: int  # number of tokens of the prompt or prefix
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        return max(node.step for node in self.nodes)

    def path(self, node: int) -> list[TreeNode]:
        """Return the nodes from the first token to this node."""
        path = []
        at: int | None = node
        while at:
            path.append(self.nodes[at])
            at = self.nodes[at].parent
        return path[::-1]

    def count(self, status: Status) -> int:
        return sum(node.status == status for node in self.nodes)


class SearchRecorder:
    """A recorder of the steps of a search."""

    def __init__(self) -> None:
        self.steps: list[SearchStep] = []

    def step(self, step: SearchStep) -> None:
        self.steps.append(step)


def search_tree(
    trained: TrainedModel,
    text: str,
    forced: Ids = (),
    *,
    max_tokens: int = 20,
    terms: Sequence[str] = (),
    **options: Any,
) -> SearchTree:
    """Run a beam search and return its tree. `options` are fields of `BeamConfig`.

    A translator uses the options of `decode` in its recipe, overridden by `options`. All translations contain the
    `terms`.
    A language model continues a prompt by at most `max_tokens` tokens, as `seqloom generate --beam` does.
    """
    start = prepare_decoding(trained, text, forced)
    if END in start.forced:
        raise UsageError("The forced tokens end with END, so there is nothing to search for.")
    if terms and not isinstance(trained, TranslatingModel):
        raise UsageError(f"{trained.name} is {trained.description}: only translations can have required terms.")
    prefix, recorder = start.prefix, SearchRecorder()
    try:
        if isinstance(trained, SearchingModel):
            config = trained.decode_options(**options)
            config = replace(config, n_best=options.get("n_best", config.n_best))  # the default of a denoiser is one
        else:
            max_length = len(prefix) + start.limit_length(max_tokens)
            config = BeamConfig(min_length=len(prefix), max_length=max_length, **options)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    (hypotheses,) = beam_search(
        trained.model,
        source=start.source_batch(),
        prompt=torch.tensor([prefix], dtype=torch.long) if prefix or start.source is None else None,
        options=config,
        end=END,
        banned=start.banned,
        constraints=require_terms(trained.tokenizer, terms, trained.device),
        recorder=recorder,
    )

    def decode(tokens: Sequence[int]) -> str:
        text = start.decode(tokens[len(start.prompt) :])
        # In the format of printed translations
        return text.translate(LINE_BREAKS) if start.source is not None else text

    names = TreeNames(start.name, decode, forced=len(prefix), prompt=len(start.prompt))
    return build_tree(recorder.steps, hypotheses, config, names, start.notes)


@dataclass(frozen=True)
class TreeNames:
    """The names and texts of the tokens of a tree."""

    name: Callable[[int], str]  # the display name of a token
    decode: Callable[[Sequence[int]], str]  # the text of the tokens of a hypothesis
    forced: int = 0  # number of tokens of the prompt or prefix
    prompt: int = 0  # number of tokens of the prompt


def build_tree(
    steps: Sequence[SearchStep],
    hypotheses: Sequence[Hypothesis],
    config: BeamConfig,
    names: TreeNames,
    notes: tuple[str, ...] = (),
) -> SearchTree:
    """Return the tree of a recorded search and its n-best hypotheses."""
    nodes = _tree_nodes(names, steps)

    def to_text(tokens: Sequence[int], score: float, log_prob: float, finished: bool, node: int) -> TreeText:
        shown = [names.name(token) for token in tokens[names.prompt :]]
        return TreeText(names.decode(tokens), shown, score, log_prob, finished, node)

    children, candidates = {(node.parent, node.token): node.id for node in nodes}, []
    for number, hypothesis in enumerate(hypotheses, start=1):
        at = 0
        for token in [None, *hypothesis.tokens, *[END] * hypothesis.finished]:
            at = at if token is None else children[at, token]
            if nodes[at].best is None:
                nodes[at] = replace(nodes[at], best=number)
        candidates.append(to_text(hypothesis.tokens, hypothesis.score, hypothesis.log_prob, hypothesis.finished, at))
    tree = SearchTree(nodes, candidates, [], config, names.forced, notes)
    best = {candidate.node for candidate in candidates}
    ended = [node for node in nodes if node.status == "ended" and node.id not in best]
    for node in sorted(ended, key=lambda node: -node.score):
        tokens = [step.token for step in tree.path(node.id)][:-1]  # without END
        tree.others.append(to_text(tokens, node.score, node.total, True, node.id))
    return tree


def _tree_nodes(names: TreeNames, steps: Sequence[SearchStep]) -> list[TreeNode]:
    """Return the nodes of all steps. `ids` maps the numbers of the search to nodes."""
    nodes = [TreeNode(0, None, 0, END, names.name(END), 0.0, 0.0, 0.0, 1, "root")]
    ids = {0: 0}
    for step in steps:
        columns = (step.parent, step.token, step.token_log_prob, step.total, step.score, step.node, step.ended)
        rows = zip(*(column[0].tolist() for column in columns), strict=True)
        for rank, (parent, token, own, total, score, kept, ended) in enumerate(rows, start=1):
            if total == -math.inf:
                continue
            status: Status = "pruned"
            if step.length <= names.forced:
                status = "forced"
            elif ended:
                status = "ended"
            elif kept >= 0:
                status = "open" if step is steps[-1] else "kept"
            if kept >= 0:
                ids[kept] = len(nodes)
            values = token, names.name(token), own, total, score, rank, status
            nodes.append(TreeNode(len(nodes), ids[parent], step.length, *values))
    return nodes
