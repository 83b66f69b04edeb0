"""`seqloom bleu`: compute and explain BLEU and chrF."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._options import JsonObject
from seqloom.cli._output import Json, print_json
from seqloom.core.errors import DataError, UsageError
from seqloom.core.words import did_you_mean, escape_controls

if TYPE_CHECKING:
    from seqloom.evaluate.bleu import Explanation, Statistics

TOKENIZERS = ("13a", "char", "intl", "none", "zh")


def bleu(
    reference: Annotated[
        list[Path], typer.Option(help="A file of reference translations. The option may be repeated.")
    ],
    hypothesis: Annotated[Path, typer.Option(help="A file of translations to evaluate; - is standard input.")],
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case.")] = False,
    tokenize: Annotated[str, typer.Option(help=f"Tokenizer of sacrebleu: {', '.join(TOKENIZERS)}.")] = "13a",
    explain: Annotated[int | None, typer.Option(help="Explain the BLEU score of this line, counted from 1.")] = None,
    as_json: JsonObject = False,
) -> None:
    """Compute and explain BLEU and chrF: `seqloom bleu --reference r.txt --hypothesis h.txt --explain 3`."""
    if tokenize not in TOKENIZERS:
        raise UsageError(f"There is no tokenizer {tokenize!r}: {did_you_mean(tokenize, TOKENIZERS)}.")
    hypotheses = read_translation(hypothesis)
    references = []
    for path in reference:
        if str(path) == "-":
            raise UsageError("--reference must be a file; only --hypothesis may be - (standard input).")
        references.append(read_translation(path))
        if len(references[-1]) != len(hypotheses):
            name = "standard input" if str(hypothesis) == "-" else hypothesis
            raise DataError(
                f"Reference and hypothesis must have the same number of lines: {path} has {len(references[-1]):,} and "
                f"{name} has {len(hypotheses):,}. Line n of one is compared with line n of the other."
            )
    if explain is not None and not 1 <= explain <= len(hypotheses):
        raise UsageError(f"--explain must name a line from 1 to {len(hypotheses):,}; got {explain}.")
    from sacrebleu.metrics.chrf import CHRF

    from seqloom.evaluate.bleu import corpus_statistics, describe_corpus, describe_sentence
    from seqloom.evaluate.bleu import explain as explain_tokens
    from seqloom.evaluate.translation import bleu_metric, tokens

    bleu_scorer = bleu_metric(tokenize, lowercase=lowercase)
    scorers = {"bleu": bleu_scorer, "chrf": CHRF(lowercase=lowercase)}
    scores = {name: scorer.corpus_score(hypotheses, references).score for name, scorer in scorers.items()}
    signatures = {name: str(scorer.get_signature()) for name, scorer in scorers.items()}
    translated = [tokens(bleu_scorer, line) for line in hypotheses]
    expected = [[tokens(bleu_scorer, line) for line in lines] for lines in zip(*references, strict=True)]
    total = corpus_statistics(translated, expected)
    explained = None if explain is None else explain_tokens(translated[explain - 1], expected[explain - 1])
    if as_json:
        more = {} if explained is None else {"explained": {"line": explain, **explanation_to_json(explained)}}
        head = {**scores, "signatures": signatures, "lines": len(hypotheses)}
        print_json({**head, **statistics_to_json(total), **more})
        return
    for name, label in {"bleu": "BLEU", "chrf": "chrF"}.items():
        print(f"{label}  {scores[name]:6.2f}   {signatures[name]}")
    precisions = ", ".join(f"{correct}/{count}" for correct, count in zip(total.correct, total.total, strict=True))
    print(f"      correct n-grams for n = 1 … 4: {precisions}")
    print(f"      tokens: {total.length:,} ({total.reference_length:,} in the references); ", end="")
    print(f"brevity penalty {total.brevity_penalty:.4f}")
    if explained is not None:
        title = f"Line {explain:,} of {len(hypotheses):,}"
        of_corpus = describe_corpus(total, len(hypotheses), explained.statistics)
        for line in ["", title, *describe_sentence(explained), "", *of_corpus]:
            print(escape_controls(line))


def read_translation(path: Path) -> list[str]:
    """Return the lines of a file, or of standard input if its name is -."""
    from seqloom.data.files import decode_text, read_all, read_lines, split_lines

    if str(path) != "-":
        return read_lines(path)
    text = decode_text(read_all(sys.stdin.buffer, "Standard input"), "Standard input")
    if not text.strip():
        raise DataError("Standard input must contain one translation per line, but it is empty.")
    return split_lines(text)


def statistics_to_json(statistics: "Statistics") -> Json:
    """Return n-gram statistics as JSON values."""
    return {
        "correct": statistics.correct,
        "total": statistics.total,
        "precisions": statistics.precisions,
        "hypothesis_length": statistics.length,
        "reference_length": statistics.reference_length,
        "brevity_penalty": statistics.brevity_penalty,
        "unsmoothed": [statistics.bleu(order) for order in range(1, len(statistics.total) + 1)],
    }


def explanation_to_json(explained: "Explanation") -> Json:
    """Return the computation of a line's BLEU as JSON values."""
    keys = ("ngram", "count", "reference_count", "clipped")
    counts = [[{key: getattr(count, key) for key in keys} for count in of_order] for of_order in explained.counts]
    return {
        "hypothesis": explained.hypothesis,
        "references": explained.references,
        **statistics_to_json(explained.statistics),
        "sacrebleu": explained.statistics.smoothed_bleu(is_corpus=False),
        "ngrams": counts,
    }
