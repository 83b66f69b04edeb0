"""From where a model goes on writing: what it reads as a source, and the tokens that are already there.

A translator is given a line and says it in another language, a denoiser a damaged text and says what it was; a language
model is given a prompt and continues it. Beyond that they are asked the same things, so everything that looks at how
they choose tokens begins here.

What a model expects next, before and after chance is shaped; and a text as it is written, token by token.

    found = next_tokens(seqloom.load("runs/lm-word-lstm"), "The class", temperature=0.7, top_k=20)
    found.probabilities[0], found.chances[0]      of found.ids[0], the token the model finds most probable

`probabilities` are the model's own. `chances` are what the next token is drawn from: the same after the processors of
`seqloom.decoding.processors`, which ban tokens, sharpen or flatten (temperature), and cut (top-k, top-p).

What a masked language model thinks may stand at each [MASK] of a text; and the text once something stands there.

found = gap_guesses(seqloom.load("runs/bert-pydocs"), "the [MASK] statement", top=5)
found.masks[0][0].token, found.masks[0][0].probability
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqloom.core.errors import DataError, DivergedError, UsageError
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.specials import Specials
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.inspect.capture import evaluating
from seqloom.inspect.views.alignment import one_line, unknown_note
from seqloom.text import END
from seqloom.text.base import StreamDecoder
from seqloom.text.specials import read_gaps


@dataclass(frozen=True)
class Beginning:
    """What stands before the first token that is still to be chosen."""

    trained: Any  # what `seqloom.load` gave
    text: str  # the line that is translated or restored, or the prompt
    source: list[int] | None  # its tokens, END included, where it is translated or restored
    prompt: list[int]  # tokens of the prompt, those that were forced after it not among them
    forced: list[int]  # said because somebody wants them said; the last may be END
    banned: tuple[int, ...]  # never chosen
    notes: tuple[str, ...]
    names: Mapping[int, str] = field(default_factory=dict)  # of tokens that the model has beside its tokenizer's

    @property
    def has_source(self) -> bool:
        return self.source is not None

    def name(self, token: int) -> str:
        """A token as it is shown to people."""
        return self.names.get(token) or str(self.trained.tokenizer.token(token))

    @property
    def prefix(self) -> list[int]:
        """All tokens that must come first, END not among them."""
        return [*self.prompt, *(token for token in self.forced if token != END)]

    @property
    def ended(self) -> bool:
        return END in self.forced

    def tree(self) -> Any:
        """The source as the model's `start` takes it."""
        if self.source is None:
            return None
        tokens = torch.tensor([self.source], device=self.trained.device)
        return {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}

    def start(self) -> DecodeState:
        source = self.tree()
        state: DecodeState = self.trained.model.start(rows=1) if source is None else self.trained.model.start(source)
        return state

    def room(self, wanted: int) -> int:
        """How many of the tokens that are wanted after the prefix the model can say."""
        longest = getattr(self.trained.model, "longest_target", None)
        if longest is None:
            return wanted
        if len(self.prefix) >= longest:
            raise UsageError(f"This model can say {longest} tokens, and there are {len(self.prefix)} already.")
        return min(wanted, longest - len(self.prefix))

    def decoder(self) -> StreamDecoder:
        """Turns what is said after the prompt into text."""
        found = _Named(self.trained.tokenizer.stream(), self.names)
        found.read([END, *self.prompt])
        return found

    def written(self, tokens: Sequence[int]) -> str:
        """The text of tokens that come after the prompt."""
        decoder = self.decoder()
        return decoder.read(tokens) + decoder.flush()


class _Named(StreamDecoder):
    """A decoder that also knows the names of tokens which are not its tokenizer's, and sets them off by spaces."""

    def __init__(self, decoder: StreamDecoder, names: Mapping[int, str]) -> None:
        self._decoder, self._names = decoder, names

    def push(self, token: int) -> str:
        name = self._names.get(token)
        return self._decoder.push(token) if name is None else f"{self._decoder.flush()} {name} "

    def flush(self) -> str:
        return self._decoder.flush()


def beginning(trained: Any, text: str, forced: Sequence[int] = ()) -> Beginning:
    """`text` is the line to translate or restore, or the prompt to continue, which may be empty. `forced` are tokens
    that come next, whatever the model thinks of them."""
    begin = next((begin for use, begin in BEGINNINGS.items() if hasattr(trained, use)), None)
    if begin is None:
        raise UsageError(f"{trained.name} is {trained.what}: it does not write text, token after token.")
    begun = begin(trained, text, list(forced))
    _check_forced(forced, len(trained.tokenizer), begun.names)
    return begun


def _translation(trained: Any, text: str, forced: list[int]) -> Beginning:
    text, tokenizer = one_line(text, "text"), trained.tokenizer
    source = [*tokenizer.encode(text), END]
    longest = trained.longest_source
    if longest is not None and len(source) > longest:
        raise DataError(f"The text has {len(source):,} tokens, its end included, and this model can read {longest:,}.")
    return Beginning(trained, text, source, [], forced, tuple(tokenizer.banned), _notes(tokenizer, text, "text"))


