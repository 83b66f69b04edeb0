"""How good translations are: BLEU and chrF as sacrebleu counts them, lines exactly right, BLEU by sentence length.

The figures are sacrebleu's, each with the signature that lets others compare with it; `seqloom.evaluate.bleu` shows how
such a figure comes about. sacrebleu is imported where it is used, and none of what is used here downloads anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import DataError
from seqloom.core.languages import unspaced

if TYPE_CHECKING:
    from seqloom.decoding.beam import BeamConfig

WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # of the buckets of sentence length
MOST_BUCKETS = 8
FEWEST_PAIRS = 20  # BLEU of fewer sentences says little, so their bucket is joined to a neighbour


@dataclass(frozen=True)
class Scores:
    metrics: dict[str, float]  # bleu, bleu_lowercase and chrf from 0 to 100; exact_match from 0 to 1
    signatures: dict[str, str]  # of bleu, bleu_lowercase and chrf


@dataclass(frozen=True)
class LengthRow:
    """The sentences whose source is `low` to `high` units long, both included."""

    low: int
    high: int
    pairs: int
    bleu: float


@dataclass(frozen=True)
class Line:
    """A sentence, its reference translation, and what the model made of it."""

    source: str
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class Report:
    """Everything an evaluation of translations found."""

    metrics: dict[str, float]
    signatures: dict[str, str]
    by_length: list[LengthRow]
    unit: str  # what `by_length` counts: words or characters of the source
    decoding: str  # how the translations were found, in words
    lines: list[Line]  # all of them, in the order of the split
    notes: tuple[str, ...] = ()  # what a person should know, without a full stop

    @property
    def hypotheses(self) -> list[str]:
        return [line.hypothesis for line in self.lines]

    def kept(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {**self.metrics, "signatures": self.signatures, "decoding": self.decoding}

    def examples(self, most: int = 5) -> list[Line]:
        """A few lines from all over the split, those with a mistake first."""
        wrong = [line for line in self.lines if not _same(line.hypothesis, line.reference)]
        right = [line for line in self.lines if _same(line.hypothesis, line.reference)]
        chosen = _spread(wrong, most)
        return chosen + _spread(right, most - len(chosen))


def report(
    lines: Sequence[Line],
    *,
    source_language: str,
    target_language: str,
    decoding: str,
    before: Mapping[str, float] | None = None,
    after: Mapping[str, float] | None = None,
) -> Report:
    """Score translations.

    `before` and `after` are metrics found elsewhere: loss and perplexity; alignment_error_rate and copy_bleu.
    """
    hypotheses, references = [line.hypothesis for line in lines], [line.reference for line in lines]
    scores = score_translations(hypotheses, references, language=target_language)
    lengths = [sentence_length(line.source, source_language) for line in lines]
    return Report(
        metrics={**(before or {}), **scores.metrics, **(after or {})},
        signatures=scores.signatures,
        by_length=by_length(lengths, hypotheses, references, language=target_language),
        unit=length_unit(source_language),
        decoding=decoding,
        lines=list(lines),
    )


def decoding_in_words(options: "BeamConfig") -> str:
    """How translations are found, for `Report.decoding`."""
    said = (
        ["greedy search"]
        if options.beam == 1
        else [f"beam search, {options.beam} hypotheses, length penalty {options.length_penalty:g}"]
    )
    if options.coverage_penalty and options.beam > 1:
        said.append(f"coverage penalty {options.coverage_penalty:g}")
    if options.min_length:
        said.append(f"at least {options.min_length} tokens")
    if options.max_length is not None:
        said.append(f"at most {options.max_length} tokens")
    if options.stopping == "exact" and options.beam > 1:
        said.append("exact stopping")
    return ", ".join(said)


def score_translations(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> Scores:
    """Every figure of a text of translations, one reference each. `language` is that of the references, or ""."""
    _check(hypotheses, references)
    from sacrebleu.metrics.chrf import CHRF

    found = {
        "bleu": bleu_metric(bleu_tokenizer(language)),
        "bleu_lowercase": bleu_metric(bleu_tokenizer(language), lowercase=True),
        "chrf": CHRF(),
    }
    metrics = {name: metric.corpus_score(hypotheses, [references]).score for name, metric in found.items()}
    said = [
        pair for pair in zip(hypotheses, references, strict=True) if any(map(str.strip, pair))
    ]  # blank is not right
    exact = sum(_same(*pair) for pair in said) / max(len(said), 1)
    return Scores({**metrics, "exact_match": exact}, {name: str(one.get_signature()) for name, one in found.items()})


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> float:
    """sacrebleu's corpus BLEU alone, from 0 to 100."""
    _check(hypotheses, references)
    score: float = bleu_metric(bleu_tokenizer(language)).corpus_score(hypotheses, [references]).score
    return score


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> Any:
    """sacrebleu's BLEU with its usual smoothing. `force`: text that looks tokenized is scored without a warning."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)


def tokens(metric: Any, line: str) -> list[str]:
    """A line as such a BLEU metric sees it."""
    found: list[str] = metric.tokenizer((line.lower() if metric.lowercase else line).rstrip()).split()
    return found


def bleu_tokenizer(language: str) -> str:
    """How sacrebleu should cut a language into tokens: where no spaces part words, a token is a character."""
    return "char" if unspaced(language) else "13a"


def length_unit(language: str) -> str:
    return "characters" if unspaced(language) else "words"


def sentence_length(text: str, language: str) -> int:
    words = text.split()
    return sum(map(len, words)) if unspaced(language) else len(words)


def by_length(
    lengths: Sequence[int], hypotheses: Sequence[str], references: Sequence[str], *, language: str
) -> list[LengthRow]:
    """BLEU of the sentences of similar length, short ones first. The buckets depend on `lengths` alone, so that models
    can be compared by them."""
    _check(hypotheses, references)
    metric, rows = bleu_metric(bleu_tokenizer(language)), []
    for places in _buckets(lengths):
        own = [lengths[place] for place in places]
        score = metric.corpus_score([hypotheses[i] for i in places], [[references[i] for i in places]]).score
        rows.append(LengthRow(min(own), max(own), len(places), score))
    return rows


def _buckets(lengths: Sequence[int]) -> list[list[int]]:
    """The places of sentences of similar length: steps of equal width, those with too few joined to a neighbour."""
    usual = sorted(lengths)[int(0.98 * (len(lengths) - 1))]  # a few very long sentences widen no step
    width = next((width for width in WIDTHS if usual <= width * MOST_BUCKETS), usual)
    steps: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        steps.setdefault((length - 1) // width, []).append(place)
    fewest = max(FEWEST_PAIRS, 0.02 * len(lengths))
    joined: list[list[int]] = [[]]
    for step in sorted(steps, reverse=True):
        if len(joined[-1]) >= fewest:
            joined.append([])
        joined[-1] += steps[step]
    if len(joined) > 1 and len(joined[-1]) < fewest:
        few = joined.pop()
        joined[-1] += few
    return joined[::-1]


def _same(hypothesis: str, reference: str) -> bool:
    return hypothesis.split() == reference.split()


def _spread(lines: list[Line], most: int) -> list[Line]:
    chosen = min(most, len(lines))
    return [lines[place * len(lines) // chosen] for place in range(chosen)]


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"Every reference needs one translation: there are {len(references):,} references "
            f"and {len(hypotheses):,} translations."
        )
    if not references:
        raise DataError("There is nothing to evaluate: the split has no sentence pairs.")
