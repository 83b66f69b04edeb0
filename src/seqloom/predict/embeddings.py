"""Texts as vectors: what a trained model makes of each token, pooled to one vector a text.

    mean    1/S Σ_j h_j          max    max_j h_ji, each number by itself          first    h_1          last    h_S

h is what stands below the model's output layer, of every token it reads: of a BERT [CLS] and [SEP] too, of a language
model END before the text, of a translator what its encoder makes of the source, of a bag of words the words' own
vectors. A text with more tokens than a model can read at once is read in pieces, and pooled over all of them.
Normalized, every vector v becomes v / ‖v‖: then products are cosines.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from seqloom.classical.word_vectors import WordVectors
from seqloom.core.device import device_of
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tokens import Specials
from seqloom.core.tree import to_device
from seqloom.core.words import did_you_mean
from seqloom.data.readers import TextReader
from seqloom.models.backbones import Backbone, backbone_class
from seqloom.models.bert import BERT
from seqloom.models.bilm import BiLM
from seqloom.models.classifier import Classifier
from seqloom.models.electra import Electra
from seqloom.models.gpt import GPT
from seqloom.models.recurrent_lm import RecurrentLM
from seqloom.models.seq2seq import Seq2Seq
from seqloom.models.tagger import Tagger
from seqloom.models.window_lm import WindowLM
from seqloom.predict.base import (
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
from seqloom.text.base import END
from seqloom.text.specials import Form, frame_length, framed

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
    trained: Predictor[Any],
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
    found = [_embedded(reader, lines, pooling, batch_size) for lines in windows(as_lines(texts), window)]
    vectors: Array = np.concatenate(found) if found else np.zeros((0, reader.width), np.float32)
    return normalized(vectors) if normalize else vectors


def check_pooling(pooling: str) -> None:
    if pooling not in POOLINGS:
        raise UsageError(f"There is no pooling {pooling!r} of texts: {did_you_mean(pooling, get_args(TextPooling))}.")


def normalized(vectors: Array) -> Array:
    """v / ‖v‖ of each row (N, H); zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Array = vectors / np.where(lengths > 0, lengths, 1)
    return unit


@torch.no_grad()
def _embedded(reader: "Reader", lines: Sequence[str], pooling: str, batch_size: int) -> Array:
    """Each piece is pooled as soon as it is read: many texts have many tokens, whose vectors would fill the memory."""
    places = [place for place, line in enumerate(lines) if line.strip()]
    texts = [lines[place].strip() for place in places]
    pieces: list[dict[int, tuple[int, Tensor]]] = [{} for _ in texts]
    for number, piece, h in reader.states(texts, batch_size) if texts else ():
        pieces[number][piece] = len(h), POOLINGS[pooling](h).float().cpu()
    vectors = np.zeros((len(lines), reader.width), np.float32)
    for place, own in zip(places, pieces, strict=True):
        vectors[place] = _joined(pooling, [own[piece] for piece in sorted(own)]).numpy()
    return vectors


def _joined(pooling: str, pieces: Sequence[tuple[int, Tensor]]) -> Tensor:
    """The vector (H,) of a text from those of its pieces and how many tokens each has."""
    sizes, vectors = torch.tensor([size for size, _ in pieces]), torch.stack([vector for _, vector in pieces])
    if pooling == "mean":
        return (vectors * sizes.unsqueeze(1)).sum(dim=0) / sizes.sum()
    return POOLINGS[pooling](vectors)


@dataclass(frozen=True)
class Reader:
    """How a model reads texts."""

    width: int  # of h
    states: Callable[[Sequence[str], int], States]  # texts, and how many are read together


def reader_of(trained: Predictor[Any]) -> Reader:
    """How the model of a run reads texts; refused if it makes no vectors of them."""
    tokenizer, model = trained.tokenizer, trained.model  # a run that is not about text says so here
    specials = Specials.after(len(tokenizer))
    if isinstance(model, BERT | Electra):
        return _by_rows(trained, _frames(specials, "bert", model.config.longest), model.read, model.config.width)
    if isinstance(model, GPT):
        return _by_rows(trained, _after_end(model.config.window), model.body.read, model.config.width)
    if isinstance(model, RecurrentLM | WindowLM):
        read, width = (lambda tokens, mask: model.read(tokens, None, mask)[0]), model.config.output_width
        return _by_rows(trained, _after_end(None), read, width)
    if isinstance(model, BiLM):
        return _by_rows(trained, _frames(specials, "ends", None), model.read, 2 * model.config.hidden)
    if isinstance(body := getattr(model, "body", None), Backbone):
        frames = _frames(specials, body.form, backbone_class(model.config.body).longest(model.config.body))
        return _by_rows(trained, frames, body.read, body.width)
    if isinstance(model, Seq2Seq):
        return _by_rows(trained, _before_end(trained.recipe.model.longest_source), model.annotations, _width_of(model))
    if isinstance(model, Classifier | Tagger):
        return _by_lexicon(trained)
    if isinstance(model, WordVectors):
        return _by_words(trained)
    kind = trained.run.recipe["model"]["kind"]
    raise UsageError(f"{trained.name} has a model of kind {kind}, which makes no vectors of texts.")


# --- rows of tokens ---------------------------------------------------------------------------------------------------

Rows = Callable[[list[int]], Iterator[list[int]]]  # the tokens of a text to what is read, one row or several


