"""What `evaluate` shows of each kind of model."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from seqloom.cli._options import drop_unset
from seqloom.cli._output import (
    check_answers,
    check_out,
    escape_controls,
    format_metric,
    format_sizes,
    print_json,
    print_notes,
    wide_console,
    write_answers,
    write_picture,
)
from seqloom.core.errors import UsageError
from seqloom.core.words import counted, one_line, shorten

if TYPE_CHECKING:
    from seqloom.evaluate.classification import ClassificationReport
    from seqloom.evaluate.intervals import Interval
    from seqloom.evaluate.tagging import TagReport
    from seqloom.evaluate.translation import TranslationReport
    from seqloom.predict.base import Prediction, SplitPredictor
    from seqloom.predict.classify import LabelPredictor
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.tag import TaggerPredictor
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.predict.word_vectors import WordVectorsPredictor

# Metrics in words, in the order in which reports of translations, labels and answers show them.
LABELS = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lowercased",
    "chrf": "chrF",
    "exact_match": "lines exactly right",
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
    "loss": "loss",
    "perplexity": "perplexity per token",
    "alignment_error_rate": "alignment error rate",
    "alignment_error_rate_diagonal": "  of the diagonal",
    "alignment_error_rate_chance": "  by chance",
    "alignment_accuracy": "links in their slot",
    "alignment_slots": "slots wholly right",
    "copy_bleu": "BLEU of copying",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "rmse": "root mean square error",
    "mean_error": "mean error",
    "answer_f1": "answer F1",
    "answer_exact": "answers exact",
    "word_perplexity": "perplexity per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
    "unknown_rate": "share read as <unk>",
    "text_kept": "documents kept whole",
    "zero_shot": "recalled, never told",
    "one_shot": "recalled, told once",
    "few_shot": "  told 2 or 3 times",
    "many_shot": "  told more often",
    "exact": "answers word for word",
    "many_to_one": "states as tags, words",
    "v_measure": "V-measure of states",
    "one_state": "  of one Gaussian",
    "masked_loss": "of hidden tokens",
    "masked_perplexity": "  their perplexity",
    "masked_accuracy": "  share told right",
    "forward_perplexity": "  from the left",
    "backward_perplexity": "  from the right",
    "detection_loss": "of replaced or not",
    "replaced_rate": "share replaced",
    "replaced_accuracy": "replaced or not, right",
    "replaced_precision": "precision of replaced",
    "replaced_recall": "recall of replaced",
    "replaced_f1": "F1 of replaced",
    "next_loss": "of pairs",
    "next_accuracy": "pairs told right",
    "target_accuracy": "share told right",
    "hidden_accuracy": "  of hidden tokens",
    "exact_spans": "spans told exactly",
    "exact_texts": "texts told exactly",
    "success": "share answered right",
    "blind_loss": "loss of a blind guess",
    "blind_success": "its share right",
    "rmse_observed": "error of observations",
    "rmse_filtered": "  filtered",
    "rmse_smoothed": "  smoothed",
    "gap_filtered": "in gaps, filtered",
    "gap_smoothed": "  smoothed",
    "within_filtered": "in 95 %, filtered",
    "within_smoothed": "  smoothed",
    "next_rmse": "error of the next",
    "next_naive": "  as the last one",
}
ENSEMBLE_METRICS = {"bleu": "BLEU", "chrf": "chrF", "exact_match": "exact", "loss": "loss"}
WORD_METRICS = {
    "loss": "loss, per prediction",
    "neighbours": "neighbours told from noise",
    "unknown_rate": "share without a vector",
}
JUDGED_METRICS = {
    "wordsim353": ("WordSim-353, Spearman", "pairs"),
    "simlex999": ("SimLex-999, Spearman", "pairs"),
    "analogies": ("analogies solved", "questions"),
    "analogies_semantic": ("  semantic", "questions"),
    "analogies_syntactic": ("  syntactic", "questions"),
}
FORECAST_METRICS = {
    "mase": "MASE",
    "smape": "sMAPE, %",
    "crps": "CRPS, in the unit of MASE",
    "coverage_80": "in the 80 % interval",
    "coverage_95": "in the 95 % interval",
}
FORECAST_STEPS = 12  # ahead that are listed one by one
EXAMPLES = 3  # mistakes that are shown
EXAMPLE_LETTERS = 100
MAPPED_CLASSES = 25  # of more only the mistakes are listed
MISTAKES = 10  # pairs of classes
Row = tuple[float, str, str, str]  # how wrong it is, what is right, what was predicted, what was asked


@dataclass(frozen=True)
class EvaluateOptions:
    """What `seqloom evaluate` was asked for."""

    split: str
    text: Path | None
    documents: Literal["file", "line", "paragraph"] | None
    beam: int | None
    length_penalty: float | None
    files: tuple[Path, Path] | None  # sources and references
    out: Path | None
    confusion: Path | None
    reliability: Path | None
    as_json: bool


def print_metrics(
    metrics: Mapping[str, float],
    suffixes: Mapping[str, str] | None = None,
    *,
    loss: str,
    width: int = 9,
    ordered: bool = False,
) -> None:
    """Print a line for each metric, with what is known of it besides; `ordered` sorts them by `LABELS`."""
    names = [*(name for name in LABELS if name in metrics), *(name for name in metrics if name not in LABELS)]
    for name in names if ordered else metrics:
        label = loss if name == "loss" else LABELS.get(name, name)
        print(f"  {label:22} {format_value(name, metrics[name]):>{width}}{(suffixes or {}).get(name, '')}")


def format_value(name: str, value: float) -> str:
    """Return a metric as reports show it."""
    return f"{100 * value:.2f} %" if name == "exact_match" else format_metric(name, value)


def shorten_example(text: str) -> str:
    """Return the beginning of a text on one line, safe for a terminal."""
    return shorten(escape_controls(one_line(text)), EXAMPLE_LETTERS)


# --- labels, scores, choices and answers ----------------------------------------------------------------------------


def print_split_metrics(model: "SplitPredictor[Any]", split: str, report: Any) -> None:
    """Print what was measured, and each metric with its interval."""
    intervals: Mapping[str, Interval] = report.intervals
    counts = {unit: count for unit, count in model.run.data["counts"][split].items() if unit != "characters"}
    print(f"{model.name} on {model.run.data['corpus']}, {split}: {format_sizes(counts)}")
    suffixes = {name: f"   95 %: {each.low:.4f} to {each.high:.4f}" for name, each in intervals.items()}
    loss = "loss" if "pearson" in report.metrics else "loss, nats"  # of scores, no nats
    print_metrics(report.metrics, suffixes, loss=loss, ordered=True)


def report_labels(model: "LabelPredictor[Prediction] | TaggerPredictor", asked: EvaluateOptions) -> None:
    """Show all metrics of a split of a classifier or tagger, with intervals, and what was taken for what."""
    from seqloom.evaluate.classification import ClassificationReport
    from seqloom.inspect.plots.figures import class_name, fonts_for
    from seqloom.inspect.plots.heatmaps import draw_confusion
    from seqloom.inspect.plots.measurements import draw_reliability
    from seqloom.predict.classify import ClassifierPredictor
    from seqloom.predict.tag import TaggerPredictor

    split, out = asked.split, asked.out
    for plot in (asked.confusion, asked.reliability):
        check_out(plot)
    check_answers(out, "answers")
    if asked.reliability is not None and not isinstance(model, ClassifierPredictor):
        raise UsageError(f"--reliability is for classifiers; {model.name} is {model.what}.")
    report: ClassificationReport | TagReport = model.report(split)
    data = f"{model.run.data['corpus']}, {split}"
    title, counts = f"{model.name} on {data}", model.run.data["counts"][split]
    unit = next((unit for unit in ("pairs", "series") if unit in counts), "texts")  # what has a class
    if asked.confusion is not None:
        of, each = ("tag", "words") if isinstance(model, TaggerPredictor) else ("class", unit)
        complaint = fonts_for([*map(class_name, report.confusion.labels), title]).complaint()
        write_picture(asked.confusion, draw_confusion(report.confusion, [title], of=of, unit=each), True, complaint)
    if asked.reliability is not None and isinstance(report, ClassificationReport):
        write_picture(asked.reliability, draw_reliability(report.calibration, title))
    if out is not None:
        write_answers(
            out,
            conll_lines(model, split) if isinstance(model, TaggerPredictor) else label_rows(model, split),
            "answers",
        )
    if asked.as_json:
        print_json({"run": model.name, "data": data, **label_json(report)})
        return
    print_split_metrics(model, split, report)
    print_classes(report, unit)
    if isinstance(model, ClassifierPredictor):
        wrong = [one for one in model.predict_split(split) if one.label != one.expected]
        wrong.sort(key=lambda one: -one.probability)  # where it was surest, often the label is wrong
        if wrong:
            print("\nmistakes it was surest of")
        for one in wrong[:EXAMPLES]:
            expected, label = (escape_controls(one_line(part)) for part in (one.expected, one.label))
            print(f"  {expected}, called {label} ({one.probability:.1%}): {shorten_example(one.text)}")


def label_json(report: "ClassificationReport | TagReport") -> dict[str, object]:
    """Return the report of a classifier or tagger as values that JSON has."""
    from seqloom.evaluate.classification import ClassificationReport

    if isinstance(report, ClassificationReport):
        more: dict[str, object] = {"calibration": report.calibration.filled}
    else:
        more = {"invalid": report.invalid}
    by_class = {
        name: {**asdict(hits), "precision": hits.precision, "recall": hits.recall, "f1": hits.f1}
        for name, hits in report.by_class.items()
    }
    found = {"intervals": report.intervals, "by_class": by_class, "confusion": report.confusion}
    return {**report.metrics, **found, "unseen": report.unseen, **more}


def label_rows(model: "LabelPredictor[Prediction]", split: str) -> Iterator[str]:
    """Yield a table: the label of each text, the predicted one, its probability, the text."""
    yield "expected\tpredicted\tprobability\ttext\n"
    for one in model.predict_split(split):
        yield f"{one_line(one.expected)}\t{one_line(one.label)}\t{one.probability:.4f}\t{one_line(one.text)}\n"


def conll_lines(model: "TaggerPredictor", split: str) -> Iterator[str]:
    """Yield CoNLL: a word, its tag, the predicted tag; a blank line after each sentence."""
    for sentence, predicted in model.answers(split):
        rows = zip(sentence.words, sentence.tags, predicted, strict=True)
        yield "".join(f"{word}\t{tag}\t{other}\n" for word, tag, other in rows) + "\n"


def print_classes(report: "ClassificationReport | TagReport", unit: str) -> None:
    """Print the table of classes, the confusion matrix, frequent mistakes and remarks."""
    from seqloom.evaluate.tagging import TagReport
    from seqloom.inspect.plots.terminal import class_table, confusion_map, mistake_lines

    console = wide_console()
    print()
    of, each = report.counted
    by_class = {escape_controls(name): hits for name, hits in report.by_class.items()}
    console.print(class_table(by_class, of, unit if of == "class" else each))
    confusion = replace(report.confusion, labels=tuple(map(escape_controls, report.confusion.labels)))
    if confusion.labels and of != "span" and len(confusion.labels) <= MAPPED_CLASSES:
        colour = console.color_system is not None and not console.no_color
        print("\nwhat is taken for what: a row is what it is, a column what it was called")
        console.print(confusion_map(confusion, width=console.width, colour=colour), end="", crop=False)
    if mistakes := mistake_lines(confusion, MISTAKES):
        print("\nmost frequent mistakes" + (" of words" if of == "span" else ""))
        print("\n".join(f"  {line}" for line in mistakes))
    if report.unseen:
        which = ("text has a label", "texts have labels") if each == "texts" else ("word has a tag", "words have tags")
        unseen, names = counted(sum(report.unseen.values()), *which), escape_controls(", ".join(report.unseen))
        print(f"{unseen} that training never had ({names}): counted as wrong")
    if isinstance(report, TagReport) and report.invalid:
        were = counted(report.invalid, "sentence was", "sentences were")
        print(f"{were} given tags that are not valid, and read as leniently as usual")


def report_answers(model: "SplitPredictor[Prediction]", asked: EvaluateOptions) -> None:
    """Show all metrics of a split of a model of scores, choices or answers, with intervals, and the worst mistakes."""
    split, out = asked.split, asked.out
    check_answers(out, "answers")
    report = model.report(split)
    if out is not None:
        rows = ("\t".join(map(one_line, row[1:])) + "\n" for row in answer_rows(model, split))
        write_answers(out, ["expected\tpredicted\texample\n", *rows], "answers")
    if asked.as_json:
        data = f"{model.run.data['corpus']}, {split}"
        print_json({"run": model.name, "data": data, **report.metrics, "intervals": report.intervals})
        return
    print_split_metrics(model, split, report)
    wrong = sorted((row for row in answer_rows(model, split) if row[0] > 0), key=lambda row: -row[0])
    if wrong:
        print("\nworst mistakes")
    for row in wrong[:EXAMPLES]:
        right, predicted, example = map(shorten_example, row[1:])
        print(f"  {example}\n    {right}; it said {predicted or 'nothing'}")


def answer_rows(model: "SplitPredictor[Prediction]", split: str) -> Iterator[Row]:
    """Yield what was asked of a model of scores, choices or answers in a split, with what it predicted."""
    from seqloom.data.examples import scores_of
    from seqloom.evaluate.answers import f1
    from seqloom.predict.matching import AnswerPredictor, ChoicePredictor, PairPredictor

    corpus = model.own_task.corpus
    examples = corpus.split(split)
    if isinstance(model, PairPredictor):
        for pair, right, score in zip(examples, scores_of(corpus, split), model.outputs(split), strict=True):
            yield abs(right - score), pair.label, f"{score:.2f}", f"{pair.first} · {pair.second}"
    elif isinstance(model, ChoicePredictor):  # wrong is how much likelier the chosen option is than the right one
        for choice, log_probs in zip(examples, model.outputs(split), strict=True):
            best = max(range(len(log_probs)), key=log_probs.__getitem__)
            wrong = log_probs[best] - log_probs[choice.answer]
            yield wrong, choice.options[choice.answer], choice.options[best], choice.text
    elif isinstance(model, AnswerPredictor):
        for one, text in zip(examples, model.outputs(split)[0], strict=True):
            yield 1 - max(f1(text, answer.text) for answer in one.answers), one.answer.text, text, one.question


# --- translations ---------------------------------------------------------------------------------------------------


def report_translations(model: "TranslatorPredictor", asked: EvaluateOptions) -> None:
    """Translate a split of the run's own data, or the first of two files, and compare with what should have come.

    Of an ensemble also what each of its parts can do alone.
    """
    from seqloom.data.files import read_parallel
    from seqloom.predict.ensembles import TranslatorEnsemble

    check_answers(asked.out, "translations")
    search = drop_unset(beam=asked.beam, length_penalty=asked.length_penalty)
    parts = model.parts if isinstance(model, TranslatorEnsemble) else []
    run = (parts[0] if parts else model).run
    if asked.files is None:
        report, *alone = [each.report(asked.split, **search) for each in (model, *parts)]
        data = f"{run.data['corpus']}, {asked.split}"
    else:
        pairs, data = read_parallel(*asked.files), " and ".join(map(str, asked.files))
        report, *alone = [each.report_pairs(*pairs, **search) for each in (model, *parts)]
    if asked.out is not None:
        lines = (text.replace("\r", " ").replace("\n", " ") for text in report.hypotheses)
        write_answers(asked.out, (f"{line}\n" for line in lines), "translations")
    print_notes(f"{note}." for note in report.notes)
    each_alone = list(zip([part.name for part in parts], alone, strict=True))
    if asked.as_json:
        named = {"runs": [part.name for part in parts]} if parts else {"run": model.name}
        rows = [{"run": name, **one.metrics, "decoding": one.decoding} for name, one in each_alone]
        print_json({**named, "data": data, **translation_json(report), **({"alone": rows} if rows else {})})
        return
    languages = [run.data.get(side) or "" for side in ("source", "target")]
    print_translations(f"{model.name} on {data}", f", {' to '.join(languages)}" if all(languages) else "", report)
    if parts:
        heads = "".join(f"  {head:>9}" for head in ENSEMBLE_METRICS.values())
        print(f"  Each alone, and together:{heads}")
    for name, one in [*each_alone, ("together", report)] if parts else ():
        values = "".join(f"  {format_value(metric, one.metrics[metric]):>9}" for metric in ENSEMBLE_METRICS)
        print(f"    {name:23}{values}" + (f"   {one.decoding}" if one.decoding != report.decoding else ""))


def translation_json(report: "TranslationReport") -> dict[str, object]:
    """Return the report of a translator as values that JSON has."""
    return {
        "pairs": len(report.lines),
        **report.metrics,
        "signatures": report.signatures,
        "decoding": report.decoding,
        "length_unit": report.unit,
        "by_length": report.by_length,
        "examples": report.examples(),
    }


def print_translations(title: str, languages: str, report: "TranslationReport") -> None:
    """Print metrics, BLEU by length, and translations that differ from their reference."""
    blank = sum(not (line.source.strip() or line.reference.strip()) for line in report.lines)
    without = f", {blank:,} of them blank" if blank else ""
    print(f"{title}: {counted(len(report.lines), 'pair')}{without}{languages}; {report.decoding}")
    signatures = {name: f"   {signature}" for name, signature in report.signatures.items()}
    print_metrics(report.metrics, signatures, loss="loss, nats per token", ordered=True)
    print(f"  BLEU by length of the source:\n    {report.unit:>12}  {'pairs':>7}  {'BLEU':>6}")
    for row in report.by_length:
        lengths = f"{row.low}" if row.low == row.high else f"{row.low} to {row.high}"
        print(f"    {lengths:>12}  {row.pairs:7,}  {row.bleu:6.2f}")
    wrong = [line for line in report.examples(EXAMPLES) if line.hypothesis.split() != line.reference.split()]
    if wrong:
        print("  Some that differ from their reference (source, reference, translation):")
        texts = [map(escape_controls, (line.source, line.reference, line.hypothesis)) for line in wrong]
        print("\n\n".join("\n".join(f"    {text}" for text in each) for each in texts))


# --- word vectors and forecasts -------------------------------------------------------------------------------------


def report_word_vectors(model: "WordVectorsPredictor", asked: EvaluateOptions) -> None:
    """Show metrics on a split of the text, then those beside people's judgements, each with how much it covers."""
    report = model.report(asked.split)
    data = f"{model.run.data['corpus']}, {asked.split}" if report.held_out else "no text of its own"
    if asked.as_json:
        keys = ("value", "interval", "evaluated", "total", "coverage")
        judged = {name: {key: getattr(one, key) for key in keys} for name, one in report.judged.items()}
        print_json({"run": model.name, "data": data, **report.held_out, **judged, "missing": report.missing})
        return
    print(f"{model.name} on {data}: {len(model.space.words):,} words have vectors")
    for name, value in report.held_out.items():
        print(f"  {WORD_METRICS[name]:28} {value:9.4f}")
    for name, (label, unit) in JUDGED_METRICS.items():
        if (one := report.judged.get(name)) is None:
            continue
        covered = f"({one.evaluated:,} of {one.total:,} {unit}, {one.coverage:.1%})"
        if one.value is None or one.interval is None:
            print(f"  {label:28}         –  too few of its words have vectors {covered}")
        else:
            interval = f"{one.interval.low:.4f} to {one.interval.high:.4f}"
            print(f"  {label:28} {one.value:9.4f}  {interval}  {covered}")
    if report.missing:
        missing = ", ".join(report.missing)
        print_notes([f"not measured, since they are not in word_vectors_eval of SEQLOOM_DATA: {missing}"])


