"""Text vectors: the hidden states h_1 … h_S of a trained model, pooled to one vector for each text.

    mean    1/S Σ_j h_j          max    max_j h_ji, elementwise          first    h_1          last    h_S

h is the input of the output layer at every token, including [CLS] and [SEP] of BERT and the first END of a language
model. For a translator, h are the encoder states. For a bag of words, h are the word vectors. If a text is longer than
the maximum length of the model, it is split into pieces, and pooling covers all pieces. Normalized vectors are v / ‖v‖,
so that their dot products are cosines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectorModel
from seqloom.core import END
from seqloom.core.errors import DataError, UsageError
from seqloom.core.inputs import iterate_texts
from seqloom.core.tokens import Specials
from seqloom.core.tree import to_device
from seqloom.core.words import did_you_mean
from seqloom.data.text_inputs import TextReader
from seqloom.models.backbones import backbone_class
from seqloom.models.bert import BERT
from seqloom.models.bilm import BiLM
from seqloom.models.classifier import TextClassifier
from seqloom.models.electra import Electra
from seqloom.models.fine_tuned import FineTuned
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.tagger import SequenceTagger
from seqloom.models.window_lm import WindowLM
from seqloom.predict.base import (
    AnyPredictor,
    Prediction,
    Predictor,
    as_lines,
    batch_by_length,
    check_sizes,
    pad_rows,
    predict_windows,
    split_windows,
)
from seqloom.predict.results import returns_list
from seqloom.tasks.reading_base import spellings_of
from seqloom.tasks.word_vectors import plain_words
from seqloom.text.model_inputs import Form, frame_texts

Array = np.ndarray[Any, Any]
TextPooling = Literal["mean", "first", "last", "max"]
POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: h.mean(dim=0),
    "first": lambda h: h[0],
    "last": lambda h: h[-1],
    "max": lambda h: h.amax(dim=0),
}
States = Iterator[tuple[int, int, Tensor]]  # index of the text, index of the piece, and h (S, H)


def embed(
    trained: AnyPredictor,
    texts: str | Iterable[str],
    pooling: TextPooling = "mean",
    *,
    normalize: bool = False,
    batch_size: int = 32,
    window: int = 1024,
) -> Array:
    """Return one float32 vector per text (N, H), in order. The vector of a blank text is zero."""
    check_pooling(pooling)
    check_sizes(batch_size=batch_size, window=window)
    reader = get_state_reader(trained)
    parts = [embed_lines(reader, lines, pooling, batch_size) for lines in split_windows(as_lines(texts), window)]
    vectors: Array = np.concatenate(parts) if parts else np.zeros((0, reader.output_size), np.float32)
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / np.where(lengths > 0, lengths, 1)  # vectors of length zero are divided by 1
    return unit


def check_pooling(pooling: str) -> None:
    """Check the name of a pooling method."""
    if pooling not in POOLINGS:
        raise UsageError(
            f"There is no pooling method {pooling!r}: {did_you_mean(str(pooling), get_args(TextPooling))}."
        )


@torch.no_grad()
def embed_lines(reader: "StateReader", lines: Sequence[str], pooling: str, batch_size: int) -> Array:
    """Embed lines.

    Each piece is pooled immediately, because the states of all tokens together may not fit in memory.
    """
    filled = [index for index, line in enumerate(lines) if line.strip()]
    texts = [lines[index].strip() for index in filled]
    pieces: list[dict[int, tuple[int, Tensor]]] = [{} for _ in texts]
    for number, piece, h in reader.states(texts, batch_size) if texts else ():
        pieces[number][piece] = len(h), POOLINGS[pooling](h).float().cpu()
    vectors = np.zeros((len(lines), reader.output_size), np.float32)
    for index, by_piece in zip(filled, pieces, strict=True):
        sizes, pooled = zip(*(by_piece[piece] for piece in sorted(by_piece)), strict=True)
        stacked, counts = torch.stack(pooled), torch.tensor(sizes)
        if pooling == "mean":
            vectors[index] = ((stacked * counts.unsqueeze(1)).sum(dim=0) / counts.sum()).numpy()
        else:
            vectors[index] = POOLINGS[pooling](stacked).numpy()
    return vectors


# --- hidden states ----------------------------------------------------------------------------------------------------


class StateReader(ABC):
    """A reader that computes the hidden states of texts with a model."""

    output_size: int  # H

    def __init__(self, trained: AnyPredictor) -> None:
        self.trained, self.model, self.tokenizer = trained, trained.model, trained.tokenizer

    @abstractmethod
    def states(self, texts: Sequence[str], batch_size: int) -> States:
        """Yield the hidden states of texts, in batches of `batch_size`."""


class RowStates(StateReader):
    """The states of a model that reads rows of tokens. A long text is split into several rows."""

    def __init__(
        self,
        trained: AnyPredictor,
        output_size: int,
        read: Callable[[Tensor, Tensor], Tensor],
        add_specials: Callable[[list[int]], list[int]],
        max_length: int | None,
    ) -> None:
        """Create the reader. `add_specials` adds the special tokens to a row of at most `max_length` tokens."""
        super().__init__(trained)
        self.output_size, self.read, self.add_specials, self.max_length = output_size, read, add_specials, max_length

    def states(self, texts: Sequence[str], batch_size: int) -> States:
        rows = []
        for number, ids in enumerate(self.tokenizer.encode_batch(texts)):
            room = max(1, len(ids) if self.max_length is None else self.max_length - len(self.add_specials([])))
            for piece, start in enumerate(range(0, max(len(ids), 1), room)):
                rows.append((number, piece, self.add_specials(ids[start : start + room])))
        for chosen in batch_by_length([len(row) for *_, row in rows], batch_size):
            h = self.read(*pad_rows([rows[index][2] for index in chosen], self.trained.device))
            for states, index in zip(h, chosen, strict=True):
                number, piece, row = rows[index]
                yield number, piece, states[: len(row)]


class WordStates(StateReader):
    """The vectors of known words. A text without known words has a single zero vector."""

    def __init__(self, trained: AnyPredictor) -> None:
        super().__init__(trained)
        self.output_size = self.model.config.vector_size

    def states(self, texts: Sequence[str], batch_size: int) -> States:
        plain = plain_words(self.tokenizer)
        for number, ids in enumerate(self.tokenizer.encode_batch(texts)):
            words = plain[torch.tensor(ids, dtype=torch.int64)]
            h = self.model.words[words[words >= 0].to(self.model.device)]
            yield number, 0, h if len(h) else h.new_zeros(1, self.output_size)


class LexiconStates(StateReader):
    """The states of a classifier or tagger that has its own embeddings. A text that is too long is truncated."""

    def __init__(self, trained: AnyPredictor) -> None:
        super().__init__(trained)
        self.output_size = (self.model.lexicon if self.model.encoder is None else self.model.encoder).output_size

    def states(self, texts: Sequence[str], batch_size: int) -> States:
        model, spellings = self.model, spellings_of(self.trained.run)
        batches = TextReader(self.tokenizer, spellings, model.config.longest).batches(texts, tokens=1)
        for chosen in batch_by_length(batches.texts.lengths.tolist(), batch_size):
            batch = to_device(batches.collate(np.array(chosen)), self.trained.device)
            h = model.lexicon(batch["tokens"], model.lexicon.read_spelling(batch.get("characters")))
            if model.encoder is not None:
                h = model.encoder(h, batch["mask"])
            lengths = batch["mask"].sum(dim=1).tolist()
            yield from ((number, 0, h[row, : lengths[row]]) for row, number in enumerate(chosen))


def get_state_reader(trained: AnyPredictor) -> StateReader:
    """Return the reader for the model of a run, or raise `UsageError` if it has no text vectors."""
    tokenizer, model = trained.tokenizer, trained.model  # raises an error for a run without text
    specials = Specials.after(len(tokenizer))

    def prepend_end(ids: list[int]) -> list[int]:
        return [END, *ids]

    def add_frame(form: Form) -> Callable[[list[int]], list[int]]:
        return lambda ids: frame_texts(specials, form, ids).tokens

    if isinstance(model, BERT | Electra):
        return RowStates(trained, model.config.d_model, model.read, add_frame("bert"), model.config.longest)
    if isinstance(model, GPT):
        return RowStates(trained, model.config.d_model, model.backbone.read, prepend_end, model.config.window)
    if isinstance(model, RecurrentLM | WindowLM):
        width = model.config.output_width
        return RowStates(trained, width, lambda tokens, mask: model.read(tokens, None, mask)[0], prepend_end, None)
    if isinstance(model, BiLM):
        return RowStates(trained, 2 * model.config.hidden, model.read, add_frame("ends"), None)
    if isinstance(model, FineTuned):
        backbone, config = model.backbone, model.config.backbone
        assert config is not None  # every trained model has a tokenizer
        longest = backbone_class(config).longest(config)
        return RowStates(trained, backbone.output_size, backbone.read, add_frame(backbone.form), longest)
    if isinstance(model, Seq2Seq):
        width = model.encoder_states(torch.tensor([[END]], device=trained.device)).shape[2]
        return RowStates(trained, width, model.encoder_states, lambda ids: [*ids, END], model.longest_source)
    if isinstance(model, TextClassifier | SequenceTagger):
        return LexiconStates(trained)
    if isinstance(model, WordVectorModel):
        return WordStates(trained)
    kind = trained.run.recipe["model"]["kind"]
    raise UsageError(f"{trained.name} has a model of kind {kind}, which has no text vectors.")


# --- similar texts ----------------------------------------------------------------------------------------------------

SCORE_DECIMALS = 6  # scores are compared after rounding, because the last digits depend on the batch


@dataclass(frozen=True)
class SimilarText:
    """A text that is similar to a query."""

    score: float  # cosine
    line: int  # number of its line, counted from 1
    text: str


@dataclass(frozen=True)
class SimilarTexts:
    """A query and its most similar texts, best first. Texts with equal scores are in input order."""

    query: str
    best: list[SimilarText]
    texts: int  # number of compared texts
    blank: int = 0  # number of blank texts, which are not compared


def similar(
    trained: AnyPredictor,
    queries: str | Iterable[str],
    texts: Iterable[str],
    *,
    top: int = 5,
    pooling: TextPooling = "mean",
    batch_size: int = 32,
    window: int = 1024,
) -> list[SimilarTexts]:
    """Return the `top` texts with the highest cosine for each query."""
    check_sizes(top=top, batch_size=batch_size, window=window)
    check_pooling(pooling)
    query_list = list(as_lines(queries, "queries"))
    if blank := [number for number, query in enumerate(query_list, start=1) if not query.strip()]:
        raise DataError(f"Queries must not be blank; query {blank[0]:,} of {len(query_list):,} is blank.")

    def embed_normalized(lines: Sequence[str]) -> Array:
        return embed(trained, lines, pooling, normalize=True, batch_size=batch_size, window=window)

    query_vectors = embed_normalized(query_list)  # (Q, H)
    best: list[list[SimilarText]] = [[] for _ in query_list]
    seen = read = 0
    for lines in split_windows(iterate_texts(texts), window):
        filled = [(seen + position, line) for position, line in enumerate(lines, start=1) if line.strip()]
        seen, read = seen + len(lines), read + len(filled)
        if filled:
            scores = query_vectors @ embed_normalized([line for _, line in filled]).T  # (Q, N)
            for number, row in enumerate(scores):  # a stable sort keeps texts with equal scores in input order
                order = np.argsort(-row.round(SCORE_DECIMALS), kind="stable")[:top]
                new = [SimilarText(float(row[index]), *filled[index]) for index in order]
                ranked = sorted([*best[number], *new], key=lambda near: -round(near.score, SCORE_DECIMALS))
                best[number] = ranked[:top]
    return [SimilarTexts(query, texts, read, seen - read) for query, texts in zip(query_list, best, strict=True)]


@dataclass(frozen=True)
class TextVector(Prediction):
    """A text and its vector."""

    text: str
    vector: list[float]
    json_names: ClassVar = ("text", "vector")

    def to_line(self) -> str:
        return "\t".join(f"{value:.6g}" for value in self.vector)

    def to_columns(self) -> dict[str, object]:
        return {"vector": self.vector}


class BidirectionalLMPredictor(Predictor[TextVector]):
    """A trained bidirectional language model (ELMo)."""

    description = "a bidirectional language model"
    usage = "use `seqloom embed`, or fine-tune it (init.from)"

    @returns_list
    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[TextVector]:
        """Return one vector per line, the mean of its hidden states."""
        return predict_windows(as_lines(lines), self._embed, batch_size=batch_size, window=window)

    def _embed(self, lines: list[str], batch_size: int) -> Iterator[TextVector]:
        vectors = embed(self, lines, batch_size=batch_size, window=len(lines))
        return (TextVector(text, vector.tolist()) for text, vector in zip(lines, vectors, strict=True))
