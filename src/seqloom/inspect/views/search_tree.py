"""A beam search as a tree: every continuation that was compared, and what became of it.

    tree = search_tree(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026", beam=3)
    tree.candidates[0].text      what `seqloom translate --beam 3` prints

At each step up to 2k continuations of the k hypotheses are compared: those that may be kept, and those that are next
best. Each of them is a node: `kept` in the beam, `ended` and set aside, or `pruned`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.hypotheses import Hypothesis, SearchStep
from seqloom.inspect.views.next_tokens import Beginning, beginning
from seqloom.text import END

# What became of a continuation. A forced one belongs to a prompt or prefix; an open one was in the beam at the end.
Status = Literal["root", "forced", "kept", "open", "ended", "pruned"]
ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


@dataclass(frozen=True)
class TreeNode:
    """A continuation: the tokens on the way from the root to it."""

    id: int  # its place in the tree's list
    parent: int | None
    step: int  # which token it is, from 1; the root is 0
    token: int
    text: str  # the token, as it is shown to people
    log_prob: float  # of the token
    total: float  # Σ log p from the root
    score: float  # what it is ranked by: the sum, made comparable between lengths
    rank: int  # among all that were compared at its step, from 1
    status: Status
    best: int | None = None  # the best of the n-best that it leads to, from 1


@dataclass(frozen=True)
class Found:
    """A text that was found."""

    text: str
    tokens: list[str]
    score: float
    log_prob: float
    finished: bool
    node: int  # where it ends in the tree


@dataclass(frozen=True)
class SearchTree:
    nodes: list[TreeNode]
    candidates: list[Found]  # the n-best, best first
    others: list[Found]  # that came to their end too, but are not among the n-best
    options: BeamConfig
    forced: int  # tokens of the prompt or prefix
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        return max(node.step for node in self.nodes)

    def path(self, node: int) -> list[TreeNode]:
        """From the first token to this one."""
        found = []
        at: int | None = node
        while at:
            found.append(self.nodes[at])
            at = self.nodes[at].parent
        return found[::-1]

    def count(self, status: Status) -> int:
        return sum(node.status == status for node in self.nodes)


def search_tree(
    trained: Any, text: str, forced: Sequence[int] = (), *, max_tokens: int = 20, **options: Any
) -> SearchTree:
    """Search, and keep all that was compared. `trained` is what `seqloom.load` gives for a translator, a denoiser or
    a language model; `options` are those of `BeamConfig`.

    A translator searches as it translates (`decode` in its recipe), and then as `options` say; a language model
    continues a prompt by at most `max_tokens` tokens, as `seqloom generate --beam` does.
    """
    begun = beginning(trained, text, forced)
    if begun.ended:
        raise UsageError("Nothing comes after END: there is nothing to search for.")
    wanted = _of_source(trained, options) if begun.has_source else _of_prompt(begun, max_tokens, options)
    recorder = _Recorder()
    prefix = torch.tensor([begun.prefix], dtype=torch.long)
    (found,) = beam_search(
        trained.model,
        source=begun.tree(),
        prompt=prefix if begun.prefix or not begun.has_source else None,
        options=wanted,
        end=END,
        banned=begun.banned,
        recorder=recorder,
    )
    return _tree(begun, wanted, recorder.steps, found)


def _of_source(trained: Any, options: dict[str, Any]) -> BeamConfig:
    """A denoiser's own options are those of one answer; here it may give more."""
    wanted: BeamConfig = trained.decode_options(**options)
    try:
        return replace(wanted, n_best=options.get("n_best", wanted.n_best))
    except ValueError as error:
        raise UsageError(f"{error}.") from None


def _of_prompt(begun: Beginning, max_tokens: int, options: dict[str, Any]) -> BeamConfig:
    forced = len(begun.prefix)
    try:
        return BeamConfig(min_length=forced, max_length=forced + begun.room(max_tokens), **options)
    except ValueError as error:
        raise UsageError(f"{error}.") from None


class _Recorder:
    def __init__(self) -> None:
        self.steps: list[SearchStep] = []

    def step(self, step: SearchStep) -> None:
        self.steps.append(step)


def _tree(
    begun: Beginning, options: BeamConfig, steps: Sequence[SearchStep], found: Sequence[Hypothesis]
) -> SearchTree:
    nodes = _nodes(begun, steps)
    children = {(node.parent, node.token): node.id for node in nodes}
    candidates = []
    for number, one in enumerate(found, start=1):
        path = list(_walk(children, [*one.tokens, *[END] * one.finished]))
        for node in path:
            if nodes[node].best is None:
                nodes[node] = replace(nodes[node], best=number)
        candidates.append(_found(begun, one.tokens, one.score, one.log_prob, one.finished, path[-1]))
    tree = SearchTree(nodes, candidates, [], options, len(begun.prefix), begun.notes)
    return replace(tree, others=_others(begun, tree))


def _found(begun: Beginning, tokens: Sequence[int], score: float, log_prob: float, finished: bool, node: int) -> Found:
    said = tokens[len(begun.prompt) :]
    text = begun.written(said)
    text = text.translate(ONE_LINE) if begun.has_source else text  # as a translation is printed
    return Found(text, [begun.name(token) for token in said], score, log_prob, finished, node)


def _others(begun: Beginning, tree: SearchTree) -> list[Found]:
    """What was set aside without being among the n-best, best first."""
    best = {found.node for found in tree.candidates}
    ended = [node for node in tree.nodes if node.status == "ended" and node.id not in best]
    ended.sort(key=lambda node: -node.score)
    paths = [[own.token for own in tree.path(node.id)][:-1] for node in ended]  # without END
    return [_found(begun, path, node.score, node.total, True, node.id) for path, node in zip(paths, ended, strict=True)]


def _walk(children: dict[tuple[int | None, int], int], tokens: Sequence[int]) -> Iterator[int]:
    """The nodes from the root along these tokens."""
    node = 0
    yield node
    for token in tokens:
        node = children[node, token]
        yield node


def _nodes(begun: Beginning, steps: Sequence[SearchStep]) -> list[TreeNode]:
    """All that was compared, step after step. The search numbers what it keeps, `places` says what that is here."""
    token = begun.name
    nodes = [TreeNode(0, None, 0, END, token(END), 0.0, 0.0, 0.0, 1, "root")]
    places = {0: 0}
    for step in steps:
        rows = zip(
            *(
                values[0].tolist()
                for values in (step.parent, step.token, step.own, step.total, step.score, step.node, step.ended)
            ),
            strict=True,
        )
        for rank, (parent, said, own, total, score, kept, ended) in enumerate(rows, start=1):
            if total == -math.inf:
                continue
            status = _status(step is steps[-1], step.length <= len(begun.prefix), kept >= 0, ended)
            if kept >= 0:
                places[kept] = len(nodes)
            nodes.append(
                TreeNode(len(nodes), places[parent], step.length, said, token(said), own, total, score, rank, status)
            )
    return nodes


def _status(last: bool, forced: bool, kept: bool, ended: bool) -> Status:
    if forced:
        return "forced"
    if ended:
        return "ended"
    if not kept:
        return "pruned"
    return "open" if last else "kept"
