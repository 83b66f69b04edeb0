"""Rescore translations from elsewhere with a translator.

    score(y) = share · log p(y | x) / |y|^α + (1 − share) · the score y came with

|y| counts the tokens, END included, as in beam search. With share = 1 the model alone decides.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import to_device
from seqloom.data.collate import ParallelBatches
from seqloom.predict.translator import TOKENS, Candidate, Given, LineReader, ReadLine, Translation, Translator

BLANK = Candidate("", 0.0, 0.0, [])


def rescore(
    translator: Translator, lists: Iterable[tuple[str, Sequence[Given]]], share: float, penalty: float
) -> Iterator[Translation]:
    """Return each line with its translations, best first; of equally good ones, those that came first."""
    if not 0 <= share <= 1:
        raise UsageError(f"The share of the model in a score must be from 0 to 1, got {share:g}.")
    reader = LineReader(translator)
    return (_rank(reader, number, *one, share, penalty) for number, one in enumerate(lists, start=1))


def _rank(
    reader: LineReader, number: int, line: str, given: Sequence[Given], share: float, penalty: float
) -> Translation:
    read, pairs = reader.read(number, line), [(one, None) if isinstance(one, str) else one for one in given]
    if not read.ids or not pairs:  # a blank line stays blank, whatever others made of it
        return Translation(line, [BLANK], [])
    ids = [reader.tokenizer.of_targets.encode(text) for text, _ in pairs]
    longest: int | None = getattr(reader.model, "longest_target", None)
    most = max(map(len, ids)) + 1
    if longest is not None and most > longest:
        raise DataError(
            f"A candidate of line {number:,} has {most:,} tokens, its end included, and this model can say only "
            f"{longest:,}. Leave it out, or train with more positions."
        )
    found = []
    for (text, theirs), own, log_prob in zip(pairs, ids, _log_probs(reader, read, ids), strict=True):
        score = log_prob / (len(own) + 1) ** penalty
        if share < 1:
            if theirs is None:
                raise DataError(f"A candidate of line {number:,} has no score that a share could be left to: {text!r}.")
            score = share * score + (1 - share) * theirs
        found.append(Candidate(text, score, log_prob, [reader.tokenizer.token(token) for token in own], ids=own))
    tokens = [reader.tokenizer.token(token) for token in read.ids]
    return Translation(line, sorted(found, key=lambda one: -one.score), tokens, unknown=read.unknown)


@torch.no_grad()
def _log_probs(reader: LineReader, line: ReadLine, ids: Sequence[Sequence[int]]) -> list[float]:
    """Return Σ log p of each translation, its END included."""
    found = [0.0] * len(ids)
    for members, batch in ParallelBatches([line.ids[:-1]] * len(ids), ids, tokens=TOKENS).every():
        sums = reader.model.target_log_probs(to_device(batch, reader.device)).double().sum(dim=1).tolist()
        for place, value in zip(members.tolist(), sums, strict=True):
            found[place] = value
    return found