def report_forecasts(model: "ForecasterPredictor", asked: EvaluateOptions) -> None:
    """Show all metrics of a split, with those of the seasonal naive forecast beside them."""
    report = model.report(asked.split)
    data = f"{model.run.data['corpus']}, {asked.split}"
    if asked.as_json:
        steps = {"by_step": report.by_step, "naive_by_step": report.naive_by_step, "by_variable": report.by_variable}
        print_json({"run": model.name, "data": data, **report.to_dict(), **steps})
        return

    def print_row(label: object, *values: float) -> None:
        print(f"  {label!s:28}" + "".join(f"{value:>10.4f}" for value in values))

    metrics = report.metrics
    print(f"{model.name} on {data}: {report.horizon} steps ahead, from {counted(report.origins, 'origin')}")
    print(f"  {'':28}{'model':>10}{'naive':>10}")
    for name, label in FORECAST_METRICS.items():
        print_row(label, metrics[name], metrics[f"naive_{name}"])
    print_row("loss, nats of the next value", metrics["loss"])
    print("\nMASE by steps ahead")
    every = max(1, -(-len(report.by_step) // FORECAST_STEPS))  # of a long horizon a few steps
    for step in range(every - 1, len(report.by_step), every):
        print_row(step + 1, report.by_step[step], report.naive_by_step[step])
    if len(report.by_variable) > 1:
        print("\nMASE of each variable")
        for column, values in report.by_variable.items():
            print_row(column[:26], values["mase"], values["naive_mase"])
    season = "one step" if model.season == 1 else f"a season, {model.season} steps,"
    print(f"\nnaive: what was there {season} ago")
