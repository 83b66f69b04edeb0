"""How models choose tokens: what they expect next, a text as it is written, a beam search as a tree, guesses at gaps.

    expected = next_tokens(seqloom.load("runs/lm-word-lstm"), "The class", temperature=0.7, top_k=20)
    expected.probabilities[0]               of the most probable token, expected.ids[0]
    expected.sampling_probabilities[0]      the same after temperature and top-k

    tree = search_tree(seqloom.load("runs/quickstart-en-fr"), "Sunday, November 15, 2026", beam=3)
    tree.candidates[0].text      what `seqloom translate --beam 3` prints

A translator gets a line, a denoiser a damaged text and a language model a prompt: all of them start from a
`DecodingStart`. `probabilities` are those of the model. The next token is sampled from `sampling_probabilities`, which
`seqloom.decoding.processors` computes from them: banned tokens, temperature, top-k and top-p.

At each step of a beam search up to 2k continuations of the k hypotheses are compared: those that may be kept, and those
that are next best. Each of them is a node: `kept` in the beam, `ended` and set aside, or `pruned`.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import DataError, DivergedError, UsageError
from seqloom.core.protocols import DecodeState, StepOutput, Steppable
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.mixture import Ensemble
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.decoding.rules import SearchStep
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.values import Array
from seqloom.inspect.views.texts import check_unicode, one_line, special_names, unknown_notes
from seqloom.models.transformer import Transformer
from seqloom.runs.trained import (
    DenoisingModel,
    MaskFillingModel,
    SearchingModel,
    TranslatingModel,
    WritingModel,
)
from seqloom.text import END
from seqloom.text.base import StreamDecoder
from seqloom.text.model_inputs import read_gaps

Ids = Sequence[int]
ALTERNATIVES = 12  # that are kept of each token while a text is written
ONE_LINE = {ord("\n"): " ", ord("\r"): " "}

# --- where a text begins ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodingStart:
    """What stands before the first token that is still to be chosen."""

    trained: TrainedModel
    text: str  # the line that is translated or restored, or the prompt
    source: list[int] | None  # its tokens, END included, where it is translated or restored
    prompt: list[int]  # tokens of the prompt, those that were forced after it not among them
    forced: list[int]  # said because somebody wants them said; the last may be END
    banned: tuple[int, ...]  # never chosen
    notes: tuple[str, ...]
    names: Mapping[int, str] = field(default_factory=dict)  # of tokens that the model has beside its tokenizer's

    @property
    def prefix(self) -> list[int]:
        """All tokens that must come first, END not among them."""
        return [*self.prompt, *(token for token in self.forced if token != END)]

    def name(self, token: int) -> str:
        """A token as it is shown to people."""
        return self.names.get(token) or self.trained.tokenizer.token(token)

    def tree(self) -> Tree:
        """The source as the model's `start` takes it."""
        if self.source is None:
            return None
        tokens = torch.tensor([self.source], device=self.trained.device)
        return {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}

    def start(self) -> DecodeState:
        return self.trained.model.start(self.tree())

    def inputs(self, tokens: Sequence[int]) -> Tensor:
        """END before the text, as in training (1, T)."""
        return torch.tensor([[END, *tokens]], device=self.trained.device)

    def room(self, wanted: int) -> int:
        """How many of the tokens that are wanted after the prefix the model can say."""
        model = self.trained.model
        longest = model.longest_target if isinstance(model, Transformer | Ensemble) else None
        if longest is None:
            return wanted
        if len(self.prefix) >= longest:
            raise UsageError(f"This model can say {longest} tokens, and there are {len(self.prefix)} already.")
        return min(wanted, longest - len(self.prefix))

    def decoder(self) -> StreamDecoder:
        """A decoder of what is said after the prompt."""
        decoder = _NamingDecoder(self.trained.tokenizer.stream(), self.names)
        decoder.read([END, *self.prompt])
        return decoder

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens that come after the prompt."""
        decoder = self.decoder()
        return decoder.read(tokens) + decoder.flush()

    def expect(self, log_probs: Tensor, sampling: SamplingConfig, top: int) -> "NextTokens":
        """Sort log p of all tokens (1, V), and give the first `top` of them names."""
        own = log_probs.detach().to("cpu", torch.float32)
        if own.isnan().any():
            raise DivergedError(
                "The model's probabilities are not numbers: its weights are bad. Use another checkpoint."
            )
        shaped = process(own, torch.empty(1, 0, dtype=torch.long), sampling.processors(END))[0].double().exp()
        if sampling.greedy:
            shaped = torch.zeros_like(shaped).index_fill(0, shaped.argmax(), 1.0)
        order = own[0].argsort(descending=True, stable=True)
        return NextTokens(
            ids=order.numpy(),
            log_probs=own[0][order].double().numpy(),
            sampling_probabilities=shaped[order].numpy(),
            banned=torch.isin(order, torch.tensor(self.banned, dtype=torch.long)).numpy(),
            tokens=[self.name(token) for token in order[:top].tolist()],
        )


class _NamingDecoder(StreamDecoder):
    """A decoder that also knows the names of tokens which are not its tokenizer's, and sets them off by spaces."""

    def __init__(self, decoder: StreamDecoder, names: Mapping[int, str]) -> None:
        self._decoder, self._names = decoder, names

    def push(self, token: int) -> str:
        name = self._names.get(token)
        return self._decoder.push(token) if name is None else f"{self._decoder.flush()} {name} "

    def flush(self) -> str:
        return self._decoder.flush()


