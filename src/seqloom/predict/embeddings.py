"""Texts as vectors: what a trained model makes of each token, pooled to one vector a text.

    mean    1/S Σ_j h_j          max    max_j h_ji, each number by itself          first    h_1          last    h_S

h is what stands below the model's output layer, of every token it reads: of a BERT [CLS] and [SEP]
too, of a language model END before the text, of a translator what its encoder makes of the source,
of a bag of words the words' own vectors. A text with more tokens than a model can read at once is
read in pieces, and pooled over all of them. Normalized, every vector v becomes v / ‖v‖: then
products are cosines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectors
from seqloom.core import END
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import Specials
from seqloom.core.tree import to_device
from seqloom.core.words import did_you_mean
from seqloom.data.readers import TextReader
from seqloom.models.backbones import backbone_class
from seqloom.models.bert import BERT
from seqloom.models.bilm import BiLM
from seqloom.models.classifier import Classifier
from seqloom.models.electra import Electra
from seqloom.models.fine_tuned import FineTuned
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.tagger import Tagger
from seqloom.models.window_lm import WindowLM
from seqloom.predict.base import (
    AnyPredictor,
    Prediction,
    Predictor,
    as_lines,
    check_sizes,
    pad_rows,
    predict_windows,
    similar_lengths,
    windows,
)
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
States = Iterator[tuple[int, int, Tensor]]  # a text by its number, a piece of it by its own, and h (S, H) of that


def embed(
    trained: AnyPredictor,
    texts: str | Iterable[str],
    pooling: TextPooling = "mean",
    *,
    normalize: bool = False,
    batch_size: int = 32,
    window: int = 1024,
) -> Array:
    """A vector for each text (N, H), in their order, float32; of a blank one it is zero."""
    check_pooling(pooling)
    check_sizes(batch_size=batch_size, window=window)
    reader = reader_of(trained)
    parts = [embed_lines(reader, lines, pooling, batch_size) for lines in windows(as_lines(texts), window)]
    vectors: Array = np.concatenate(parts) if parts else np.zeros((0, reader.output_size), np.float32)
    if not normalize:
        return vectors
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / np.where(lengths > 0, lengths, 1)  # zero stays zero
    return unit


def check_pooling(pooling: str) -> None:
    """Refuse an unknown way to pool."""
    if pooling not in POOLINGS:
        raise UsageError(f"There is no pooling {pooling!r} of texts: {did_you_mean(pooling, get_args(TextPooling))}.")


@torch.no_grad()
def embed_lines(reader: "StateReader", lines: Sequence[str], pooling: str, batch_size: int) -> Array:
    """Pool each piece as soon as it is read: many texts have many tokens, whose vectors would fill the memory."""
    filled = [index for index, line in enumerate(lines) if line.strip()]
    texts = [lines[index].strip() for index in filled]
    pieces: list[dict[int, tuple[int, Tensor]]] = [{} for _ in texts]
    for number, piece, h in reader.states(texts, batch_size) if texts else ():
        pieces[number][piece] = len(h), POOLINGS[pooling](h).float().cpu()
    vectors = np.zeros((len(lines), reader.output_size), np.float32)
    for index, own in zip(filled, pieces, strict=True):
        sizes, pooled = zip(*(own[piece] for piece in sorted(own)), strict=True)
        stacked, counts = torch.stack(pooled), torch.tensor(sizes)
        if pooling == "mean":
            vectors[index] = ((stacked * counts.unsqueeze(1)).sum(dim=0) / counts.sum()).numpy()
        else:
            vectors[index] = POOLINGS[pooling](stacked).numpy()
    return vectors


# --- how models read texts --------------------------------------------------------------------------------------------


class StateReader(ABC):
    """Reads texts with a model: the hidden states of every token."""

    output_size: int  # of h

    def __init__(self, trained: AnyPredictor) -> None:
        self.trained, self.model, self.tokenizer = trained, trained.model, trained.tokenizer

    @abstractmethod
    def states(self, texts: Sequence[str], batch_size: int) -> States:
        """Yield the hidden states of the texts, `batch_size` of which are read together."""


class RowStates(StateReader):
    """Of a model that reads rows of tokens; a long text is read in several."""

    def __init__(
        self,
        trained: AnyPredictor,
        width: int,
        read: Callable[[Tensor, Tensor], Tensor],
        around: Callable[[list[int]], list[int]],
        longest: int | None,
    ) -> None:
        """`around` adds the tokens around a text; a row has at most `longest`."""
        super().__init__(trained)
        self.output_size, self.read, self.around, self.longest = width, read, around, longest

    def states(self, texts: Sequence[str], batch_size: int) -> States:
        rows = []
        for number, ids in enumerate(self.tokenizer.encode_batch(texts)):
            room = max(1, len(ids) if self.longest is None else self.longest - len(self.around([])))
            for piece, start in enumerate(range(0, max(len(ids), 1), room)):
                rows.append((number, piece, self.around(ids[start : start + room])))
        for chosen in similar_lengths([len(row) for *_, row in rows], batch_size):
            h = self.read(*pad_rows([rows[index][2] for index in chosen], self.trained.device))
            for own, index in zip(h, chosen, strict=True):
                number, piece, row = rows[index]
                yield number, piece, own[: len(row)]


class WordStates(StateReader):
    """The vectors of the words that have one; of a text without any, a vector that is zero."""

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
    """Of a classifier or tagger that reads words; of a text longer than its encoder reads, the beginning alone."""

    def __init__(self, trained: AnyPredictor) -> None:
        super().__init__(trained)
        self.output_size = (self.model.lexicon if self.model.encoder is None else self.model.encoder).output_size

    def states(self, texts: Sequence[str], batch_size: int) -> States:
        model, spellings = self.model, spellings_of(self.trained.run)
        batches = TextReader(self.tokenizer, spellings, model.config.longest).batches(texts, tokens=1)
        for chosen in similar_lengths(batches.texts.lengths.tolist(), batch_size):
            batch = to_device(batches.collate(np.array(chosen)), self.trained.device)
            h = model.lexicon(batch["tokens"], model.lexicon.read_spelling(batch.get("characters")))
            if model.encoder is not None:
                h = model.encoder(h, batch["mask"])
            lengths = batch["mask"].sum(dim=1).tolist()
            yield from ((number, 0, h[row, : lengths[row]]) for row, number in enumerate(chosen))


def reader_of(trained: AnyPredictor) -> StateReader:
    """Return how the model of a run reads texts; one that makes no vectors of them is refused."""
    tokenizer, model = trained.tokenizer, trained.model  # a run that is not about text says so here
    specials = Specials.after(len(tokenizer))

    def after_end(ids: list[int]) -> list[int]:
        return [END, *ids]

    def framed_by(form: Form) -> Callable[[list[int]], list[int]]:
        return lambda ids: frame_texts(specials, form, ids).tokens

    if isinstance(model, BERT | Electra):
        return RowStates(trained, model.config.d_model, model.read, framed_by("bert"), model.config.longest)
    if isinstance(model, GPT):
        return RowStates(trained, model.config.d_model, model.backbone.read, after_end, model.config.window)
    if isinstance(model, RecurrentLM | WindowLM):
        width = model.config.output_width
        return RowStates(trained, width, lambda tokens, mask: model.read(tokens, None, mask)[0], after_end, None)
    if isinstance(model, BiLM):
        return RowStates(trained, 2 * model.config.hidden, model.read, framed_by("ends"), None)
    if isinstance(model, FineTuned):
        backbone, config = model.backbone, model.config.backbone
        assert config is not None  # a trained model has one
        longest = backbone_class(config).longest(config)
        return RowStates(trained, backbone.output_size, backbone.read, framed_by(backbone.form), longest)
    if isinstance(model, Seq2Seq):
        width = model.encoder_states(torch.tensor([[END]], device=trained.device)).shape[2]
        return RowStates(trained, width, model.encoder_states, lambda ids: [*ids, END], model.longest_source)
    if isinstance(model, Classifier | Tagger):
        return LexiconStates(trained)
    if isinstance(model, WordVectors):
        return WordStates(trained)
    kind = trained.run.recipe["model"]["kind"]
    raise UsageError(f"{trained.name} has a model of kind {kind}, which makes no vectors of texts.")


# --- texts near a query -----------------------------------------------------------------------------------------------

EQUAL = 6  # decimals in which scores must differ: a line has the last digits of those it was read with


@dataclass(frozen=True)
class SimilarText:
    """A text near a query."""

    score: float  # the cosine, from -1 to 1
    line: int  # where it came, counted from 1
    text: str


@dataclass(frozen=True)
class SimilarTexts:
    """A query, and the texts nearest to it, best first; of texts equally near, those that came first."""

    query: str
    best: list[SimilarText]
    texts: int  # how many it was compared with
    blank: int = 0  # how many more there were, which are like nothing


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
    """Each query with the `top` texts whose cosines with it are largest."""
    check_sizes(top=top, batch_size=batch_size, window=window)
    check_pooling(pooling)
    asked = list(as_lines(queries))
    if blank := [number for number, query in enumerate(asked, start=1) if not query.strip()]:
        raise DataError(f"A query must not be blank; number {blank[0]:,} of {len(asked):,} is.")

    def vectors(lines: Sequence[str]) -> Array:
        return embed(trained, lines, pooling, normalize=True, batch_size=batch_size, window=window)

    wanted = vectors(asked)  # (Q, H)
    best: list[list[SimilarText]] = [[] for _ in asked]
    seen = read = 0
    for lines in windows(texts, window):
        kept = [(seen + place, line) for place, line in enumerate(lines, start=1) if line.strip()]
        seen, read = seen + len(lines), read + len(kept)
        if kept:
            scores = wanted @ vectors([line for _, line in kept]).T  # (Q, N)
            for number, row in enumerate(scores):  # sorting is stable: who came first stands first
                order = np.argsort(-row.round(EQUAL), kind="stable")[:top]
                new = [SimilarText(float(row[index]), *kept[index]) for index in order]
                ranked = sorted([*best[number], *new], key=lambda near: -round(near.score, EQUAL))
                best[number] = ranked[:top]
    return [SimilarTexts(query, own, read, seen - read) for query, own in zip(asked, best, strict=True)]


@dataclass(frozen=True)
class TextVector(Prediction):
    """A text and its vector."""

    text: str
    vector: list[float]
    json_names: ClassVar = ("text", "vector")

    def to_line(self) -> str:
        return "\t".join(f"{value:.6g}" for value in self.vector)


class BidirectionalLMPredictor(Predictor[TextVector]):
    """A trained bidirectional language model (ELMo)."""

    what = "a bidirectional language model"
    used_by = "`seqloom embed` makes vectors with it, and init.from begins with it"

    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[TextVector]:
        """Embed each line: the mean of its tokens' hidden states."""

        return predict_windows(lines, self._embed, batch_size=batch_size, window=window)

    def _embed(self, lines: list[str], batch_size: int) -> Iterator[TextVector]:
        vectors = embed(self, lines, batch_size=batch_size, window=len(lines))
        return (TextVector(text, vector.tolist()) for text, vector in zip(lines, vectors, strict=True))
