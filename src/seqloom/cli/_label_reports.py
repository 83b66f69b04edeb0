"""What `evaluate` shows of models that label, tag, match, choose or answer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seqloom.cli._output import check_answers, check_out, escaped, print_json, wide_console, write_picture
from seqloom.core.errors import UsageError
from seqloom.core.words import counted, one_line, shorten

if TYPE_CHECKING:
    from seqloom.evaluate.classification import ClassificationReport, Hits
    from seqloom.evaluate.tagging import TagReport
    from seqloom.predict.base import SplitPredictor
    from seqloom.predict.classify import LabelPredictor
    from seqloom.predict.matching import AnswerPredictor, ChoicePredictor, PairPredictor
    from seqloom.predict.tag import TaggerPredictor

METRICS = {
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
Row = tuple[float, str, str, str]  # how wrong it is, what is right, what was predicted, what was asked


def evaluate_labels(
    model: "LabelPredictor[Any] | TaggerPredictor",
    split: str,
    *,
    confusion: Path | None,
    reliability: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Show all metrics of a split of a classifier or tagger, with intervals, and what was taken for what."""
    from seqloom.predict.classify import ClassifierPredictor, LabelPredictor
    from seqloom.predict.tag import TaggerPredictor

    for picture in (confusion, reliability):
        check_out(picture)
    check_answers(out, "answers")
    if reliability is not None and not isinstance(model, ClassifierPredictor):
        raise UsageError(f"--reliability is for classifiers; {model.name} is {model.what}.")
    report: Any = model.report(split)
    data = data_name(model, split)
    if confusion is not None:
        of, unit = ("tag", "words") if isinstance(model, TaggerPredictor) else ("class", _unit(model, split))
        _draw_confusion(confusion, model.name, data, report, of, unit)
    if reliability is not None:
        from seqloom.inspect.plots.classification import draw_reliability

        write_picture(reliability, draw_reliability(report.calibration, f"{model.name} on {data}"))
    if out is not None:
        _write_answers(out, _label_rows(model, split) if isinstance(model, LabelPredictor) else _conll(model, split))
    if as_json:
        print_json(_object(model.name, data, report))
        return
    _print_labels(model, split, report)
    if isinstance(model, ClassifierPredictor):
        _print_label_mistakes(model, split)


def evaluate_answers(model: "SplitPredictor[Any]", split: str, out: Path | None, as_json: bool) -> None:
    """Show all metrics of a split of a model of scores, choices or answers, with intervals, and the worst mistakes."""
    check_answers(out, "answers")
    report: Any = model.report(split)
    if out is not None:
        rows = (
            f"{one_line(right)}\t{one_line(own)}\t{one_line(asked)}\n" for _, right, own, asked in _rows(model, split)
        )
        _write_answers(out, ["expected\tpredicted\texample\n", *rows])
    if as_json:
        intervals = {name: list(interval) for name, interval in report.intervals.items()}
        print_json({"run": model.name, "data": data_name(model, split), **report.metrics, "intervals": intervals})
        return
    print_head(model, split)
    for line in metric_lines(report.metrics, report.intervals):
        print(line.replace("loss, nats", "loss      ") if "pearson" in report.metrics else line)  # of scores, no nats
    wrong = sorted((row for row in _rows(model, split) if row[0] > 0), key=lambda row: -row[0])
    if wrong:
        print("\nworst mistakes")
    for _, right, own, asked in wrong[:EXAMPLES]:
        print(f"  {_short(asked)}\n    {_short(right)}; it said {_short(own) or 'nothing'}")


def data_name(model: "SplitPredictor[Any]", split: str) -> str:
    return f"{model.run.data['corpus']}, {split}"


def print_head(model: "SplitPredictor[Any]", split: str) -> None:
    counts = model.run.data["counts"][split]
    sizes = ", ".join(f"{count:,} {unit}" for unit, count in counts.items() if unit != "characters")
    print(f"{model.name} on {data_name(model, split)}: {sizes}")