def prepare_decoding(trained: TrainedModel, text: str, forced: Ids = ()) -> DecodingStart:
    """`text` is the line to translate or restore, or the prompt to continue, which may be empty. `forced` are tokens
    that come next, whatever the model thinks of them."""
    if not isinstance(trained, TranslatingModel | DenoisingModel | WritingModel):
        raise UsageError(f"{trained.name} is {trained.description}: it does not write text, token after token.")
    tokenizer, source, names, banned = trained.tokenizer, None, dict[int, str](), tuple(trained.tokenizer.banned)
    if isinstance(trained, TranslatingModel):
        text = one_line(text, "text")
        source, longest = [*tokenizer.encode(text), END], trained.longest_source
        if longest is not None and len(source) > longest:
            raise DataError(
                f"The text has {len(source):,} tokens, its end included, and this model can read {longest:,}."
            )
        notes = unknown_notes(tokenizer.unknown_pieces(text), "text")
    elif isinstance(trained, DenoisingModel):
        text, names = one_line(text, "text"), special_names(tokenizer, trained.sentinels)
        gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
        source, banned, notes = trained.encode_source(text), trained.banned, unknown_notes(gaps.unknown, "text")
    else:
        assert isinstance(trained, WritingModel)
        check_unicode(text, "prompt")
        read = trained.to_training_format(text, complete=False)
        banned = () if tokenizer.unknown is None else (tokenizer.unknown,)
        notes = unknown_notes(tokenizer.unknown_pieces(read), "prompt")
    for token in forced:
        if not (0 <= token < len(tokenizer) or token in names):
            raise UsageError(f"Token ids go from 0 to {max(len(tokenizer) - 1, *names, 0)}; got {token}.")
    if END in forced[:-1]:
        raise UsageError("Nothing comes after END: of the tokens that are forced only the last may be it.")
    prompt = tokenizer.encode(read) if source is None else []
    return DecodingStart(trained, text, source, prompt, list(forced), banned, notes, names)


