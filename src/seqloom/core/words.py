"""Text for messages: suggestions for unknown words, formatted values, and lists of metrics and languages."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from unicodedata import category

WHOLE_NUMBERS = range(-(2**63), 2**63)  # 64-bit integers, which torch, numpy and JSON readers support
CONTROL = ("Cc", "Cs", "Zl", "Zp")  # categories: control characters, surrogates, line and paragraph separators
DIRECTION_MARKS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the writing direction


def find_nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option most similar to `word`, or None if none is similar."""
    candidates = {option.lower(): option for option in options}
    matches = difflib.get_close_matches(word.lower(), candidates, n=1, cutoff=0.6)
    return candidates[matches[0]] if matches else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return advice on an unknown word: the most similar option and the list of all options."""
    known = list(options)
    close = find_nearest(word, known)
    choices = f"choose from {', '.join(map(shorten, known))}" if known else "no options are available"
    return f"did you mean {close}? ({choices})" if close else choices


def format_count(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 text`, `2,000 texts`."""
    return f"1 {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text; invalid bytes of arguments and file names are surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def format_value(value: Any, limit: int = 60) -> str:
    """Format a value as in YAML, shortened to fit a line."""
    return shorten(_yaml_like(value), limit)


def shorten(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _yaml_like(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml_like(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml_like, value)) + "]"
    return repr(value)


_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}


def one_line(text: str) -> str:
    """Replace line breaks and tabs by spaces."""
    return text.translate(_ONE_LINE)


def escape_controls(text: str) -> str:
    """Escape the characters that control a terminal or the writing direction."""
    return "".join(
        letter.encode("unicode_escape").decode("ascii")
        if letter != "\t" and (letter in DIRECTION_MARKS or category(letter) in CONTROL)
        else letter
        for letter in text
    )


UNSPACED_LANGUAGES = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})  # no spaces between words


def is_unspaced(tag: str) -> bool:
    return re.split("[-_]", tag)[0].lower() in UNSPACED_LANGUAGES


PERCENT_METRICS = ("bleu", "bleu_lowercase", "chrf", "copy_bleu")  # from 0 to 100
# Metrics of labels, tags, scores and answers, the most important first.
ANSWER_METRICS = (
    *("span_f1", "token_accuracy", "accuracy", "macro_f1", "matthews"),
    *("pearson", "spearman", "answer_f1", "answer_exact"),
)
HIGHER_IS_BETTER = (
    *("bleu", "bleu_lowercase", "chrf", "exact_match", "success", "masked_accuracy", "next_accuracy"),
    *("replaced_f1", "replaced_accuracy", "replaced_precision", "replaced_recall"),
    *("hidden_accuracy", "target_accuracy", "exact_spans", "exact_texts"),
    *ANSWER_METRICS,
    *("neighbours", "wordsim353", "simlex999", "analogies", "analogies_semantic", "analogies_syntactic"),
    *("micro_f1", "weighted_f1", "tag_macro_f1", "sentence_accuracy", "span_precision", "span_recall", "span_macro_f1"),
)


def format_metric(name: str, value: float) -> str:
    """Format a metric with two decimals if it ranges from 0 to 100, otherwise with four."""
    if name in PERCENT_METRICS:
        return f"{value:.2f}"
    return f"{value:{'.4f' if abs(value) < 1e6 else '.3e'}}"


def format_sizes(counts: Mapping[str, int]) -> str:
    """Format counts: `3 sentences, 12 words`."""
    return ", ".join(f"{count:,} {unit}" for unit, count in counts.items())
