"""What `evaluate` shows of a classifier or a tagger."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import check_answers, escaped, print_json
from seqloom.cli._pictures import check_out, write_picture
from seqloom.core.errors import UsageError
from seqloom.core.words import counted, one_line

if TYPE_CHECKING:
    from seqloom.evaluate.classification import Report
    from seqloom.evaluate.hits import Hits
    from seqloom.evaluate.tagging import TagReport
    from seqloom.predict.classifier import LabelPredictor
    from seqloom.predict.tagger import Tagger

LABELS = {
    "accuracy": "accuracy",
    "majority": "  of the largest class",
    "chance": "  of guessing",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "weighted_f1": "weighted F1",
    "matthews": "Matthews correlation",
    "calibration_error": "calibration error",
    "span_f1": "span F1",
    "span_precision": "span precision",
    "span_recall": "span recall",
    "span_macro_f1": "span macro F1",
    "token_accuracy": "words right",
    "sentence_accuracy": "sentences right",
    "tag_macro_f1": "tag macro F1",
    "loss": "loss, nats",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "rmse": "root mean square error",
    "mean_error": "mean error",
    "answer_f1": "answer F1",
    "answer_exact": "answers exact",
}
MAPPED = 25  # classes; of more only the mistakes are listed
MISTAKES = 10
EXAMPLES = 3
LONG = 100  # letters of an example that are shown


def evaluate_understanding(
    model: "LabelPredictor[Any] | Tagger",
    split: str,
    *,
    confusion: Path | None,
    reliability: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """All figures of a split, how sure they are, and what was taken for what."""
    from seqloom.predict.classifier import Classifier
    from seqloom.predict.tagger import Tagger

    for picture in (confusion, reliability):
        check_out(picture)
    check_answers(out, "answers")
    if reliability is not None and not isinstance(model, Classifier):
        raise UsageError(f"--reliability is for classifiers; {model.name} is {model.what}.")
    found: Any = model.report(split)
    data = f"{model.run.data['corpus']}, {split}"
    if confusion is not None:
        tags = isinstance(model, Tagger)
        of, unit = ("tag", "words") if tags else ("class", _unit(model, split))
        _draw_confusion(confusion, model.name, data, found, of, unit)
    if reliability is not None:
        from seqloom.inspect.plots.confusion import draw_reliability

        write_picture(reliability, draw_reliability(found.calibration, f"{model.name} on {data}"))
    if out is not None:
        _write_answers(out, model, split)
    if as_json:
        print_json(_object(model.name, data, found))
        return
    _print(model, data, split, found)
    if isinstance(model, Classifier):
        _print_examples(model, split)


def _unit(model: Any, split: str) -> str:
    """What a class is said of."""
    counts = model.run.data["counts"][split]
    return next((unit for unit in ("pairs", "series") if unit in counts), "texts")


def _draw_confusion(out: Path, name: str, data: str, found: Any, of: str, unit: str) -> None:
    from seqloom.inspect.plots.confusion import draw_confusion, fonts_of

    title = [f"{name} on {data}"]
    complaint = fonts_of(found.confusion, title).complaint()
    if complaint and out.suffix.lower() == ".png":
        typer.echo(f"note: {complaint}.", err=True)
    write_picture(out, draw_confusion(found.confusion, title, of=of, unit=unit), text_stays_text=True)


# --- every answer ---------------------------------------------------------------------------------------------------


def _write_answers(out: Path, model: "LabelPredictor[Any] | Tagger", split: str) -> None:
    from seqloom.core.files import write_atomic
    from seqloom.predict.classifier import LabelPredictor

    lines = _classified(model, split) if isinstance(model, LabelPredictor) else _tagged(model, split)
    write_atomic(out, "".join(lines))
    typer.echo(f"The answers are in {out}.", err=True)


def _classified(model: "LabelPredictor[Any]", split: str) -> Iterator[str]:
    """A table: what each text is, what it was called, how sure the model was, the text."""
    yield "expected\tpredicted\tprobability\ttext\n"
    for one in model.predict_split(split):
        yield f"{one_line(one.expected)}\t{one_line(one.label)}\t{one.probability:.4f}\t{one_line(one.text)}\n"


def _tagged(model: "Tagger", split: str) -> Iterator[str]:
    """CoNLL: a word, its tag, the tag it was given; a blank line after each sentence."""
    for sentence, said in model.answers(split):
        rows = zip(sentence.words, sentence.tags, said, strict=True)
        yield "".join(f"{word}\t{own}\t{given}\n" for word, own, given in rows) + "\n"


# --- in words -------------------------------------------------------------------------------------------------------


def _object(run: str, data: str, found: "Report | TagReport") -> dict[str, Any]:
    from seqloom.evaluate.classification import Report

    made: dict[str, Any] = {
        "run": run,
        "data": data,
        **found.metrics,
        "intervals": {name: list(interval) for name, interval in found.intervals.items()},
        "by_class": {name: _hits(hits) for name, hits in found.by_class.items()},
        "confusion": {"labels": list(found.confusion.labels), "counts": found.confusion.counts.tolist()},
        "unseen": found.unseen,
    }
    if isinstance(found, Report):
        made["calibration"] = [asdict(one) for one in found.calibration.filled]
    else:
        made["invalid"] = found.invalid
    return made


def _hits(hits: "Hits") -> dict[str, float]:
    return {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}


def _print(model: Any, data: str, split: str, found: Any) -> None:
    from rich.console import Console

    from seqloom.inspect.plots.confusion_tables import class_table, confusion_map, mistake_lines

    counts = model.run.data["counts"][split]
    sizes = ", ".join(f"{count:,} {unit}" for unit, count in counts.items() if unit != "characters")
    print(f"{model.name} on {data}: {sizes}")
    for line in figure_lines(found.metrics, found.intervals):
        print(line)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    print()
    of, unit = found.counted
    by_class = {escaped(name): hits for name, hits in found.by_class.items()}
    console.print(class_table(by_class, of, _unit(model, split) if of == "class" else unit))
    confusion = replace(found.confusion, labels=tuple(map(escaped, found.confusion.labels)))
    spans = of == "span"
    if confusion.labels and not spans and len(confusion.labels) <= MAPPED:
        colour = console.color_system is not None and not console.no_color
        print("\nwhat is taken for what: a row is what it is, a column what it was called")
        console.print(confusion_map(confusion, width=console.width, colour=colour), end="", crop=False)
    if mistakes := mistake_lines(confusion, MISTAKES):
        print("\nmost frequent mistakes" + (" of words" if spans else ""))
        print("\n".join(f"  {line}" for line in mistakes))
    for line in _remarks(found):
        print(escaped(line))


def figure_lines(metrics: Mapping[str, float], intervals: Mapping[str, Any]) -> Iterator[str]:
    """A line for each figure, with its interval where there is one."""
    for name in [*LABELS, *(name for name in metrics if name not in LABELS)]:
        if name in metrics:
            sure = f"   95 %: {intervals[name].low:.4f} to {intervals[name].high:.4f}" if name in intervals else ""
            yield f"  {LABELS.get(name, name):22} {metrics[name]:>9.4f}{sure}"


def _remarks(found: Any) -> Iterator[str]:
    if found.unseen:
        of_texts, names = found.counted[1] == "texts", ", ".join(found.unseen)
        which = ("text has a label", "texts have labels") if of_texts else ("word has a tag", "words have tags")
        yield f"{counted(sum(found.unseen.values()), *which)} that training never had ({names}): counted as wrong"
    if invalid := getattr(found, "invalid", 0):
        were = counted(invalid, "sentence was", "sentences were")
        yield f"{were} given tags that are not valid, and read as leniently as usual"


def _print_examples(model: "LabelPredictor[Any]", split: str) -> None:
    """The mistakes it was surest of: often it is the label that is wrong."""
    wrong = sorted(
        (one for one in model.predict_split(split) if one.label != one.expected), key=lambda one: -one.probability
    )
    if wrong:
        print("\nmistakes it was surest of")
    for one in wrong[:EXAMPLES]:
        text, expected, label = (escaped(one_line(part)) for part in (one.text, one.expected, one.label))
        said = f"{expected}, called {label} ({one.probability:.1%})"
        print(f"  {said}: {text if len(text) <= LONG else text[: LONG - 1] + '…'}")