def _continuation(trained: Any, text: str, forced: list[int]) -> Beginning:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"The prompt must be UTF-8, but this is not: {text!r}.")
    read, tokenizer = trained.as_taught(text, whole=False), trained.tokenizer
    banned = () if tokenizer.unknown is None else (tokenizer.unknown,)
    return Beginning(trained, text, None, tokenizer.encode(read), forced, banned, _notes(tokenizer, read, "prompt"))


def _restoration(trained: Any, text: str, forced: list[int]) -> Beginning:
    text, tokenizer = one_line(text, "text"), trained.tokenizer
    sentinels = {sentinel: f"<{number}>" for number, sentinel in enumerate(trained.sentinels, start=1)}
    names = {**Specials.after(len(tokenizer)).names, **sentinels}
    gaps = read_gaps(tokenizer, Specials.after(len(tokenizer)), text)
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    return Beginning(trained, text, trained.source(text), [], forced, trained.banned, notes, names)


# By what a trained model can do.
BEGINNINGS = {"translate": _translation, "restore": _restoration, "generate": _continuation}


def _notes(tokenizer: Any, text: str, what: str) -> tuple[str, ...]:
    unknown = tokenizer.unknown_pieces(text)
    return (unknown_note(unknown, what),) if unknown else ()


def _check_forced(forced: Sequence[int], vocabulary: int, names: Mapping[int, str]) -> None:
    for token in forced:
        if not (0 <= token < vocabulary or token in names):
            raise UsageError(f"Token ids go from 0 to {max(vocabulary - 1, *names, 0)}; got {token}.")
    if END in forced[:-1]:
        raise UsageError("Nothing comes after END: of the tokens that are forced only the last may be it.")


# ---------------------------------------------------------------------------------------------------------------------

Array = NDArray[np.floating[Any]]
WATCHED = 12  # alternatives that are kept of each token while a text is written


