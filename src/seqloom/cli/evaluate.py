"""`seqloom evaluate`: measure a trained model, or several models combined."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._options import DataDir, Device, JsonObject, drop_unset
from seqloom.cli._output import (
    check_new_output,
    check_plot_path,
    open_wide_console,
    print_json,
    print_notes,
    write_output,
    write_plot,
)
from seqloom.core.errors import ChangedDataError, DataError, UsageError
from seqloom.core.words import did_you_mean

if TYPE_CHECKING:
    from seqloom.predict.base import AnyPredictor

Documents = Annotated[
    Literal["file", "line", "paragraph"] | None,
    typer.Option(help="With --text: the unit of a document. [default: as in training, else line]"),
]
AnswersOut = Annotated[
    Path | None,
    typer.Option(help="Write the predictions to this file."),
]
Confusion = Annotated[
    Path | None, typer.Option(help="Classifiers, taggers: plot the confusion matrix to this .png or .svg file.")
]
Reliability = Annotated[
    Path | None, typer.Option(help="Classifiers: plot the reliability diagram to this .png or .svg file.")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Translators: exponent of the length penalty. [default: the recipe's]")
]
Weights = Annotated[
    str | None, typer.Option(help="With --interpolate: the λ_i, such as 0.6,0.4. [default: optimized on dev]")
]
Interpolate = Annotated[bool, typer.Option("--interpolate", help="Interpolate several language models: p = Σ λ_i p_i.")]


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run directory, or several for an ensemble or --interpolate, then optionally a file of examples "
            "instead of a split."
        ),
    ],
    split: Annotated[str | None, typer.Option(help="The split to evaluate: dev, test or train. [default: dev]")] = None,
    text: Annotated[
        Path | None, typer.Option(help="Evaluate this text instead of a split: a file, a .gz file or a folder.")
    ] = None,
    documents: Documents = None,
    beam: Annotated[int | None, typer.Option(help="Translators: beam size. [default: the recipe's]")] = None,
    length_penalty: LengthPenalty = None,
    source: Annotated[
        Path | None, typer.Option(help="Translators: evaluate the sentences of this file instead of a split.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="With --source: the file of reference translations.")] = None,
    out: AnswersOut = None,
    confusion: Confusion = None,
    reliability: Reliability = None,
    interpolate: Interpolate = False,
    weights: Weights = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Evaluate a run on a split or a file: `seqloom evaluate runs/X --split test` or `seqloom evaluate runs/X new.csv`.

    A file is read with the columns of the recipe, or recognized as `seqloom init` does.
    """
    files = [path for path in runs[1:] if is_data(path)]
    runs = [path for path in runs if path not in files]
    if files and (text is not None or source is not None or split is not None or interpolate or len(runs) != 1):
        raise UsageError("A file requires a single run; leave out --split, --text, --source and --interpolate.")
    if len(files) > 1:
        raise UsageError(f"Name one file to evaluate; got {', '.join(map(str, files))}.")
    if text is not None and split is not None:
        raise UsageError("--split and --text exclude each other: evaluate a split or another text.")
    if documents is not None and text is None:
        raise UsageError("--documents requires --text FILE; the splits of a run are read as in its recipe.")
    if (source is None) != (reference is None):
        raise UsageError("--source FILE and --reference FILE must be given together: sentences and their translations.")
    if source is not None and split is not None:
        raise UsageError("--split and --source exclude each other: evaluate a split or other sentences.")
    mixture_weights = parse_weights(weights, interpolate, len(runs))
    from seqloom.data.files import use_data_folder
    from seqloom.predict.ensembles import interpolate as mix
    from seqloom.predict.evaluation import EvaluationOptions, MetricsEvaluation
    from seqloom.tasks import task_info

    pairs = None if source is None or reference is None else (source, reference)
    search = drop_unset(beam=beam, length_penalty=length_penalty)
    options = EvaluationOptions(split or "dev", text, documents, pairs, search)
    plots = drop_unset(confusion=confusion, reliability=reliability)
    models = open_models(runs, options.split, interpolate, device)
    with use_data_folder(data_dir):
        try:
            model = mix(models, mixture_weights) if interpolate else models[0]
            if files and issubclass(model.evaluation_class, MetricsEvaluation):
                options = replace(options, text=files[0])
            elif files:
                model, options = model.on_file(files[0]), replace(options, split="other")
            kind = model.evaluation_class
            kind = kind if text is None or "text" in kind.option_groups else MetricsEvaluation
            refuse_unused_options(model, bool(search or pairs), out is not None, plots)
            for plot in plots.values():
                check_plot_path(plot)
            check_new_output(out, kind.answers_name)
            evaluation = kind(model, options)
        except ChangedDataError as error:
            if not (other_data := task_info(models[0].run.recipe["task"]).task.other_data):
                raise
            raise DataError(f"{error} To evaluate other data: {other_data}.") from None
    for name, plot in plots.items():
        write_plot(plot, *evaluation.draw(name))
    if out is not None:
        write_output(out, evaluation.answers(), kind.answers_name)
    print_notes(evaluation.notes)
    if as_json:
        print_json(evaluation.to_json())
        return
    console = open_wide_console()
    for line in evaluation.lines(console):
        print(line) if isinstance(line, str) else console.print(line, end="", crop=False)
    print_notes(evaluation.remarks)


