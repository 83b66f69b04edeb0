"""Metrics of translations: BLEU and chrF of sacrebleu, exact matches, and BLEU by sentence length.

Each score has a sacrebleu signature; scores with the same signature are comparable. `seqloom.evaluate.bleu` explains a
score. sacrebleu is imported on first use, and does not download data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqloom.core.errors import DataError
from seqloom.core.words import is_unspaced
from seqloom.evaluate.text_metrics import BASELINE_VALUES, TextMetric, additional_metrics

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

    from seqloom.decoding.beam import BeamConfig

BUCKET_WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # possible widths of buckets of sentence lengths
MAX_BUCKETS = 8
MIN_BUCKET_SIZE = 20  # number of sentences; smaller buckets are merged, because their BLEU is unreliable


@dataclass(frozen=True)
class TranslationScores:
    # bleu, bleu_lowercase and chrf from 0 to 100; exact_match from 0 to 1; the metrics that the recipe names
    metrics: dict[str, float]
    signatures: dict[str, str]  # sacrebleu signatures of bleu, bleu_lowercase and chrf


@dataclass(frozen=True)
class LengthRow:
    """The sentences whose source has a length from `low` to `high` units (inclusive)."""

    low: int
    high: int
    pairs: int
    bleu: float


@dataclass(frozen=True)
class TranslatedLine:
    """A source sentence, its reference and the translation of the model."""

    source: str
    reference: str
    hypothesis: str

    @property
    def is_exact(self) -> bool:
        """Whether the translation equals the reference up to white space."""
        return self.hypothesis.split() == self.reference.split()


@dataclass(frozen=True)
class TranslationReport(TranslationScores):
    """The evaluation of translations."""

    by_length: list[LengthRow]
    unit: str  # unit of `by_length`: words or characters of the source
    decoding: str  # description of the search
    lines: list[TranslatedLine]  # lines in the order of the split
    notes: tuple[str, ...] = ()  # remarks for the user, without a full stop
    language: str = ""  # language of the references
    baseline: str = ""  # description of the baseline of the recipe, if it was computed

    @property
    def hypotheses(self) -> list[str]:
        """The translations."""
        return [line.hypothesis for line in self.lines]

    def to_dict(self) -> dict[str, object]:
        """Return the values that a run stores."""
        return {**self.metrics, "signatures": self.signatures, "decoding": self.decoding}

    def examples(self, limit: int = 5) -> list[TranslatedLine]:
        """Choose lines evenly from the split, with mistakes first."""
        chosen: list[TranslatedLine] = []
        for exact in (False, True):
            lines = [line for line in self.lines if line.is_exact is exact]
            count = min(limit - len(chosen), len(lines))
            chosen += [lines[number * len(lines) // count] for number in range(count)]
        return chosen


def report(
    lines: Sequence[TranslatedLine],
    *,
    source_language: str,
    target_language: str,
    decoding: str,
    metrics: Sequence[TextMetric] = (),
    before: Mapping[str, float] | None = None,
    after: Mapping[str, float] | None = None,
) -> TranslationReport:
    """Evaluate translations.

    `before` and `after` are additional metrics, which come before and after the metrics of translations:
    loss and perplexity before; alignment_error_rate and baseline_bleu after.
    """
    hypotheses, references = [line.hypothesis for line in lines], [line.reference for line in lines]
    scores = score_translations(hypotheses, references, language=target_language, metrics=metrics)
    lengths = [sentence_length(line.source, source_language) for line in lines]
    return TranslationReport(
        metrics={**(before or {}), **scores.metrics, **(after or {})},
        signatures=scores.signatures,
        by_length=by_length(lengths, hypotheses, references, language=target_language),
        unit=length_unit(source_language),
        decoding=decoding,
        lines=list(lines),
        language=target_language,
    )


def describe_decoding(options: "BeamConfig") -> str:
    """Describe the search for `TranslationReport.decoding`."""
    is_beam = options.beam > 1
    beam = f"beam search, {options.beam} hypotheses, length penalty {options.length_penalty:g}"
    parts = [beam if is_beam else "greedy search"]
    if options.coverage_penalty and is_beam:
        parts.append(f"coverage penalty {options.coverage_penalty:g}")
    if options.min_length:
        parts.append(f"at least {options.min_length} tokens")
    if options.max_length is not None:
        parts.append(f"at most {options.max_length} tokens")
    if options.stopping == "exact" and is_beam:
        parts.append("exact stopping")
    return ", ".join(parts)


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, language: str, metrics: Sequence[TextMetric] = ()
) -> TranslationScores:
    """Compute BLEU, chrF, exact match and the named metrics of translations with one reference each.

    `language` is the language of the references, or "" if it is unknown.
    """
    _check(hypotheses, references)
    from sacrebleu.metrics.chrf import CHRF

    scorers = {
        "bleu": bleu_metric(bleu_tokenizer(language)),
        "bleu_lowercase": bleu_metric(bleu_tokenizer(language), lowercase=True),
        "chrf": CHRF(),
    }
    values = {name: scorer.corpus_score(hypotheses, [references]).score for name, scorer in scorers.items()}
    pairs = zip(references, hypotheses, strict=True)
    lines = [TranslatedLine("", reference, hypothesis) for reference, hypothesis in pairs]
    counted = [line for line in lines if line.reference.strip() or line.hypothesis.strip()]  # leave out blank pairs
    values["exact_match"] = sum(line.is_exact for line in counted) / max(len(counted), 1)
    values |= additional_metrics(metrics, hypotheses, references)
    return TranslationScores(values, {name: str(scorer.get_signature()) for name, scorer in scorers.items()})


def score_baseline(
    predictions: Sequence[str], references: Sequence[str], *, language: str, metrics: Sequence[TextMetric]
) -> dict[str, float]:
    """Compute the named metrics of a baseline: `baseline_bleu` for bleu."""
    values = score_translations(predictions, references, language=language, metrics=metrics).metrics
    return {f"baseline_{name}": values[name] for metric in metrics for name in BASELINE_VALUES[metric]}


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, language: str) -> float:
    """Compute sacrebleu's corpus BLEU, from 0 to 100."""
    _check(hypotheses, references)
    score: float = bleu_metric(bleu_tokenizer(language)).corpus_score(hypotheses, [references]).score
    return score


