"""Measure a trained model, or several as one, on a split of its data."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._label_reports import evaluate_answers, evaluate_labels
from seqloom.cli._options import DataDir, Device, JsonObject
from seqloom.cli._output import print_json
from seqloom.cli._reports import evaluate_forecasts, evaluate_translations, evaluate_word_vectors
from seqloom.core.errors import ChangedDataError, DataError, UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.predict.base import Predictor
    from seqloom.predict.language_model import LanguageModelPredictor

LABELS = {
    "loss": "loss, nats per token",
    "perplexity": "perplexity per token",
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
OF_TRANSLATORS = "--beam, --length-penalty, --source, --reference and --out are for translators"
OF_CLASSIFIERS = "--confusion and --reliability are for classifiers and taggers"


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="A run directory. Several are one model: see docs, --interpolate.")
    ],
    split: Annotated[str | None, typer.Option(help="dev, test or train of the run's own data. [default: dev]")] = None,
    text: Annotated[Path | None, typer.Option(help="Another text instead: a file, a .gz file, or a folder.")] = None,
    documents: Annotated[
        Literal["file", "line", "paragraph"] | None,
        typer.Option(help="With --text: what a document is. [default: as the run's own data says, else line]"),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Of a translator: hypotheses kept. [default: as its recipe says]")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Of a translator: 0 favours short, above 1 long. [default: its recipe's]")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Of a translator: other sentences instead, line by line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="With --source: their translations, line by line.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the translations here; of what classifies, tags, matches, chooses or answers, its answers."
        ),
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(help="Of a classifier or tagger: draw what is taken for what; .png or .svg.")
    ] = None,
    reliability: Annotated[
        Path | None, typer.Option(help="Of a classifier: draw whether it is as right as it is sure; .png or .svg.")
    ] = None,
    interpolate: Annotated[
        bool, typer.Option("--interpolate", help="Several language models as one: p = Σ λ_i p_i.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="With --interpolate: the λ_i, such as 0.6,0.4. [default: the best on dev]")
    ] = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Every metric of one split: `seqloom evaluate runs/lm-char-lstm --split test`."""
    _check_data(split, text, documents, source, reference)
    given = _weights(weights, interpolate, len(runs))
    options = {"beam": beam, "length_penalty": length_penalty}
    from seqloom.data.corpus import SPLITS, Counts
    from seqloom.data.files import use_data_folder
    from seqloom.predict.base import Predictor, SplitPredictor
    from seqloom.predict.classify import LabelPredictor
    from seqloom.predict.ensembles import ensemble
    from seqloom.predict.forecast import ForecasterPredictor
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load
    from seqloom.predict.tag import TaggerPredictor
    from seqloom.predict.translate import TranslatorPredictor
    from seqloom.predict.word_vectors import WordVectorsPredictor
    from seqloom.tasks import task_info

    split = split or "dev"
    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")
    models: list[Any] = [load(run, device, LanguageModelPredictor if interpolate else Predictor) for run in runs]
    other = None
    if len(runs) > 1 and not (interpolate or isinstance(models[0], TranslatorPredictor)):
        raise UsageError(
            "Evaluate one run at a time, or several language models as one with --interpolate. "
            "`seqloom compare` shows runs side by side."
        )
    if isinstance(models[0], SplitPredictor):
        _refuse_others(models[0], text, beam, length_penalty, source)
    if isinstance(models[0], LabelPredictor | TaggerPredictor) and not getattr(models[0], "scored", False):
        with use_data_folder(data_dir):
            evaluate_labels(models[0], split, confusion=confusion, reliability=reliability, out=out, as_json=as_json)
        return
    if isinstance(models[0], ForecasterPredictor) and text is None:
        evaluate_forecasts(models[0], split, as_json)
        return
    if confusion is not None or reliability is not None:
        raise UsageError(f"{OF_CLASSIFIERS}; {runs[0]} is {models[0].what}.")
    if isinstance(models[0], SplitPredictor):
        with use_data_folder(data_dir):
            evaluate_answers(models[0], split, out, as_json)
        return
    if isinstance(models[0], TranslatorPredictor):
        if text is not None:
            raise UsageError(f"{runs[0]} translates: give --source FILE and --reference FILE instead of --text.")
        files = None if source is None or reference is None else (source, reference)
        parts = [
            model if isinstance(model, TranslatorPredictor) else run for model, run in zip(models, runs, strict=True)
        ]
        model = models[0] if len(runs) == 1 else ensemble(parts, device)  # which says so if one is no translator
        with use_data_folder(data_dir), _or_other("--source FILE --reference FILE"):
            evaluate_translations(model, split, files, options, out, as_json)
        return
    if any(option is not None for option in (beam, length_penalty, source, out)):
        raise UsageError(f"{OF_TRANSLATORS}; {runs[0]} is {models[0].what}.")
    if isinstance(models[0], WordVectorsPredictor) and text is None:
        with use_data_folder(data_dir):
            evaluate_word_vectors(models[0], split, as_json)
        return
    if text is not None:
        from seqloom.data.corpora.text import read_documents

        other = read_documents(text, documents or _documents(models[0]))
    way = "--text FILE" if task_info(models[0].run.recipe["task"]).task.measures_text else ""
    with use_data_folder(data_dir), _or_other(way):
        metrics, mixture = _mixed(models, split, other, given) if interpolate else (_alone(models[0], split, other), {})
    if other is not None:
        measured, counts = str(text), asdict(Counts.of(other))
    else:
        data = models[0].run.data
        measured, counts = f"{data['corpus']}, {split}", data["counts"][split]
    names = [str(run) for run in runs]
    if as_json:
        named = {"runs": names} if interpolate else {"run": names[0]}
        print_json({**named, "data": measured, **counts, **metrics, **mixture})
        return
    print(f"{' + '.join(names)} on {measured}: {_sizes(counts)}")
    labels = LABELS if "perplexity" in metrics else {**LABELS, "loss": "loss"}
    for name, value in metrics.items():
        print(f"  {labels.get(name, name):22} {value:{'.4f' if abs(value) < 1e6 else '.3e'}}")
    if "detection_loss" in metrics:
        weight = models[0].run.recipe["model"].get("detection", 1)
        print(f"  loss = {LABELS['masked_loss']} + {weight:g} · {LABELS['detection_loss']}")
    if interpolate:
        _print_parts(runs, mixture)


