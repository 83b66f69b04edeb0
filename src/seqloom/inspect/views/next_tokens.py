"""Token choices of models: next-token distributions, streamed generation, and mask predictions.

    expected = next_tokens(seqloom.load("runs/lm-word-lstm"), "The class", temperature=0.7, top_k=20)
    expected.probabilities[0]               the probability of the most probable token, expected.ids[0]
    expected.sampling_probabilities[0]      its probability after temperature and top-k are applied

A translator reads a line, a denoiser reads a corrupted text and a language model reads a prompt. Decoding starts from a
`DecodingStart`. `probabilities` is the distribution that the model predicts. `seqloom.decoding.processors` applies
banned tokens, temperature, top-k and top-p to this distribution. The next token is sampled from the result,
`sampling_probabilities`.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqloom.core.errors import DataError, DivergedError, UsageError
from seqloom.core.protocols import DecodeState, StepOutput, Steppable
from seqloom.core.tokens import Specials
from seqloom.core.tree import Tree
from seqloom.decoding.generate import generate
from seqloom.decoding.mixture import Ensemble
from seqloom.decoding.processors import SamplingConfig, process
from seqloom.inspect.capture import TrainedModel, eval_mode
from seqloom.inspect.values import Array
from seqloom.inspect.views.texts import check_unicode, one_line, special_names, unknown_notes
from seqloom.models.transformer import Transformer
from seqloom.runs.trained import (
    DenoisingModel,
    MaskFillingModel,
    TranslatingModel,
    WritingModel,
)
from seqloom.text import END
from seqloom.text.base import StreamDecoder
from seqloom.text.model_inputs import read_gaps

Ids = Sequence[int]
ALTERNATIVES = 12  # number of tokens with names at each step of streamed generation

# --- start of decoding ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DecodingStart:
    """The context of the first generated token."""

    trained: TrainedModel
    text: str  # the line to translate or denoise, or the prompt
    source: list[int] | None  # tokens of a text to translate or denoise, including END; None for a prompt
    prompt: list[int]  # tokens of the prompt, without forced tokens
    forced: list[int]  # forced tokens after the prompt; the last may be END
    banned: tuple[int, ...]  # tokens that are never chosen
    notes: tuple[str, ...]
    names: Mapping[int, str] = field(default_factory=dict)  # names of tokens that are not in the tokenizer

    @property
    def prefix(self) -> list[int]:
        """All tokens before the first choice, without END."""
        return [*self.prompt, *(token for token in self.forced if token != END)]

    def name(self, token: int) -> str:
        """Return the display name of a token."""
        return self.names.get(token) or self.trained.tokenizer.token(token)

    def source_batch(self) -> Tree:
        """Return the source as the input of `model.start`, or None without a source."""
        if self.source is None:
            return None
        tokens = torch.tensor([self.source], device=self.trained.device)
        return {"tokens": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}

    def start(self) -> DecodeState:
        return self.trained.model.start(self.source_batch())

    def inputs(self, tokens: Sequence[int]) -> Tensor:
        """Return END and then the tokens (1, T), as in training."""
        return torch.tensor([[END, *tokens]], device=self.trained.device)

    def limit_length(self, max_tokens: int) -> int:
        """Limit the number of new tokens to the maximum target length of the model."""
        model = self.trained.model
        max_target = model.longest_target if isinstance(model, Transformer | Ensemble) else None
        if max_target is None:
            return max_tokens
        if len(self.prefix) >= max_target:
            raise UsageError(f"The prefix has {len(self.prefix)} tokens, but the model generates at most {max_target}.")
        return min(max_tokens, max_target - len(self.prefix))

    def decoder(self) -> StreamDecoder:
        """Return a decoder for the tokens after the prompt."""
        decoder = _NamingDecoder(self.trained.tokenizer.stream(), self.names)
        decoder.read([END, *self.prompt])
        return decoder

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens after the prompt."""
        decoder = self.decoder()
        return decoder.read(tokens) + decoder.flush()

    def rank_tokens(self, log_probs: Tensor, sampling: SamplingConfig, top: int) -> "NextTokens":
        """Sort all tokens by log p (1, V), and name the first `top`."""
        values = log_probs.detach().to("cpu", torch.float32)
        if values.isnan().any():
            raise DivergedError(
                "The model predicts NaN probabilities, so its weights are invalid. Use another checkpoint."
            )
        probabilities = process(values, torch.empty(1, 0, dtype=torch.long), sampling.processors(END))[0].double().exp()
        if sampling.greedy:
            probabilities = torch.zeros_like(probabilities).index_fill(0, probabilities.argmax(), 1.0)
        order = values[0].argsort(descending=True, stable=True)
        return NextTokens(
            ids=order.numpy(),
            log_probs=values[0][order].double().numpy(),
            sampling_probabilities=probabilities[order].numpy(),
            banned=torch.isin(order, torch.tensor(self.banned, dtype=torch.long)).numpy(),
            tokens=[self.name(token) for token in order[:top].tolist()],
        )


