"""What a trained model has vectors of, as points: its words, its tokens, or texts that it reads."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, get_args

import numpy as np

from seqloom.classical.word_vectors.vectors import WordVectors as WordModel
from seqloom.core.errors import DataError, SeqloomError, UsageError
from seqloom.core.words import did_you_mean
from seqloom.data.examples import TokenClassificationExample
from seqloom.evaluate.word_space import WordSpace
from seqloom.inspect.views.points import Colouring, PointKind, Points, by_frequency, by_group, by_kind, by_length
from seqloom.predict.base import Predictor
from seqloom.predict.embeddings import embed, reader_of
from seqloom.predict.word_vectors import token_vectors, word_space
from seqloom.text import Words

MOST = 20_000  # points
SHOWN = 300  # letters of a text by which it is named
LINES = 1_000  # of a split that are read


def kinds_of_points(trained: Predictor[Any]) -> list[PointKind]:
    """What this model has vectors of, the most telling first."""
    model, tokenizer, found = trained.model, trained.tokenizer, list[PointKind]()
    if isinstance(model, WordModel) or token_vectors(model, len(tokenizer)) is not None:
        found.append("words" if isinstance(tokenizer, Words) else "tokens")
    with suppress(UsageError):
        reader_of(trained)
        found.append("sentences")
    return found


def points_of(trained: Predictor[Any], kind: PointKind, lines: Sequence[str] | None = None) -> Points:
    """Its words or tokens, the more frequent first; or these lines, or without any those of the dev split."""
    if kind not in get_args(PointKind):
        raise UsageError(f"There are no points of kind {kind!r}: {did_you_mean(kind, get_args(PointKind))}.")
    if kind == "words":
        return _words(trained)
    return _tokens(trained) if kind == "tokens" else _sentences(trained, lines)


def _words(trained: Predictor[Any]) -> Points:
    space, model, counts = word_space(trained), trained.model, None
    space = WordSpace(space.words[:MOST], space.vectors[:MOST], space.lowercase, space.name)
    if isinstance(model, WordModel):
        counts = model.counts.sort(descending=True, stable=True).values[: len(space.words)].tolist()
    colourings = [by_frequency(counts, len(space.words)), by_kind(space.words), by_length(space.words)]
    if (tags := _usual_tags(trained, space)) is not None:
        colourings.insert(0, tags)
    return Points("words", space, colourings, f"{len(space.words):,} words of its vocabulary")


def _usual_tags(trained: Predictor[Any], space: WordSpace) -> Colouring | None:
    """Where the model was trained on tagged words: the tag that each has most often."""
    if trained.run.recipe.get("task") != "tag":
        return None
    with suppress(SeqloomError):  # data that has changed or is no longer there: then there is no such colouring
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for sentence in islice(trained.task().corpus.split("train"), MOST):
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                seen[word.lower() if space.lowercase else word][tag] += 1
        usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
        return by_group("label", "its most frequent tag", [usual.get(word, "") for word in space.words])
    return None


def _tokens(trained: Predictor[Any]) -> Points:
    tokenizer = trained.tokenizer
    rows = token_vectors(trained.model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no vectors of tokens.")
    count = min(len(rows), MOST)
    names = [tokenizer.token(number) for number in range(count)]
    space = WordSpace(names, rows[:count].float().cpu().numpy(), False, trained.name)
    pieces = tokenizer.kind not in ("characters", "words")
    colourings = [by_kind(names, pieces), by_length(names)]
    if pieces:
        order = np.arange(1.0, count + 1)
        colourings.append(Colouring("frequency", "place in the vocabulary", order, log=True))
    return Points("tokens", space, colourings, f"{count:,} tokens of its vocabulary ({tokenizer.kind})")


# --- texts ------------------------------------------------------------------------------------------------------------


def _sentences(trained: Predictor[Any], lines: Sequence[str] | None) -> Points:
    reader_of(trained)  # one that reads no texts says so before they are looked for
    if lines is None:
        rows = list(islice(_of_split(trained, "dev"), LINES))
        source = f"{len(rows):,} texts of {trained.run.data['corpus']}, dev"
    else:
        rows = [(line.strip(), "") for line in lines if line.strip()]
        source = f"{len(rows):,} lines of one's own"
    rows = list(dict(rows).items())[:MOST]  # each text once
    if len(rows) < 2:
        raise DataError("Points are made of two different lines or more.")
    names = [text[:SHOWN] for text, _ in rows]
    space = WordSpace(names, embed(trained, [text for text, _ in rows]), False, trained.name)
    colourings = [by_length(names, words=True), by_kind(names)]
    if any(label for _, label in rows):
        colourings.insert(0, by_group("label", "its label in the data", [label for _, label in rows]))
    return Points("sentences", space, colourings, source)


def _of_split(trained: Predictor[Any], split: str) -> Iterator[tuple[str, str]]:
    """The texts of a split, and the label of each where it has one."""
    for example in trained.task().corpus.split(split):
        if isinstance(example, str):
            yield from ((line.strip(), "") for line in example.splitlines() if len(line.split()) > 2)
        elif isinstance(example, TokenClassificationExample):
            yield example.text, ""
        else:
            text = next(getattr(example, name) for name in TEXTS if getattr(example, name, None))
            yield text, str(getattr(example, "label", "") or getattr(example, "kind", ""))


TEXTS: Iterable[str] = ("first", "text", "source", "question", "instruction")  # what examples have, by what they are
