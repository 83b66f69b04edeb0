"""Metrics of translations: BLEU and chrF as sacrebleu counts them, lines exactly right, BLEU by sentence length.

The values are sacrebleu's, each with the signature that lets others compare with it;
`seqloom.evaluate.bleu` shows how such a value comes about. sacrebleu is imported where it is used,
and none of what is used here downloads anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqloom.core.errors import DataError
from seqloom.core.words import unspaced

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

    from seqloom.decoding.beam import BeamConfig

WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # of the buckets of sentence length
MOST_BUCKETS = 8
FEWEST_PAIRS = 20  # BLEU of fewer sentences says little, so their bucket is joined to a neighbour


@dataclass(frozen=True)
class TranslationScores:
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
class TranslatedLine:
    """A sentence, its reference translation, and what the model made of it."""

    source: str
    reference: str
    hypothesis: str

    @property
    def is_exact(self) -> bool:
        """Whether it is right but for white space."""
        return self.hypothesis.split() == self.reference.split()


@dataclass(frozen=True)
class TranslationReport(TranslationScores):
    """Everything an evaluation of translations found."""

    by_length: list[LengthRow]
    unit: str  # what `by_length` counts: words or characters of the source
    decoding: str  # how the translations were found, in words
    lines: list[TranslatedLine]  # all of them, in the order of the split
    notes: tuple[str, ...] = ()  # what a person should know, without a full stop

    @property
    def hypotheses(self) -> list[str]:
        return [line.hypothesis for line in self.lines]

    def kept(self) -> dict[str, object]:
        """Return what a run keeps of it."""
        return {**self.metrics, "signatures": self.signatures, "decoding": self.decoding}

    def examples(self, most: int = 5) -> list[TranslatedLine]:
        """Choose a few lines from all over the split, those with a mistake first."""
        chosen: list[TranslatedLine] = []
        for exact in (False, True):
            lines = [line for line in self.lines if line.is_exact is exact]
            count = min(most - len(chosen), len(lines))
            chosen += [lines[number * len(lines) // count] for number in range(count)]
        return chosen


def report(
    lines: Sequence[TranslatedLine],
    *,
    source_language: str,
    target_language: str,
    decoding: str,
    before: Mapping[str, float] | None = None,
    after: Mapping[str, float] | None = None,
) -> TranslationReport:
    """Score translations.

    `before` and `after` are metrics found elsewhere: loss and perplexity; alignment_error_rate and
    copy_bleu.
    """
    hypotheses, references = [line.hypothesis for line in lines], [line.reference for line in lines]
    scores = score_translations(hypotheses, references, language=target_language)
    lengths = [sentence_length(line.source, source_language) for line in lines]
    return TranslationReport(
        metrics={**(before or {}), **scores.metrics, **(after or {})},
        signatures=scores.signatures,
        by_length=by_length(lengths, hypotheses, references, language=target_language),
        unit=length_unit(source_language),
        decoding=decoding,
        lines=list(lines),
    )


def decoding_in_words(options: "BeamConfig") -> str:
    """Describe how translations are found, for `TranslationReport.decoding`."""
    several = options.beam > 1
    beam = f"beam search, {options.beam} hypotheses, length penalty {options.length_penalty:g}"
    parts = [beam if several else "greedy search"]
    if options.coverage_penalty and several:
        parts.append(f"coverage penalty {options.coverage_penalty:g}")
    if options.min_length:
        parts.append(f"at least {options.min_length} tokens")
    if options.max_length is not None:
        parts.append(f"at most {options.max_length} tokens")
    if options.stopping == "exact" and several:
        parts.append("exact stopping")
    return ", ".join(parts)


def score_translations(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> TranslationScores:
    """Compute every metric of translations, one reference each. `language` is that of the references, or ""."""
    _check(hypotheses, references)
    from sacrebleu.metrics.chrf import CHRF

    scorers = {
        "bleu": bleu_metric(bleu_tokenizer(language)),
        "bleu_lowercase": bleu_metric(bleu_tokenizer(language), lowercase=True),
        "chrf": CHRF(),
    }
    metrics = {name: scorer.corpus_score(hypotheses, [references]).score for name, scorer in scorers.items()}
    lines = [TranslatedLine("", reference, said) for said, reference in zip(hypotheses, references, strict=True)]
    counted = [line for line in lines if line.reference.strip() or line.hypothesis.strip()]  # blank is not right
    metrics["exact_match"] = sum(line.is_exact for line in counted) / max(len(counted), 1)
    return TranslationScores(metrics, {name: str(scorer.get_signature()) for name, scorer in scorers.items()})


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> float:
    """Compute sacrebleu's corpus BLEU alone, from 0 to 100."""
    _check(hypotheses, references)
    score: float = bleu_metric(bleu_tokenizer(language)).corpus_score(hypotheses, [references]).score
    return score


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> "BLEU":
    """sacrebleu's BLEU with its usual smoothing. `force`: text that looks tokenized is scored without a warning."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)


def tokens(metric: "BLEU", line: str) -> list[str]:
    """Cut a line into tokens as such a BLEU metric does."""
    parts: list[str] = metric.tokenizer((line.lower() if metric.lowercase else line).rstrip()).split()
    return parts


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
    """BLEU of the sentences of similar length, short ones first.

    Buckets are steps of equal width, those with too few sentences joined to a neighbour. They
    depend on `lengths` alone, so that models can be compared by them.
    """
    _check(hypotheses, references)
    usual = sorted(lengths)[int(0.98 * (len(lengths) - 1))]  # a few very long sentences widen no step
    width = next((width for width in WIDTHS if usual <= width * MOST_BUCKETS), usual)
    steps: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        steps.setdefault((length - 1) // width, []).append(index)
    fewest = max(FEWEST_PAIRS, 0.02 * len(lengths))
    buckets: list[list[int]] = [[]]
    for step in sorted(steps, reverse=True):
        if len(buckets[-1]) >= fewest:
            buckets.append([])
        buckets[-1] += steps[step]
    if len(buckets) > 1 and len(buckets[-1]) < fewest:
        few = buckets.pop()
        buckets[-1] += few
    metric, rows = bleu_metric(bleu_tokenizer(language)), []
    for chosen in reversed(buckets):
        own = [lengths[index] for index in chosen]
        score = metric.corpus_score([hypotheses[i] for i in chosen], [[references[i] for i in chosen]]).score
        rows.append(LengthRow(min(own), max(own), len(chosen), score))
    return rows


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"Every reference needs one translation: there are {len(references):,} references "
            f"and {len(hypotheses):,} translations."
        )
    if not references:
        raise DataError("There is nothing to evaluate: the split has no sentence pairs.")
