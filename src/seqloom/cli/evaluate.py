"""Measure a trained model, or several as one, on a split of its data."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import DataDir, Device, JsonObject
from seqloom.cli._output import format_sizes, print_json
from seqloom.cli._reports import (
    LABELS,
    EvaluateOptions,
    print_metrics,
    report_answers,
    report_forecasts,
    report_labels,
    report_translations,
    report_word_vectors,
)
from seqloom.core.errors import ChangedDataError, DataError, UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.predict.base import Predictor

Documents = Annotated[
    Literal["file", "line", "paragraph"] | None,
    typer.Option(help="With --text: what a document is. [default: as the run's own data says, else line]"),
]
AnswersOut = Annotated[
    Path | None,
    typer.Option(
        help="Write the translations here; of what classifies, tags, matches, chooses or answers, its answers."
    ),
]
Confusion = Annotated[
    Path | None, typer.Option(help="Of a classifier or tagger: draw what is taken for what; .png or .svg.")
]
Reliability = Annotated[
    Path | None, typer.Option(help="Of a classifier: draw whether it is as right as it is sure; .png or .svg.")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Of a translator: 0 favours short, above 1 long. [default: its recipe's]")
]
Weights = Annotated[
    str | None, typer.Option(help="With --interpolate: the λ_i, such as 0.6,0.4. [default: the best on dev]")
]
Interpolate = Annotated[bool, typer.Option("--interpolate", help="Several language models as one: p = Σ λ_i p_i.")]


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="A run directory. Several are one model: see docs, --interpolate.")
    ],
    split: Annotated[str | None, typer.Option(help="dev, test or train of the run's own data. [default: dev]")] = None,
    text: Annotated[Path | None, typer.Option(help="Another text instead: a file, a .gz file, or a folder.")] = None,
    documents: Documents = None,
    beam: Annotated[
        int | None, typer.Option(help="Of a translator: hypotheses kept. [default: as its recipe says]")
    ] = None,
    length_penalty: LengthPenalty = None,
    source: Annotated[Path | None, typer.Option(help="Of a translator: other sentences instead, line by line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="With --source: their translations, line by line.")] = None,
    out: AnswersOut = None,
    confusion: Confusion = None,
    reliability: Reliability = None,
    interpolate: Interpolate = False,
    weights: Weights = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Every metric of one split: `seqloom evaluate runs/lm-char-lstm --split test`."""
    if text is not None and split is not None:
        raise UsageError("Evaluate either a --split of the run's own data or another --text, not both.")
    if documents is not None and text is None:
        raise UsageError("--documents says how to read --text FILE; the run's own splits are read as its recipe says.")
    if (source is None) != (reference is None):
        raise UsageError("--source FILE and --reference FILE belong together: sentences, and their translations.")
    if source is not None and split is not None:
        raise UsageError("Evaluate either a --split of the run's own data or other sentences, --source, not both.")
    mixture_weights = parse_weights(weights, interpolate, len(runs))
    from seqloom.data.files import use_data_folder

    files = None if source is None or reference is None else (source, reference)
    asked = EvaluateOptions(
        split or "dev", text, documents, beam, length_penalty, files, out, confusion, reliability, as_json
    )
    models = open_models(runs, asked, interpolate, device)
    with use_data_folder(data_dir):
        if interpolate:
            report_metrics(models, asked, mixture_weights)
        else:
            report(models, asked)


def parse_weights(words: str | None, interpolate: bool, runs: int) -> list[float] | None:
    """Return the weights of a mixture, if any; what does not go together is refused."""
    if interpolate and runs < 2:
        raise UsageError("--interpolate makes one model of two or more runs; got one run.")
    if words is None:
        return None
    if not interpolate:
        raise UsageError("--weights are for several language models as one: add --interpolate and another run.")
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise UsageError(f"--weights must be numbers with commas between, such as 0.6,0.4; got {words!r}.") from None


def open_models(runs: Sequence[Path], asked: EvaluateOptions, interpolate: bool, device: str) -> "list[Predictor[Any]]":
    """Open the runs to evaluate: one, or several that are one model."""
    from seqloom.data.corpus import SPLITS
    from seqloom.predict.base import Predictor
    from seqloom.predict.ensembles import ensemble
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    if asked.split not in SPLITS:
        raise UsageError(f"There is no split {asked.split!r}: {did_you_mean(asked.split, SPLITS)}.")
    models = [load(run, device, LanguageModelPredictor if interpolate else Predictor) for run in runs]
    if len(runs) == 1 or interpolate:
        return models
    if not isinstance(models[0], TranslatorPredictor):
        raise UsageError(
            "Evaluate one run at a time, or several language models as one with --interpolate. "
            "`seqloom compare` shows runs side by side."
        )
    parts = [model if isinstance(model, TranslatorPredictor) else run for model, run in zip(models, runs, strict=True)]
    return [ensemble(parts, device)]  # which says so if one is no translator


