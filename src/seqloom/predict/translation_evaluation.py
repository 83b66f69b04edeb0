"""The output of `seqloom evaluate` for translators."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from seqloom.core.words import LINE_BREAKS, escape_controls, format_count
from seqloom.data.files import read_parallel
from seqloom.data.glossary import Glossary, Term, open_glossary
from seqloom.evaluate.translation import TranslationReport, bleu
from seqloom.predict.evaluation import EXAMPLES, Evaluation, EvaluationOptions, metric_lines

if TYPE_CHECKING:
    from seqloom.predict.translate import TranslatorPredictor

COLUMNS = {"without": 8, "with": 8, "reference": 10}  # column widths


class TranslationEvaluation(Evaluation):
    """The translations of a split or of other sentences, compared with their references."""

    option_groups = ("search", "pairs", "out")
    answers_name = "translations"
    report: TranslationReport

    def __init__(self, model: "TranslatorPredictor", options: EvaluationOptions) -> None:
        self.model, self.split, self.options = model, options.split, options
        self.pairs = None if options.pairs is None else read_parallel(*options.pairs)
        glossary = None if options.glossary is None else open_glossary(options.glossary, model.languages)
        self.report = self.report_on(model, glossary)
        self.notes = [f"{note}." for note in self.report.notes]
        self.effect = None if glossary is None else GlossaryEffect(model, glossary, self.report, self.report_on(model))

    @property
    def data(self) -> str:
        return super().data if self.options.pairs is None else " and ".join(map(str, self.options.pairs))

    def report_on(self, model: "TranslatorPredictor", glossary: Glossary | None = None) -> TranslationReport:
        """Evaluate the translations of a model."""
        if self.pairs is None:
            return model.report(self.split, glossary, **self.options.search)
        return model.report_pairs(*self.pairs, glossary, **self.options.search)

    def to_json(self) -> dict[str, object]:
        report = self.report
        return {
            "run": self.model.name,
            "data": self.data,
            "pairs": len(report.lines),
            **report.metrics,
            "signatures": report.signatures,
            "decoding": report.decoding,
            **({"baseline": report.baseline} if report.baseline else {}),
            "length_unit": report.unit,
            "by_length": report.by_length,
            "examples": report.examples(),
            **({} if self.effect is None else {"glossary": self.effect.to_json()}),
        }

    def answers(self) -> Iterator[str]:
        return (f"{text.translate(LINE_BREAKS)}\n" for text in self.report.hypotheses)

    def lines(self, console: Console) -> Iterator[RenderableType]:
        """Yield metrics, BLEU by length, and translations that differ from their references."""
        report, tags = self.report, [self.model.run.data.get(side) or "" for side in ("source", "target")]
        blank = sum(not (line.source.strip() or line.reference.strip()) for line in report.lines)
        without = f", {blank:,} of them blank" if blank else ""
        languages = f", {' to '.join(tags)}" if all(tags) else ""
        pairs = f"{format_count(len(report.lines), 'pair')}{without}{languages}"
        yield f"{self.model.name} on {self.data}: {pairs}; {report.decoding}"
        signatures = {name: f"   {signature}" for name, signature in report.signatures.items()}
        yield from metric_lines(report.metrics, signatures, loss="loss, nats per token", ordered=True)
        if report.baseline:
            yield f"  baseline: {report.baseline}"
        yield f"  BLEU by length of the source:\n    {report.unit:>12}  {'pairs':>7}  {'BLEU':>6}"
        for row in report.by_length:
            lengths = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
            yield f"    {lengths:>12}  {row.pairs:7,}  {row.bleu:6.2f}"
        yield from () if self.effect is None else self.effect.describe(str(self.options.glossary))
        wrong = [line for line in report.examples(EXAMPLES) if line.hypothesis.split() != line.reference.split()]
        if wrong:
            yield "  Translations that differ from their reference (source, reference, translation):"
            texts = [map(escape_controls, (line.source, line.reference, line.hypothesis)) for line in wrong]
            yield "\n\n".join("\n".join(f"    {text}" for text in each) for each in texts)


class GlossaryEffect:
    """The effect of a glossary on translations: the fraction of terms that they contain, and BLEU."""

    def __init__(
        self, model: "TranslatorPredictor", glossary: Glossary, report: TranslationReport, without: TranslationReport
    ) -> None:
        """Compare the reports with and without a glossary on the same sentences."""
        search = model.term_search(glossary)
        assert search is not None
        found = [glossary.find(line.source) for line in report.lines]
        written = [search.required(line.source) for line in report.lines]
        references = [line.reference for line in report.lines]
        self.entries, self.sentences = len(glossary), len(found)
        self.chosen = [index for index, terms in enumerate(found) if terms]
        self.terms = sum(map(len, found))
        self.accuracy = {
            "without": term_accuracy(without.hypotheses, written),
            "with": term_accuracy(report.hypotheses, written),
            "reference": term_accuracy(references, found),
        }
        self.bleu = {"without": without.metrics["bleu"], "with": report.metrics["bleu"]}
        of_lines = [references[index] for index in self.chosen]
        self.bleu_of_lines = {
            name: bleu([each.hypotheses[index] for index in self.chosen], of_lines, language=report.language)
            for name, each in (("without", without), ("with", report))
            if of_lines
        }

    def to_json(self) -> dict[str, object]:
        return {
            "entries": self.entries,
            "terms": self.terms,
            "lines_with_terms": len(self.chosen),
            "term_accuracy": self.accuracy,
            "bleu": self.bleu,
            "bleu_of_lines_with_terms": self.bleu_of_lines,
        }

    def describe(self, name: str) -> Iterator[str]:
        """Yield the comparison as lines of text."""
        where = f"{format_count(len(self.chosen), 'line')} of {self.sentences:,}"
        yield f"  glossary {name}: {format_count(self.terms, 'term')} in {where}"
        if not self.chosen:
            return
        yield f"    {'':24}{'without':>10}{'with':>10}{'reference':>12}"
        rates = "".join(f"{100 * self.accuracy[key]:>{width}.2f} %" for key, width in COLUMNS.items())
        yield f"    {'term accuracy':24}{rates}"
        for label, scores in (("BLEU", self.bleu), ("BLEU, lines with terms", self.bleu_of_lines)):
            yield f"    {label:24}" + "".join(f"{score:>10.2f}" for score in scores.values())


def term_accuracy(texts: Sequence[str], terms: Sequence[Sequence[Term]]) -> float:
    """Return the fraction of terms that occur in their texts, or 0 without terms."""
    found = [term.occurs_in(text) for text, of_text in zip(texts, terms, strict=True) for term in of_text]
    return sum(found) / max(len(found), 1)