@contextmanager
def _or_other(way: str) -> Iterator[None]:
    """Where a run's own data has changed, say which options still measure it, if any do."""
    try:
        yield
    except ChangedDataError as error:
        raise (DataError(f"{error} Other data can be measured all the same: {way}.") if way else error) from None


def _documents(model: "Predictor[Any]") -> Any:
    """What a document is in the run's own data, if that can be said of any text."""
    found = (model.run.recipe.get("data") or {}).get("documents")
    return found if found in ("file", "paragraph") else "line"


def _check_data(
    split: str | None, text: Path | None, documents: str | None, source: Path | None, reference: Path | None
) -> None:
    """What is measured must be one thing, wholly named."""
    if text is not None and split is not None:
        raise UsageError("Evaluate either a --split of the run's own data or another --text, not both.")
    if documents is not None and text is None:
        raise UsageError("--documents says how to read --text FILE; the run's own splits are read as its recipe says.")
    if (source is None) != (reference is None):
        raise UsageError("--source FILE and --reference FILE belong together: sentences, and their translations.")
    if source is not None and split is not None:
        raise UsageError("Evaluate either a --split of the run's own data or other sentences, --source, not both.")


def _refuse_others(model: "Predictor[Any]", text: Path | None, *of_translators: Any) -> None:
    """What is not for classifiers and taggers."""
    if text is not None:
        model.task([])  # says so
    if any(option is not None for option in of_translators):
        raise UsageError(
            f"--beam, --length-penalty, --source and --reference are for translators; {model.name} is {model.what}."
        )


def _sizes(counts: dict[str, int]) -> str:
    """How much was measured: text by its words and characters, other data by whatever it counts."""
    if "documents" in counts:
        return f"{counts['words']:,} words, {counts['characters']:,} characters (ends of documents included)"
    return ", ".join(f"{count:,} {unit}" for unit, count in counts.items())


def _weights(words: str | None, interpolate: bool, runs: int) -> list[float] | None:
    """The weights given, if any; what does not go together is refused."""
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


def _alone(model: "Predictor[Any]", split: str, documents: list[str] | None) -> dict[str, float]:
    return model.evaluate(split) if documents is None else model.evaluate_documents(documents)


def _mixed(
    models: list["LanguageModelPredictor"], split: str, documents: list[str] | None, weights: list[float] | None
) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics of the mixture, and what it is made of: the weights, and what each run can do alone."""
    from seqloom.predict.ensembles import interpolate

    mixture = interpolate(models, weights)
    metrics, *alone = mixture.measure(split, documents)
    chosen = "given" if weights is not None else "dev"
    return metrics, {"weights": mixture.weights, "weights_from": chosen, "alone": alone}


def _print_parts(runs: list[Path], mixture: dict[str, Any]) -> None:
    chosen = "chosen on dev" if mixture["weights_from"] == "dev" else "as given"
    print(f"  weights, {chosen}, and perplexity per token of each alone:")
    for run, weight, alone in zip(runs, mixture["weights"], mixture["alone"], strict=True):
        print(f"    {weight:.4f}  {alone['perplexity']:12.4f}  {run}")