@dataclass(frozen=True, eq=False)
class NextTokens:
    """All tokens of the vocabulary (V,), the most probable first; of equals, that of lower id."""

    ids: NDArray[np.int64]
    log_probs: Array  # the model's own
    chances: Array  # what is drawn from; 0 for a token that was cut
    banned: NDArray[np.bool_]  # never chosen, whatever the model thinks
    tokens: list[str]  # of the first few, as they are shown to people

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.log_probs.nbytes + self.chances.nbytes + self.banned.nbytes

    @property
    def probabilities(self) -> Array:
        return np.exp(self.log_probs)

    @property
    def kept(self) -> int:
        """How many tokens can be drawn."""
        return int((self.chances > 0).sum())

    @property
    def entropy(self) -> float:
        """Of the model's own distribution, in bits."""
        p = self.probabilities
        return float(-(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum())

    def rank(self, token: int) -> int:
        """The place of a token among all, 1 for the most probable."""
        return int(np.flatnonzero(self.ids == token)[0]) + 1


@dataclass(frozen=True, eq=False)
class WrittenToken:
    """A token of a text that is being written, and what else might have stood there."""

    token: int
    text: str  # what it adds to the text; "" while half a letter waits for the rest
    shown: str  # the token itself, as it is shown to people
    forced: bool  # whether somebody wanted it, or else it was drawn
    expected: NextTokens  # before it was chosen; names are kept of the first few

    @property
    def probability(self) -> float:
        return float(self.expected.probabilities[self.expected.rank(self.token) - 1])


def next_tokens(trained: Any, text: str, forced: Sequence[int] = (), *, top: int = 200, **options: Any) -> NextTokens:
    """What comes after a prompt, or in the translation of a text, and after the tokens that were `forced`.

    `trained` is what `seqloom.load` gives for a language model, a translator or a denoiser; `options` are those of
    `SamplingConfig`. The first `top` tokens get names.
    """
    begun = beginning(trained, text, [token for token in forced if token != END])
    with _quiet(trained.model), torch.no_grad():
        output = trained.model.step(_read(begun, begun.prefix), begun.start())
    return _expected(begun, output.log_probs, SamplingConfig(banned=begun.banned, **options), top)


def write(
    trained: Any,
    text: str,
    forced: Sequence[int] = (),
    *,
    max_tokens: int = 100,
    seed: int = 0,
    watched: int = WATCHED,
    **options: Any,
) -> Generator[WrittenToken, None, None]:
    """The tokens that were forced and, until END comes or `max_tokens` are there, those that are drawn after them.

    What is drawn is what `seqloom generate` draws from this seed after the same tokens. `options` are those of
    `SamplingConfig`. Arguments are checked at the call, not at the first token.
    """
    begun = beginning(trained, text, forced)
    sampling = SamplingConfig(banned=begun.banned, **options)
    room = begun.room(max_tokens)
    return _write(begun, sampling, room, seed, watched)


def _write(
    begun: Beginning, sampling: SamplingConfig, room: int, seed: int, watched: int
) -> Generator[WrittenToken, None, None]:
    decoder = begun.decoder()
    for token, forced, log_probs in _chosen(begun, sampling, room, seed):
        piece = decoder.flush() if token == END else decoder.push(token)
        shown = begun.name(token)
        yield WrittenToken(token, piece, shown, forced, _expected(begun, log_probs, sampling, watched))


def _chosen(begun: Beginning, sampling: SamplingConfig, room: int, seed: int) -> Iterator[tuple[int, bool, Tensor]]:
    """Each token, whether it was forced, and log p of all tokens before it was chosen (1, V)."""
    model = begun.trained.model
    with _quiet(model):
        for token, log_probs in _forced(begun):
            yield token, True, log_probs
        if begun.ended:
            return
        overheard = _Overheard(model)
        steps = generate(
            overheard,
            _read(begun, begun.prefix),
            options=sampling,
            max_tokens=room,
            end=END,
            seed=seed,
            source=begun.tree(),
        )
        for step in steps:
            yield int(step.tokens[0]), False, overheard.log_probs


def _forced(begun: Beginning) -> Iterator[tuple[int, Tensor]]:
    """What the model thought of each token that was forced."""
    state, read = begun.start(), _read(begun, begun.prompt)
    for token in begun.forced:
        with torch.no_grad():
            output = begun.trained.model.step(read, state)
        yield token, output.log_probs
        state, read = output.state, torch.tensor([[token]], device=read.device)


class _Overheard:
    """A model whose last answer can be looked at."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.log_probs = torch.empty(0)

    def start(self, source: Any = None, rows: int | None = None) -> DecodeState:
        state: DecodeState = self.model.start(source, rows)
        return state

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        output: StepOutput = self.model.step(tokens, state, mask)
        self.log_probs = output.log_probs
        return output


def _read(begun: Beginning, tokens: Sequence[int]) -> Tensor:
    """END before the text, as in training (1, T)."""
    return torch.tensor([[END, *tokens]], device=begun.trained.device)


def _expected(begun: Beginning, log_probs: Tensor, sampling: SamplingConfig, top: int) -> NextTokens:
    own = log_probs.detach().to("cpu", torch.float32)
    if own.isnan().any():
        raise DivergedError("The model's probabilities are not numbers: its weights are bad. Use another checkpoint.")
    shaped = process(own, torch.empty(1, 0, dtype=torch.long), sampling.processors(END))[0].double().exp()
    if sampling.greedy:
        shaped = torch.zeros_like(shaped).index_fill(0, shaped.argmax(), 1.0)
    own = own[0]
    order = own.argsort(descending=True, stable=True)
    return NextTokens(
        ids=order.numpy(),
        log_probs=own[order].double().numpy(),
        chances=shaped[order].numpy(),
        banned=torch.isin(order, torch.tensor(begun.banned, dtype=torch.long)).numpy(),
        tokens=[begun.name(token) for token in order[:top].tolist()],
    )


def _quiet(model: Any) -> Any:
    """Without dropout; counted models have none."""
    return evaluating(model) if isinstance(model, nn.Module) else nullcontext()


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GapGuesses:
    text: str
    around: list[str]  # the text before the first mask, between masks, after the last
    masks: list[list[Any]]  # of each mask what may stand there, best first: `Guess` of the API
    filled: str  # with the best guess at each
    notes: tuple[str, ...]


def gap_guesses(trained: Any, text: str, top: int = 200) -> GapGuesses:
    """`trained` is what `seqloom.load` gives for a masked language model. A text without a mask has no guesses."""
    gaps = read_gaps(trained.tokenizer, trained.specials, text)
    notes = (unknown_note(gaps.unknown, "text"),) if gaps.unknown else ()
    if not gaps.masks:
        return GapGuesses(text, [text], [], text, notes)
    (found,) = trained.fill(text, top=top)
    around, end = [], 0
    for mask in gaps.masks:
        start, after = gaps.spans[mask]
        around.append(text[end:start])
        end = after
    return GapGuesses(text, [*around, text[end:]], found.masks, found.filled, notes)


def with_token(trained: Any, text: str, mask: int, token: int) -> str:
    """The text with a token in the place of one of its masks, counted from 0."""
    gaps = read_gaps(trained.tokenizer, trained.specials, text)
    if not 0 <= mask < len(gaps.masks):
        raise UsageError(f"The text has {len(gaps.masks)} masks, counted from 0; got {mask}.")
    if not 0 <= token < len(trained.tokenizer):
        raise UsageError(f"Token ids go from 0 to {len(trained.tokenizer) - 1}; got {token}.")
    start, end = gaps.spans[gaps.masks[mask]]
    return trained.tokenizer.append_token(text[:start], token) + text[end:]