def metric_lines(metrics: Mapping[str, float], intervals: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each metric, with its interval where there is one."""
    for name in [*METRICS, *(name for name in metrics if name not in METRICS)]:
        if name in metrics:
            sure = f"   95 %: {intervals[name].low:.4f} to {intervals[name].high:.4f}" if name in intervals else ""
            yield f"  {METRICS.get(name, name):22} {metrics[name]:>9.4f}{sure}"


def _unit(model: "SplitPredictor[Any]", split: str) -> str:
    """Return what has a class."""
    counts = model.run.data["counts"][split]
    return next((unit for unit in ("pairs", "series") if unit in counts), "texts")


def _draw_confusion(out: Path, name: str, data: str, found: Any, of: str, unit: str) -> None:
    from seqloom.inspect.plots.classification import draw_confusion, fonts_of

    title = [f"{name} on {data}"]
    complaint = fonts_of(found.confusion, title).complaint()
    if complaint and out.suffix.lower() == ".png":
        typer.echo(f"note: {complaint}.", err=True)
    write_picture(out, draw_confusion(found.confusion, title, of=of, unit=unit), text_stays_text=True)


def _write_answers(out: Path, lines: Iterable[str]) -> None:
    from seqloom.core.files import write_atomic

    write_atomic(out, "".join(lines))
    typer.echo(f"The answers are in {out}.", err=True)


def _label_rows(model: "LabelPredictor[Any]", split: str) -> Iterator[str]:
    """Yield a table: the label of each text, the predicted one, its probability, the text."""
    yield "expected\tpredicted\tprobability\ttext\n"
    for one in model.predict_split(split):
        yield f"{one_line(one.expected)}\t{one_line(one.label)}\t{one.probability:.4f}\t{one_line(one.text)}\n"


def _conll(model: "TaggerPredictor", split: str) -> Iterator[str]:
    """Yield CoNLL: a word, its tag, the predicted tag; a blank line after each sentence."""
    for sentence, predicted in model.answers(split):
        rows = zip(sentence.words, sentence.tags, predicted, strict=True)
        yield "".join(f"{word}\t{own}\t{given}\n" for word, own, given in rows) + "\n"


def _rows(model: "SplitPredictor[Any]", split: str) -> Iterator[Row]:
    from seqloom.predict.matching import AnswerPredictor, ChoicePredictor, PairPredictor

    if isinstance(model, PairPredictor):
        return _scored(model, split)
    if isinstance(model, ChoicePredictor):
        return _chosen(model, split)
    assert isinstance(model, AnswerPredictor)
    return _answered(model, split)


def _scored(model: "PairPredictor", split: str) -> Iterator[Row]:
    from seqloom.data.examples import scores_of

    corpus = model.own_task.corpus
    for pair, right, said in zip(corpus.split(split), scores_of(corpus, split), model.scores(split), strict=True):
        yield abs(right - said), pair.label, f"{said:.2f}", f"{pair.first} · {pair.second}"


def _chosen(model: "ChoicePredictor", split: str) -> Iterator[Row]:
    """Wrong is what was surest of a wrong option: log p of it less log p of the right one."""
    for choice, own in zip(model.own_task.corpus.split(split), model.log_probs(split), strict=True):
        place = max(range(len(own)), key=own.__getitem__)
        yield own[place] - own[choice.answer], choice.options[choice.answer], choice.options[place], choice.text


def _answered(model: "AnswerPredictor", split: str) -> Iterator[Row]:
    from seqloom.evaluate.answers import f1

    for one, said in zip(model.own_task.corpus.split(split), model.answers(split), strict=True):
        best = max(f1(said, answer.text) for answer in one.answers)
        yield 1 - best, one.answer.text, said, one.question


def _short(text: str) -> str:
    return shorten(escaped(one_line(text)), LONG)


def _object(run: str, data: str, found: "ClassificationReport | TagReport") -> dict[str, Any]:
    from seqloom.evaluate.classification import ClassificationReport

    made: dict[str, Any] = {
        "run": run,
        "data": data,
        **found.metrics,
        "intervals": {name: list(interval) for name, interval in found.intervals.items()},
        "by_class": {name: _hits(hits) for name, hits in found.by_class.items()},
        "confusion": {"labels": list(found.confusion.labels), "counts": found.confusion.counts.tolist()},
        "unseen": found.unseen,
    }
    if isinstance(found, ClassificationReport):
        made["calibration"] = [asdict(one) for one in found.calibration.filled]
    else:
        made["invalid"] = found.invalid
    return made


def _hits(hits: "Hits") -> dict[str, float]:
    return {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}


def _print_labels(model: "SplitPredictor[Any]", split: str, report: Any) -> None:
    from seqloom.inspect.plots.classification import class_table, confusion_map, mistake_lines

    print_head(model, split)
    for line in metric_lines(report.metrics, report.intervals):
        print(line)
    console = wide_console()
    print()
    of, unit = report.counted
    by_class = {escaped(name): hits for name, hits in report.by_class.items()}
    console.print(class_table(by_class, of, _unit(model, split) if of == "class" else unit))
    confusion = replace(report.confusion, labels=tuple(map(escaped, report.confusion.labels)))
    spans = of == "span"
    if confusion.labels and not spans and len(confusion.labels) <= MAPPED:
        colour = console.color_system is not None and not console.no_color
        print("\nwhat is taken for what: a row is what it is, a column what it was called")
        console.print(confusion_map(confusion, width=console.width, colour=colour), end="", crop=False)
    if mistakes := mistake_lines(confusion, MISTAKES):
        print("\nmost frequent mistakes" + (" of words" if spans else ""))
        print("\n".join(f"  {line}" for line in mistakes))
    for line in _remarks(report):
        print(escaped(line))


def _remarks(report: Any) -> Iterator[str]:
    if report.unseen:
        of_texts, names = report.counted[1] == "texts", ", ".join(report.unseen)
        which = ("text has a label", "texts have labels") if of_texts else ("word has a tag", "words have tags")
        yield f"{counted(sum(report.unseen.values()), *which)} that training never had ({names}): counted as wrong"
    if invalid := getattr(report, "invalid", 0):
        were = counted(invalid, "sentence was", "sentences were")
        yield f"{were} given tags that are not valid, and read as leniently as usual"


def _print_label_mistakes(model: "LabelPredictor[Any]", split: str) -> None:
    """Print the mistakes it was surest of: often it is the label that is wrong."""
    wrong = [one for one in model.predict_split(split) if one.label != one.expected]
    wrong.sort(key=lambda one: -one.probability)
    if wrong:
        print("\nmistakes it was surest of")
    for one in wrong[:EXAMPLES]:
        expected, label = (escaped(one_line(part)) for part in (one.expected, one.label))
        print(f"  {expected}, called {label} ({one.probability:.1%}): {_short(one.text)}")