def _frames(specials: Specials, form: Form, longest: int | None) -> Rows:
    def rows(ids: list[int]) -> Iterator[list[int]]:
        yield from (framed(specials, form, piece).tokens for piece in _pieces(ids, longest, frame_length(form, 1)))

    return rows


def _after_end(longest: int | None) -> Rows:
    def rows(ids: list[int]) -> Iterator[list[int]]:
        yield from ([END, *piece] for piece in _pieces(ids, longest, 1))

    return rows


def _before_end(longest: int | None) -> Rows:
    def rows(ids: list[int]) -> Iterator[list[int]]:
        yield from ([*piece, END] for piece in _pieces(ids, longest, 1))

    return rows


def _pieces(ids: list[int], longest: int | None, besides: int) -> Iterator[list[int]]:
    room = len(ids) if longest is None else max(1, longest - besides)
    yield from (ids[start : start + room] for start in range(0, max(len(ids), 1), max(room, 1)))


def _by_rows(trained: Predictor[Any], rows: Rows, read: Callable[[Tensor, Tensor], Tensor], width: int) -> Reader:
    def states(texts: Sequence[str], batch_size: int) -> States:
        encoded = trained.tokenizer.encode_batch(texts)
        placed = [(number, piece, row) for number, ids in enumerate(encoded) for piece, row in enumerate(rows(ids))]
        for chosen in similar_lengths([len(row) for *_, row in placed], batch_size):
            together = [placed[n] for n in chosen]
            h = read(*pad_rows([row for *_, row in together], trained.device))
            yield from ((number, piece, own[: len(row)]) for own, (number, piece, row) in zip(h, together, strict=True))

    return Reader(width, states)


def _width_of(model: Seq2Seq) -> int:
    device = device_of(model)
    return model.annotations(torch.tensor([[END]], device=device)).shape[2]


def _by_words(trained: Predictor[Any]) -> Reader:
    """The vectors of the words that have one; of a text without any, a vector that is zero."""
    model, plain = trained.model, plain_words(trained.tokenizer)

    def states(texts: Sequence[str], batch_size: int) -> States:
        for number, ids in enumerate(trained.tokenizer.encode_batch(texts)):
            words = plain[torch.tensor(ids, dtype=torch.int64)]
            h = model.words[words[words >= 0].to(model.device)]
            yield number, 0, h if len(h) else h.new_zeros(1, model.config.width)

    return Reader(model.config.width, states)


# --- classifiers and taggers that read words --------------------------------------------------------------------------


def _by_lexicon(trained: Predictor[Any]) -> Reader:
    """Of a text longer than its encoder knows places, the beginning alone."""
    model = trained.model

    def read(batch: Any) -> Tensor:
        x = model.lexicon(batch["tokens"], model.lexicon.read_spelling(batch.get("characters")))
        h: Tensor = x if model.encoder is None else model.encoder(x, batch["mask"])
        return h

    def states(texts: Sequence[str], batch_size: int) -> States:
        reader = TextReader(trained.tokenizer, spellings_of(trained.run), model.config.longest)
        batches = reader.batches(texts, tokens=1)
        for chosen in similar_lengths(batches.texts.lengths.tolist(), batch_size):
            batch = to_device(batches.collate(np.array(chosen)), trained.device)
            h, lengths = read(batch), batch["mask"].sum(dim=1).tolist()
            yield from ((number, 0, h[row, : lengths[row]]) for row, number in enumerate(chosen))

    return Reader(model.lexicon.width if model.encoder is None else model.encoder.width, states)


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
    trained: Predictor[Any],
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
            best = [_merged(own, row, kept, top) for own, row in zip(best, scores, strict=True)]
    return [SimilarTexts(query, own, read, seen - read) for query, own in zip(asked, best, strict=True)]


def _merged(best: list[SimilarText], scores: Array, lines: Sequence[tuple[int, str]], top: int) -> list[SimilarText]:
    """The best of those before and of those that came now. Sorting is stable: who came first stands first."""
    chosen = np.argsort(-scores.round(EQUAL), kind="stable")[:top]
    new = [SimilarText(float(scores[place]), *lines[place]) for place in chosen]
    return sorted([*best, *new], key=lambda near: -round(near.score, EQUAL))[:top]


@dataclass(frozen=True)
class TextVector(Prediction):
    """A text and its vector."""

    text: str
    vector: list[float]

    def to_line(self) -> str:
        return "\t".join(f"{value:.6g}" for value in self.vector)

    def to_json(self) -> dict[str, object]:
        return {"text": self.text, "vector": self.vector}


class BidirectionalLMPredictor(Predictor[TextVector]):
    """A trained bidirectional language model (ELMo)."""

    what = "a bidirectional language model"
    used_by = "`seqloom embed` makes vectors with it, and init.from begins with it"

    def predict(self, lines: str | Iterable[str], *, batch_size: int = 32, window: int = 1024) -> Iterator[TextVector]:
        """Embed each line: the mean of its tokens' hidden states."""

        def answer(read: list[str]) -> Iterator[TextVector]:
            vectors = embed(self, read, batch_size=batch_size, window=window)
            yield from (TextVector(text, vector.tolist()) for text, vector in zip(read, vectors, strict=True))

        return predict_windows(as_lines(lines), answer, batch_size=batch_size, window=window)