class _NamingDecoder(StreamDecoder):
    """A decoder that also writes the names of tokens that are not in the tokenizer, between spaces."""

    def __init__(self, decoder: StreamDecoder, names: Mapping[int, str]) -> None:
        self._decoder, self._names = decoder, names

    def push(self, token: int) -> str:
        name = self._names.get(token)
        return self._decoder.push(token) if name is None else f"{self._decoder.flush()} {name} "

    def flush(self) -> str:
        return self._decoder.flush()


def prepare_decoding(trained: TrainedModel, text: str, forced: Ids = ()) -> DecodingStart:
    """Check and encode the line to translate or denoise, or the prompt to continue, which may be empty.

    The `forced` tokens follow the translation so far, or the prompt.
    """
    if not isinstance(trained, TranslatingModel | DenoisingModel | WritingModel):
        raise UsageError(f"{trained.name} is {trained.description}: it does not generate text.")
    tokenizer, source, names, banned = trained.tokenizer, None, dict[int, str](), tuple(trained.tokenizer.banned)
    if isinstance(trained, TranslatingModel):
        text = one_line(text, "text")
        source, max_source = [*tokenizer.encode(text), END], trained.longest_source
        if max_source is not None and len(source) > max_source:
            raise DataError(
                f"The text has {len(source):,} tokens, including END, but the model reads at most {max_source:,}."
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
            raise UsageError(f"Token ids must be from 0 to {max(len(tokenizer) - 1, *names, 0)}; got {token}.")
    if END in forced[:-1]:
        raise UsageError("END must be the last forced token.")
    prompt = tokenizer.encode(read) if source is None else []
    return DecodingStart(trained, text, source, prompt, list(forced), banned, notes, names)


# --- next tokens ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class NextTokens:
    """All tokens of the vocabulary (V,), most probable first; ties are ordered by token id."""

    ids: NDArray[np.int64]
    log_probs: Array  # log-probabilities of the model
    sampling_probabilities: Array  # probabilities for sampling; 0 for excluded tokens
    banned: NDArray[np.bool_]  # whether a token is never chosen
    tokens: list[str]  # display names of the first tokens

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.ids, self.log_probs, self.sampling_probabilities, self.banned))

    @property
    def probabilities(self) -> Array:
        return np.exp(self.log_probs)

    @property
    def candidate_count(self) -> int:
        """The number of tokens that can be sampled."""
        return int((self.sampling_probabilities > 0).sum())

    @property
    def entropy(self) -> float:
        """The entropy of the model's distribution, in bits."""
        p = self.probabilities
        return float(-(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum())

    def rank(self, token: int) -> int:
        """Return the rank of a token, 1 for the most probable."""
        return int(np.flatnonzero(self.ids == token)[0]) + 1


@dataclass(frozen=True, eq=False)
class GeneratedToken:
    """A generated token and its alternatives."""

    token: int
    text: str  # the text that the token adds; "" while a character is incomplete
    name: str  # display name
    forced: bool  # whether the token was forced and not sampled
    expected: NextTokens  # the distribution before the choice, in which only a few tokens are named

    @property
    def probability(self) -> float:
        return float(self.expected.probabilities[self.expected.rank(self.token) - 1])


def next_tokens(trained: TrainedModel, text: str, forced: Ids = (), *, top: int = 200, **options: Any) -> NextTokens:
    """Return the distribution of the next token after a prompt or source, and after the `forced` tokens.

    `options` are fields of `SamplingConfig`. The first `top` tokens are named.
    """
    start = prepare_decoding(trained, text, [token for token in forced if token != END])
    with eval_mode(trained.model), torch.no_grad():
        output = trained.model.step(start.inputs(start.prefix), start.start())
    return start.rank_tokens(output.log_probs, SamplingConfig(banned=start.banned, **options), top)


@dataclass(frozen=True, eq=False)
class NextTokenStep:
    """The distribution after a token was read, and the token that follows it in the text."""

    read: str  # display name of the token; END comes first
    expected: NextTokens
    following: int | None  # the next token of the text, or None after the last token

    @property
    def following_probability(self) -> float | None:
        if self.following is None:
            return None
        return float(self.expected.probabilities[self.expected.rank(self.following) - 1])


def next_token_steps(
    trained: TrainedModel, text: str, forced: Ids = (), *, top: int = 200, **options: Any
) -> list[NextTokenStep]:
    """Return the distributions after each token of a prompt and of the `forced` tokens, as `next_tokens` does.

    A translator or denoiser first reads the whole source, so only the forced tokens are steps.
    """
    start = prepare_decoding(trained, text, [token for token in forced if token != END])
    state, steps, sampling = start.start(), [], SamplingConfig(banned=start.banned, **options)
    read = [END, *start.prefix]
    with eval_mode(trained.model), torch.no_grad():
        for token, following in zip(read, [*read[1:], None], strict=True):
            output = trained.model.step(torch.tensor([[token]], device=trained.device), state)
            state = output.state
            steps.append(
                NextTokenStep(start.name(token), start.rank_tokens(output.log_probs, sampling, top), following)
            )
    return steps


def encode_prefix(trained: TrainedModel, prefix: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the tokens of the beginning of an output, with notes on unknown words."""
    if not prefix:
        return [], ()
    if not isinstance(trained, TranslatingModel | DenoisingModel):
        raise UsageError(f"{trained.name} is {trained.description}: append the prefix to the text instead.")
    check_unicode(prefix, "prefix")
    tokenizer = trained.tokenizer.of_targets if isinstance(trained, TranslatingModel) else trained.tokenizer
    return tokenizer.encode(prefix), unknown_notes(tokenizer.unknown_pieces(prefix), "prefix")


class _RecordingModel:
    """A wrapper that stores the last output of a model."""

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
    """Yield the forced tokens, then sampled tokens until END or until `max_tokens` tokens.

    `seqloom generate` samples the same tokens with the same seed and prefix. `options` are fields of `SamplingConfig`.
    The arguments are checked when the function is called, before the first token is requested.
    """
    start = prepare_decoding(trained, text, forced)
    sampling, max_tokens = SamplingConfig(banned=start.banned, **options), start.limit_length(max_tokens)
    recorder, decoder = _RecordingModel(trained.model), start.decoder()

    def add(token: int, forced: bool) -> GeneratedToken:
        piece = decoder.flush() if token == END else decoder.push(token)
        expected = start.rank_tokens(recorder.log_probs, sampling, ALTERNATIVES)
        return GeneratedToken(token, piece, start.name(token), forced, expected)

    def steps() -> Generator[GeneratedToken, None, None]:
        with eval_mode(trained.model):
            state, read = start.start(), start.inputs(start.prompt)
            for token in start.forced:
                with torch.no_grad():
                    state = recorder.step(read, state).state
                yield add(token, True)
                read = torch.tensor([[token]], device=read.device)
            if END in start.forced:
                return
            prompt = start.inputs(start.prefix)
            source = start.source_batch()
            sampled = generate(
                recorder, prompt, options=sampling, max_tokens=max_tokens, end=END, seed=seed, source=source
            )
            for step in sampled:
                yield add(int(step.tokens[0]), False)

    return steps()


# --- mask predictions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskPredictions:
    """The predictions of a masked language model for each [MASK] of a text."""

    text: str
    around: list[str]  # the texts before the first mask, between masks, and after the last mask
    masks: list[list[Any]]  # lists of `TokenProbability` for each mask, best first
    filled: str  # the text with the best prediction at each mask
    notes: tuple[str, ...]


def predict_masks(trained: TrainedModel, text: str, top: int = 200) -> MaskPredictions:
    """Predict the token at each mask of a text."""
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
    """Replace one mask of a text, counted from 0, by a token."""
    gaps = read_gaps(trained.tokenizer, Specials.after(len(trained.tokenizer)), text)
    if not 0 <= mask < len(gaps.masks):
        raise UsageError(f"The mask index must be from 0 to {len(gaps.masks) - 1}; got {mask}.")
    if not 0 <= token < len(trained.tokenizer):
        raise UsageError(f"Token ids must be from 0 to {len(trained.tokenizer) - 1}; got {token}.")
    start, end = gaps.spans[gaps.masks[mask]]
    return trained.tokenizer.append_token(text[:start], token) + text[end:]