def report(models: "list[Predictor[Any]]", asked: EvaluateOptions) -> None:
    """Show the report of a model, by the kind of its predictor; options of other kinds are refused."""
    from seqloom.predict.base import SplitPredictor
    from seqloom.predict.classify import LabelPredictor
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.matching import PairPredictor
    from seqloom.predict.tag import TaggerPredictor
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.predict.word_vectors import WordVectorsPredictor

    (model,) = models
    searches = any(option is not None for option in (asked.beam, asked.length_penalty, asked.files))
    what = f"{model.name} is {model.what}."
    if isinstance(model, SplitPredictor):
        if asked.text is not None:
            model.task([])  # says so
        if searches:
            raise UsageError(f"--beam, --length-penalty, --source and --reference are for translators; {what}")
    if isinstance(model, LabelPredictor | TaggerPredictor) and not (isinstance(model, PairPredictor) and model.scored):
        report_labels(model, asked)
        return
    if asked.confusion is not None or asked.reliability is not None:
        raise UsageError(f"--confusion and --reliability are for classifiers and taggers; {what}")
    if isinstance(model, SplitPredictor):
        report_answers(model, asked)
    elif isinstance(model, TranslatorPredictor):
        if asked.text is not None:
            raise UsageError(f"{model.name} translates: give --source FILE and --reference FILE instead of --text.")
        with suggest_options("--source FILE --reference FILE"):
            report_translations(model, asked)
    elif searches or asked.out is not None:
        raise UsageError(f"--beam, --length-penalty, --source, --reference and --out are for translators; {what}")
    elif isinstance(model, ForecasterPredictor) and asked.text is None:
        report_forecasts(model, asked)
    elif isinstance(model, WordVectorsPredictor) and asked.text is None:
        report_word_vectors(model, asked)
    else:
        report_metrics(models, asked)


def report_metrics(models: list[Any], asked: EvaluateOptions, weights: list[float] | None = None) -> None:
    """Show the metrics of a model, or of a mixture of several, on a split or on another text."""
    from seqloom.data.corpora.text import read_documents
    from seqloom.data.corpus import TextCounts
    from seqloom.predict.ensembles import interpolate
    from seqloom.tasks import task_info

    first, mixture = models[0], {}
    run, other = first.run, None
    if asked.text is not None:
        own = (run.recipe.get("data") or {}).get("documents")
        other = read_documents(asked.text, asked.documents or (own if own in ("file", "paragraph") else "line"))
    with suggest_options("--text FILE" if task_info(run.recipe["task"]).task.measures_text else ""):
        if len(models) > 1:
            mixed = interpolate(models, weights)
            metrics, *alone = mixed.measure(asked.split, other)
            chosen = "dev" if weights is None else "given"
            mixture = {"weights": mixed.weights, "weights_from": chosen, "alone": alone}
        else:
            metrics = first.evaluate(asked.split) if other is None else first.evaluate_documents(other)
    if other is not None:
        data, counts = str(asked.text), asdict(TextCounts.of(other))
    else:
        data, counts = f"{run.data['corpus']}, {asked.split}", run.data["counts"][asked.split]
    names = [model.name for model in models]
    if asked.as_json:
        named = {"runs": names} if mixture else {"run": names[0]}
        print_json({**named, "data": data, **counts, **metrics, **mixture})
        return
    sizes = format_sizes(counts)
    if "documents" in counts:
        sizes = f"{counts['words']:,} words, {counts['characters']:,} characters (ends of documents included)"
    print(f"{' + '.join(names)} on {data}: {sizes}")
    print_metrics(metrics, loss="loss, nats per token" if "perplexity" in metrics else "loss", width=0)
    if "detection_loss" in metrics:
        weight = run.recipe["model"].get("detection_weight", 1)
        print(f"  loss = {LABELS['masked_loss']} + {weight:g} · {LABELS['detection_loss']}")
    if mixture:
        print(f"  weights, {'as given' if weights else 'chosen on dev'}, and perplexity per token of each alone:")
        for name, weight, part in zip(names, mixed.weights, alone, strict=True):
            print(f"    {weight:.4f}  {part['perplexity']:12.4f}  {name}")


@contextmanager
def suggest_options(options: str) -> Iterator[None]:
    """Where a run's own data has changed, say which options still measure it, if any do."""
    try:
        yield
    except ChangedDataError as error:
        if not options:
            raise
        raise DataError(f"{error} Other data can be measured all the same: {options}.") from None