def bleu_metric(tokenize: str, *, lowercase: bool = False) -> "BLEU":
    """Return sacrebleu's BLEU with default smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)  # `force` disables a warning about tokenized text


def tokens(metric: "BLEU", line: str) -> list[str]:
    """Tokenize a line as a BLEU metric does."""
    parts: list[str] = metric.tokenizer((line.lower() if metric.lowercase else line).rstrip()).split()
    return parts


def bleu_tokenizer(language: str) -> str:
    """Return sacrebleu's tokenizer for a language; tokens are characters if there are no spaces between words."""
    return "char" if is_unspaced(language) else "13a"


def length_unit(language: str) -> str:
    """Return the unit of `sentence_length`."""
    return "characters" if is_unspaced(language) else "words"


def sentence_length(text: str, language: str) -> int:
    """Return the number of words, or of characters in languages without spaces."""
    words = text.split()
    return sum(map(len, words)) if is_unspaced(language) else len(words)


def by_length(
    lengths: Sequence[int], hypotheses: Sequence[str], references: Sequence[str], *, language: str
) -> list[LengthRow]:
    """Compute BLEU of buckets of sentences with similar length, shortest first.

    Buckets have equal width; buckets with too few sentences are merged with a neighbour. The buckets depend only on
    `lengths`, so that models are comparable.
    """
    _check(hypotheses, references)
    longest = sorted(lengths)[int(0.98 * (len(lengths) - 1))]  # ignore a few very long sentences
    width = next((width for width in BUCKET_WIDTHS if longest <= width * MAX_BUCKETS), longest)
    steps: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        steps.setdefault((length - 1) // width, []).append(index)
    min_size = max(MIN_BUCKET_SIZE, 0.02 * len(lengths))
    buckets: list[list[int]] = [[]]
    for step in sorted(steps, reverse=True):
        if len(buckets[-1]) >= min_size:
            buckets.append([])
        buckets[-1] += steps[step]
    if len(buckets) > 1 and len(buckets[-1]) < min_size:
        last = buckets.pop()
        buckets[-1] += last
    metric, rows = bleu_metric(bleu_tokenizer(language)), []
    for chosen in reversed(buckets):
        bucket = [lengths[index] for index in chosen]
        score = metric.corpus_score([hypotheses[i] for i in chosen], [[references[i] for i in chosen]]).score
        rows.append(LengthRow(min(bucket), max(bucket), len(chosen), score))
    return rows


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise DataError(
            f"Every reference needs one translation; got {len(references):,} references "
            f"and {len(hypotheses):,} translations."
        )
    if not references:
        raise DataError("The split has no sentence pairs to evaluate.")