# --- what comes next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NextTokens:
    """All tokens of the vocabulary (V,), the most probable first; of equals, that of lower id."""

    ids: NDArray[np.int64]
    log_probs: Array  # the model's own
    sampling_probabilities: Array  # what is drawn from; 0 for a token that was cut
    banned: NDArray[np.bool_]  # never chosen, whatever the model thinks
    tokens: list[str]  # of the first few, as they are shown to people

    @property
    def nbytes(self) -> int:
        return sum(own.nbytes for own in (self.ids, self.log_probs, self.sampling_probabilities, self.banned))

    @property
    def probabilities(self) -> Array:
        return np.exp(self.log_probs)

    @property
    def candidate_count(self) -> int:
        """How many tokens can be drawn."""
        return int((self.sampling_probabilities > 0).sum())

    @property
    def entropy(self) -> float:
        """Of the model's own distribution, in bits."""
        p = self.probabilities
        return float(-(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum())

    def rank(self, token: int) -> int:
        """The rank of a token among all, 1 for the most probable."""
        return int(np.flatnonzero(self.ids == token)[0]) + 1


@dataclass(frozen=True, eq=False)
class GeneratedToken:
    """A token of a text that is being written, and what else might have stood there."""

    token: int
    text: str  # what it adds to the text; "" while half a letter waits for the rest
    name: str  # the token itself, as it is shown to people
    forced: bool  # whether somebody wanted it, or else it was drawn
    expected: NextTokens  # before it was chosen; names are kept of the first few

    @property
    def probability(self) -> float:
        return float(self.expected.probabilities[self.expected.rank(self.token) - 1])


def next_tokens(trained: TrainedModel, text: str, forced: Ids = (), *, top: int = 200, **options: Any) -> NextTokens:
    """What comes after a prompt, or in the translation of a text, and after the tokens that were `forced`.

    `options` are those of `SamplingConfig`. The first `top` tokens get names.
    """
    begun = prepare_decoding(trained, text, [token for token in forced if token != END])
    with eval_mode(trained.model), torch.no_grad():
        output = trained.model.step(begun.inputs(begun.prefix), begun.start())
    return begun.expect(output.log_probs, SamplingConfig(banned=begun.banned, **options), top)


class _Listener:
    """A model whose last answer is kept."""

    def __init__(self, model: Steppable) -> None:
        self.model = model
        self.log_probs = torch.empty(0)

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        return self.model.start(source, rows)

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        output = self.model.step(tokens, state, mask)
        self.log_probs = output.log_probs
        return output


def stream_tokens(
    trained: TrainedModel, text: str, forced: Ids = (), *, max_tokens: int = 100, seed: int = 0, **options: Any
) -> Generator[GeneratedToken, None, None]:
    """The tokens that were forced and, until END comes or `max_tokens` are there, those that are drawn after them.

    What is drawn is what `seqloom generate` draws from this seed after the same tokens. `options` are those of
    `SamplingConfig`. Arguments are checked at the call, not at the first token.
    """
    begun = prepare_decoding(trained, text, forced)
    sampling, room = SamplingConfig(banned=begun.banned, **options), begun.room(max_tokens)
    listener, decoder = _Listener(trained.model), begun.decoder()

    def add(token: int, forced: bool) -> GeneratedToken:
        piece = decoder.flush() if token == END else decoder.push(token)
        expected = begun.expect(listener.log_probs, sampling, ALTERNATIVES)
        return GeneratedToken(token, piece, begun.name(token), forced, expected)

    def steps() -> Generator[GeneratedToken, None, None]:
        with eval_mode(trained.model):
            state, read = begun.start(), begun.inputs(begun.prompt)
            for token in begun.forced:
                with torch.no_grad():
                    state = listener.step(read, state).state
                yield add(token, True)
                read = torch.tensor([[token]], device=read.device)
            if END in begun.forced:
                return
            prompt = begun.inputs(begun.prefix)
            source = begun.tree()
            drawn = generate(listener, prompt, options=sampling, max_tokens=room, end=END, seed=seed, source=source)
            for step in drawn:
                yield add(int(step.tokens[0]), False)

    return steps()


# --- a search as a tree -----------------------------------------------------------------------------------------------

# What became of a continuation. A forced one belongs to a prompt or prefix; an open one was in the beam at the end.
Status = Literal["root", "forced", "kept", "open", "ended", "pruned"]


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
class TreeText:
    """A text that was found."""

    text: str
    tokens: list[str]
    score: float
    log_prob: float
    finished: bool
    node: int  # where it ends in the tree


@dataclass(frozen=True)
class SearchTree:
    """All that a search compared."""

    nodes: list[TreeNode]
    candidates: list[TreeText]  # the n-best, best first
    others: list[TreeText]  # that came to their end too, but are not among the n-best
    options: BeamConfig
    forced: int  # tokens of the prompt or prefix
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        return max(node.step for node in self.nodes)

    def path(self, node: int) -> list[TreeNode]:
        """From the first token to this one."""
        path = []
        at: int | None = node
        while at:
            path.append(self.nodes[at])
            at = self.nodes[at].parent
        return path[::-1]

    def count(self, status: Status) -> int:
        return sum(node.status == status for node in self.nodes)


class _SearchRecorder:
    """Keeps the steps of a search."""

    def __init__(self) -> None:
        self.steps: list[SearchStep] = []

    def step(self, step: SearchStep) -> None:
        self.steps.append(step)


def search_tree(
    trained: TrainedModel, text: str, forced: Ids = (), *, max_tokens: int = 20, **options: Any
) -> SearchTree:
    """Search, and keep all that was compared; `options` are those of `BeamConfig`.

    A translator searches as it translates (`decode` in its recipe), and then as `options` say; a language model
    continues a prompt by at most `max_tokens` tokens, as `seqloom generate --beam` does.
    """
    begun = prepare_decoding(trained, text, forced)
    if END in begun.forced:
        raise UsageError("Nothing comes after END: there is nothing to search for.")
    prefix, recorder = begun.prefix, _SearchRecorder()
    try:
        if isinstance(trained, SearchingModel):
            config = trained.decode_options(**options)
            config = replace(config, n_best=options.get("n_best", config.n_best))  # a denoiser's own is one answer
        else:
            config = BeamConfig(min_length=len(prefix), max_length=len(prefix) + begun.room(max_tokens), **options)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    (hypotheses,) = beam_search(
        trained.model,
        source=begun.tree(),
        prompt=torch.tensor([prefix], dtype=torch.long) if prefix or begun.source is None else None,
        options=config,
        end=END,
        banned=begun.banned,
        recorder=recorder,
    )
    nodes = _tree_nodes(begun, recorder.steps)

    def found(tokens: Sequence[int], score: float, log_prob: float, finished: bool, node: int) -> TreeText:
        said = tokens[len(begun.prompt) :]
        text = begun.decode(said)
        text = text.translate(ONE_LINE) if begun.source is not None else text  # as a translation is printed
        return TreeText(text, [begun.name(token) for token in said], score, log_prob, finished, node)

    children, candidates = {(node.parent, node.token): node.id for node in nodes}, []
    for number, one in enumerate(hypotheses, start=1):
        at = 0
        for token in [None, *one.tokens, *[END] * one.finished]:
            at = at if token is None else children[at, token]
            if nodes[at].best is None:
                nodes[at] = replace(nodes[at], best=number)
        candidates.append(found(one.tokens, one.score, one.log_prob, one.finished, at))
    tree, best = SearchTree(nodes, candidates, [], config, len(prefix), begun.notes), {one.node for one in candidates}
    ended = [node for node in nodes if node.status == "ended" and node.id not in best]
    for node in sorted(ended, key=lambda node: -node.score):
        tokens = [step.token for step in tree.path(node.id)][:-1]  # without END
        tree.others.append(found(tokens, node.score, node.total, True, node.id))
    return tree


def _tree_nodes(begun: DecodingStart, steps: Sequence[SearchStep]) -> list[TreeNode]:
    """All that was compared, step after step. The search numbers what it keeps, `ids` says what that is here."""
    nodes = [TreeNode(0, None, 0, END, begun.name(END), 0.0, 0.0, 0.0, 1, "root")]
    ids, forced = {0: 0}, len(begun.prefix)
    for step in steps:
        columns = (step.parent, step.token, step.token_log_prob, step.total, step.score, step.node, step.ended)
        rows = zip(*(column[0].tolist() for column in columns), strict=True)
        for rank, (parent, token, own, total, score, kept, ended) in enumerate(rows, start=1):
            if total == -math.inf:
                continue
            status: Status = "pruned"
            if step.length <= forced:
                status = "forced"
            elif ended:
                status = "ended"
            elif kept >= 0:
                status = "open" if step is steps[-1] else "kept"
            if kept >= 0:
                ids[kept] = len(nodes)
            values = token, begun.name(token), own, total, score, rank, status
            nodes.append(TreeNode(len(nodes), ids[parent], step.length, *values))
    return nodes


# --- gaps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskPredictions:
    """What a masked language model thinks may stand at each [MASK] of a text."""

    text: str
    around: list[str]  # the text before the first mask, between masks, after the last
    masks: list[list[Any]]  # of each mask what may stand there, best first: `TokenProbability`
    filled: str  # with the best guess at each
    notes: tuple[str, ...]


def predict_masks(trained: TrainedModel, text: str, top: int = 200) -> MaskPredictions:
    """Guess what stands at each mask of a text; one without a mask has no guesses."""
    assert isinstance(trained, MaskFillingModel)
    gaps = read_gaps(trained.tokenizer, Specials.after(len(trained.tokenizer)), text)
    notes = unknown_notes(gaps.unknown, "text")
    if not gaps.masks:
        return MaskPredictions(text, [text], [], text, notes)
    (filled,) = trained.fill_mask(text, top=top)
    spans = [gaps.spans[mask] for mask in gaps.masks]
    ends, starts = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    around = [text[end:start] for end, start in zip(ends, starts, strict=True)]
    return MaskPredictions(text, around, filled.masks, filled.filled, notes)


def replace_mask(trained: TrainedModel, text: str, mask: int, token: int) -> str:
    """The text with a token in the place of one of its masks, counted from 0."""
    gaps = read_gaps(trained.tokenizer, Specials.after(len(trained.tokenizer)), text)
    if not 0 <= mask < len(gaps.masks):
        raise UsageError(f"The text has {len(gaps.masks)} masks, counted from 0; got {mask}.")
    if not 0 <= token < len(trained.tokenizer):
        raise UsageError(f"Token ids go from 0 to {len(trained.tokenizer) - 1}; got {token}.")
    start, end = gaps.spans[gaps.masks[mask]]
    return trained.tokenizer.append_token(text[:start], token) + text[end:]