def is_data(path: Path) -> bool:
    """Return whether a path is a file, or a folder of the `datasets` library, and not a run."""
    from seqloom.data.formats.arrow_tables import is_dataset_folder

    return path.is_file() or is_dataset_folder(path)


def parse_weights(words: str | None, interpolate: bool, runs: int) -> list[float] | None:
    """Return the weights of a mixture, if given; raise if the options contradict each other."""
    if interpolate and runs < 2:
        raise UsageError("--interpolate requires two or more runs; got one.")
    if words is None:
        return None
    if not interpolate:
        raise UsageError("--weights requires two or more language models and --interpolate; add --interpolate.")
    try:
        return [float(word) for word in words.split(",")]
    except ValueError:
        raise UsageError(f"--weights must be numbers separated by commas, such as 0.6,0.4; got {words!r}.") from None


def open_models(runs: Sequence[Path], split: str, interpolate: bool, device: str) -> "list[Any]":
    """Open the runs to evaluate: one run, an ensemble, or runs to interpolate."""
    from seqloom.data.corpus import SPLITS
    from seqloom.predict.base import Predictor
    from seqloom.predict.ensembles import ensemble
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")
    models = [load(run, device, LanguageModelPredictor if interpolate else Predictor) for run in runs]
    if len(runs) == 1 or interpolate:
        return models
    if not isinstance(models[0], TranslatorPredictor):
        raise UsageError(
            "Several runs must be translators, or language models with --interpolate. Evaluate other runs one at a "
            "time; `seqloom compare` compares their metrics."
        )
    parts = [model if isinstance(model, TranslatorPredictor) else run for model, run in zip(models, runs, strict=True)]
    return [ensemble(parts, device)]  # raises if one is not a translator


def refuse_unused_options(model: "AnyPredictor", has_search: bool, has_out: bool, plots: Mapping[str, Path]) -> None:
    """Raise for options that the evaluation of this model does not use."""
    used, what = model.evaluation_class.option_groups, f"{model.name} is {model.description}."
    if (has_search and "search" not in used) or (has_out and "out" not in used):
        options = "--source and --reference" if "out" in used else "--source, --reference and --out"
        raise UsageError(f"--beam, --length-penalty, {options} require a translator; {what}")
    if plots and "confusion" not in used:
        raise UsageError(f"--confusion and --reliability require a classifier or tagger; {what}")
    if "reliability" in plots and "reliability" not in used:
        raise UsageError(f"--reliability requires a classifier; {what}")
