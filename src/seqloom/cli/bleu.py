"""BLEU and chrF of a translated text, and how BLEU comes about."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seqloom.cli._options import JsonObject
from seqloom.cli._output import escaped, print_json
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.evaluate.bleu import Explanation, Statistics

TOKENIZERS = ("13a", "char", "intl", "none", "zh")


def bleu(
    reference: Annotated[
        list[Path], typer.Option(help="A good translation, line by line; may be given several times.")
    ],
    hypothesis: Annotated[Path, typer.Option(help="The translation to measure, line by line; - is the input.")],
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Upper and lower case are the same.")] = False,
    tokenize: Annotated[
        str, typer.Option(help=f"sacrebleu's way to find the tokens: {', '.join(TOKENIZERS)}.")
    ] = "13a",
    explain: Annotated[int | None, typer.Option(help="Show BLEU of this line step by step.")] = None,
    as_json: JsonObject = False,
) -> None:
    """BLEU and chrF, step by step for a line: `seqloom bleu --reference r.txt --hypothesis h.txt --explain 3`."""
    if tokenize not in TOKENIZERS:
        raise UsageError(f"There is no tokenizer {tokenize!r}: {did_you_mean(tokenize, TOKENIZERS)}.")
    hypotheses = _read(hypothesis)
    references = [_references(path, hypothesis, len(hypotheses)) for path in reference]
    if explain is not None and not 1 <= explain <= len(hypotheses):
        raise UsageError(f"--explain must name a line from 1 to {len(hypotheses):,}; got {explain}.")
    from sacrebleu.metrics.chrf import CHRF

    from seqloom.evaluate.bleu import corpus_statistics
    from seqloom.evaluate.bleu import explain as explain_tokens
    from seqloom.evaluate.translation import bleu_metric, tokens

    bleu_scorer = bleu_metric(tokenize, lowercase=lowercase)
    metrics = {"bleu": bleu_scorer, "chrf": CHRF(lowercase=lowercase)}
    scores = {name: metric.corpus_score(hypotheses, references) for name, metric in metrics.items()}
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    said = [tokens(bleu_scorer, line) for line in hypotheses]
    expected = [[tokens(bleu_scorer, line) for line in lines] for lines in zip(*references, strict=True)]
    total = corpus_statistics(said, expected)
    found = explain_tokens(said[explain - 1], expected[explain - 1]) if explain is not None else None
    figures = {name: score.score for name, score in scores.items()}
    if as_json:
        explanation = {"explained": {"line": explain, **_explained(found)}} if found else {}
        print_json({**figures, "signatures": signatures, "lines": len(hypotheses), **_statistics(total), **explanation})
        return
    _print(figures, signatures, total)
    if found is not None:
        _print_explanation(found, total, f"Line {explain:,} of {len(hypotheses):,}", len(hypotheses))


def _read(path: Path) -> list[str]:
    """The lines of a file, or of the input if its name is -."""
    from seqloom.data.files import decode_text, lines, read_all, read_lines

    if str(path) != "-":
        return read_lines(path)
    text = decode_text(read_all(sys.stdin.buffer, "The input"), "The input")
    if not text.strip():
        raise DataError("The input is empty: it must hold the translation, line by line.")
    return lines(text)


def _references(path: Path, hypothesis: Path, lines: int) -> list[str]:
    if str(path) == "-":
        raise UsageError("The references must be files; only --hypothesis may be -, the input.")
    references = _read(path)
    if len(references) != lines:
        said = "the input" if str(hypothesis) == "-" else hypothesis
        raise DataError(
            f"Reference and hypothesis must have as many lines: {path} has {len(references):,} and {said} has "
            f"{lines:,}.\nLine n of one is compared with line n of the other."
        )
    return references


def _print(figures: dict[str, float], signatures: dict[str, str], total: "Statistics") -> None:
    for name, label in {"bleu": "BLEU", "chrf": "chrF"}.items():
        print(f"{label}  {figures[name]:6.2f}   {signatures[name]}")
    precisions = ", ".join(f"{right}/{all_}" for right, all_ in zip(total.correct, total.total, strict=True))
    print(f"      n-grams right, n = 1 … 4: {precisions}")
    print(f"      tokens: {total.length:,}, in the references {total.reference_length:,}; ", end="")
    print(f"brevity penalty {total.brevity_penalty:.4f}")


def _print_explanation(found: "Explanation", total: "Statistics", title: str, lines: int) -> None:
    from seqloom.evaluate.bleu import corpus_in_words, in_words

    for line in ["", title, *in_words(found), "", *corpus_in_words(total, lines, found.statistics)]:
        print(escaped(line))


def _statistics(own: "Statistics") -> dict[str, Any]:
    return {
        "correct": own.correct,
        "total": own.total,
        "precisions": own.precisions,
        "hypothesis_length": own.length,
        "reference_length": own.reference_length,
        "brevity_penalty": own.brevity_penalty,
        "unsmoothed": [own.bleu(order) for order in range(1, len(own.total) + 1)],
    }


def _explained(found: "Explanation") -> dict[str, Any]:
    counts = [
        [{"ngram": one.ngram, "count": one.count, "most": one.most, "clipped": one.clipped} for one in of_order]
        for of_order in found.counts
    ]
    return {
        "hypothesis": found.hypothesis,
        "references": found.references,
        **_statistics(found.statistics),
        "sacrebleu": found.statistics.smoothed_bleu(whole=False),
        "ngrams": counts,
    }
