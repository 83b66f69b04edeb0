"""`seqloom evaluate`: evaluate a trained model or a combination of models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seqloom.cli._evaluate_lengths import compare_lengths
from seqloom.cli._options import (
    DataDir,
    Device,
    InputColumns,
    JsonObject,
    LabelColumn,
    MinProbability,
    Run,
    RunData,
    drop_unset,
)
from seqloom.cli._output import (
    check_new_output,
    check_plot_path,
    open_wide_console,
    print_json,
    print_notes,
    write_output,
    write_plot,
)
from seqloom.core.errors import UsageError
from seqloom.core.metrics import baseline_notes
from seqloom.core.words import did_you_mean, one_line

if TYPE_CHECKING:
    from seqloom.predict.base import AnyPredictor

Documents = Annotated[
    Literal["file", "line", "paragraph"] | None,
    typer.Option(help="With a text file: what counts as a document. [default: as in training, else line]"),
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
    float | None, typer.Option(help="Translators, captions: exponent of the length penalty. [default: the recipe's]")
]
Weights = Annotated[
    str | None, typer.Option(help="With --interpolate: the weights λ_i, such as 0.6,0.4. [default: optimized on dev]")
]
Interpolate = Annotated[bool, typer.Option("--interpolate", help="Interpolate several language models: p = Σ λ_i p_i.")]
SEARCH_OPTIONS = {  # the options of each option group
    "search": ("--beam", "--length-penalty"),
    "pairs": ("--glossary", "--source", "--reference"),
    "out": ("--out",),
}


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A run directory, or several for an ensemble or --interpolate, then optionally a file of examples "
            "instead of a split: a table, a text, a folder of texts, or two files aligned by line."
        ),
    ],
    split: Annotated[str | None, typer.Option(help="The split to evaluate: dev, test or train. [default: dev]")] = None,
    column: InputColumns = None,
    label: LabelColumn = None,
    documents: Documents = None,
    beam: Annotated[int | None, typer.Option(help="Translators, captions: beam size. [default: the recipe's]")] = None,
    length_penalty: LengthPenalty = None,
    source: Annotated[
        Path | None, typer.Option(help="Translators: evaluate the sentences of this file instead of a split.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="With --source: the file of reference translations.")] = None,
    glossary: Annotated[
        Path | None, typer.Option(help="Translators: compare translations with and without this glossary.")
    ] = None,
    min_probability: MinProbability = None,
    out: AnswersOut = None,
    confusion: Confusion = None,
    reliability: Reliability = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            help="Translators: evaluate each run separately, and plot BLEU by source length to this .png or .svg file."
        ),
    ] = None,
    interpolate: Interpolate = False,
    weights: Weights = None,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Evaluate a run on a split or a file: `seqloom evaluate runs/X --split test` or `seqloom evaluate runs/X new.csv`.

    The columns of a file are those of the recipe, or are detected as in `seqloom init`; --column and --label select
    other columns.
    """
    files = [path for path in runs[1:] if is_data(path)]
    runs = [path for path in runs if path not in files]
    check_file_options(files, column, label, documents, split, source)
    if len(files) == 2:
        source, reference = files
    if (source is None) != (reference is None):
        raise UsageError("--source FILE and --reference FILE must be given together: sentences and their translations.")
    if source is not None and split is not None:
        raise UsageError("--split and --source cannot be used together: evaluate a split or other sentences.")
    mixture_weights = parse_weights(weights, interpolate, len(runs))
    from seqloom.data.files import use_data_folder
    from seqloom.data.table_profile import NamedColumns
    from seqloom.predict.confidence import CalibratedPredictor
    from seqloom.predict.ensembles import interpolate as mix
    from seqloom.predict.evaluation import EvaluationOptions, MetricsEvaluation
    from seqloom.tasks import task_info

    pairs = None if source is None or reference is None else (source, reference)
    columns = NamedColumns(tuple(column or ()), label)
    search = drop_unset(beam=beam, length_penalty=length_penalty)
    options = EvaluationOptions(split or "dev", None, documents, columns, pairs, search, glossary)
    plots = drop_unset(confusion=confusion, reliability=reliability)
    if lengths is not None:
        if len(files) == 1 or interpolate or out or glossary or plots or min_probability is not None:
            raise UsageError("--lengths compares translators on a split or on two files aligned by line.")
        check_split(options.split)
        check_plot_path(lengths)
        with use_data_folder(data_dir, data):
            compare_lengths(runs, options, lengths, as_json, device)
        return
    models = open_models(runs, options.split, interpolate, device)
    with use_data_folder(data_dir, data):
        model = mix(models, mixture_weights) if interpolate else models[0]
        if len(files) == 2 and "pairs" not in model.evaluation_class.option_groups:
            raise UsageError(
                f"Two files are read as sentences and their translations, but {model.name} is {model.description}."
            )
        if len(files) == 1 and "text" in task_info(model.recipe.task).forms:
            options = replace(options, text=files[0])
        elif len(files) == 1:
            if len(runs) > 1:
                raise UsageError("Several translators read two files aligned by line: SOURCE REFERENCE.")
            model, options = model.on_file(files[0], columns=columns), replace(options, split="other")
            print_notes(model.training_task.corpus.notes)
        kind = model.evaluation_class
        kind = kind if options.text is None or "text" in kind.option_groups else MetricsEvaluation
        if isinstance(model, CalibratedPredictor):
            model.min_probability = min_probability
            print_notes(model.calibration_notes)
        elif min_probability is not None:
            raise UsageError(f"--min-probability requires a classifier; {model.name} is {model.description}.")
        refuse_unused_options(model, bool(search), bool(pairs or glossary), out is not None, plots)
        for plot in plots.values():
            check_plot_path(plot)
        check_new_output(out, kind.answers_name)
        evaluation = kind(model, options)
    for name, plot in plots.items():
        write_plot(plot, *evaluation.draw(name))
    if out is not None:
        write_output(out, evaluation.answers(), kind.answers_name)
    changes = dict.fromkeys(note for each in (model, *models) for note in each.data_notes)
    print_notes([*changes, *evaluation.notes, *baseline_notes(evaluation.to_json())])
    if as_json:
        print_json(evaluation.to_json())
        return
    console = open_wide_console()
    for line in evaluation.lines(console):
        print(line) if isinstance(line, str) else console.print(line, end="", crop=False)
    print_notes(evaluation.remarks)


def calibrate(
    run: Run,
    precision: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="For each label, choose a threshold that reaches this precision on dev."),
    ] = None,
    f1: Annotated[
        bool,
        typer.Option(
            "--f1",
            help="For each label, choose the threshold with the best F1 on dev. [default for multi-label classifiers]",
        ),
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the calibration from the run.")] = False,
    data: RunData = None,
    data_dir: DataDir = None,
    as_json: JsonObject = False,
    device: Device = "auto",
) -> None:
    """Calibrate a classifier on dev: `seqloom calibrate runs/X`, or `… --precision 0.95` for thresholds.

    The temperature and the thresholds are stored in the run and used by all commands.
    """
    if sum((precision is not None, f1, remove)) > 1:
        raise UsageError("--precision, --f1 and --remove cannot be used together; give one of them.")
    from seqloom.data.files import use_data_folder
    from seqloom.predict.confidence import CalibratedPredictor
    from seqloom.predict.loader import load
    from seqloom.predict.matching import PairPredictor

    model = load(run, device)
    if not isinstance(model, CalibratedPredictor) or (isinstance(model, PairPredictor) and model.scored):
        raise UsageError(f"{run} is {model.description}; only classifiers have probabilities to calibrate.")
    if remove:
        model.remove_calibration()
        typer.echo(f"{run} is not calibrated: its probabilities are those of the trained model.")
        return
    with use_data_folder(data_dir, data):
        model.remove_calibration()
        before = model.report("dev").metrics
        calibration = model.calibrate(f1=f1, precision=precision)
        after = model.report("dev").metrics
    if as_json:
        print_json({**asdict(calibration), "before": before, "after": after})
        return
    print(f"{run}: temperature {calibration.temperature:.4f}, fitted on {calibration.examples:,} dev examples")
    for name in ("calibration_error", "loss"):
        print(f"  {name.replace('_', ' '):18} {before[name]:.4f} → {after[name]:.4f}")
    if calibration.temperature == 1:
        print_notes(["every dev example is classified correctly, so the temperature stays 1"])
    if calibration.thresholds:
        if "coverage" in after:
            print(f"  {'coverage':18} {after['coverage']:.4f}, selective accuracy {after['selective_accuracy']:.4f}")
        else:
            print(f"  {'micro F1':18} {before['micro_f1']:.4f} with thresholds 0.5 → {after['micro_f1']:.4f}")
        print(f"thresholds by {calibration.criterion}")
        for label, threshold in calibration.thresholds.items():
            print(f"  {one_line(label):18} {'never predicted' if threshold is None else f'{threshold:.4f}'}")


def is_data(path: Path) -> bool:
    """Return whether a path is a file or a folder of data, or a missing file, and not a run."""
    from seqloom.data.detect_images import has_images
    from seqloom.data.files import EXTENSIONS
    from seqloom.data.formats.arrow_tables import is_dataset_folder
    from seqloom.data.tables import translation_files

    if not path.is_dir():
        return path.is_file() or (path.suffix != "" and not path.exists())
    is_run = (path / "recipe.yaml").exists() or (path / "config.json").exists()
    if is_run:
        return False
    is_known = is_dataset_folder(path) or has_images(path) or bool(translation_files(path))
    return is_known or any(file.name.endswith(EXTENSIONS) for file in path.rglob("*"))


def check_file_options(
    files: Sequence[Path],
    column: Sequence[str] | None,
    label: str | None,
    documents: str | None,
    split: str | None,
    source: Path | None,
) -> None:
    """Raise an error if options contradict the files to evaluate."""
    if files and (split is not None or source is not None):
        raise UsageError("A file cannot be used together with --split or --source; leave them out.")
    if len(files) > 2 or (len(files) == 2 and (column or label)):
        raise UsageError(f"Name one file to evaluate, or two aligned files; got {', '.join(map(str, files))}.")
    for name in (*(column or ()), *([] if label is None else [label])) if not files else ():
        hint = f" To evaluate {name}: seqloom evaluate RUN {name}" if Path(name).exists() else ""
        raise UsageError(f"--column and --label require a file: add FILE after the run.{hint}")
    if documents is not None and not files:
        raise UsageError("--documents requires a text file; the splits of a run are read as in its recipe.")


def parse_weights(words: str | None, interpolate: bool, runs: int) -> list[float] | None:
    """Return the weights of a mixture, if given; raise an error if the options contradict each other."""
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
    from seqloom.predict.base import Predictor
    from seqloom.predict.ensembles import ensemble
    from seqloom.predict.language_model import LanguageModelPredictor
    from seqloom.predict.loader import load
    from seqloom.predict.translate import TranslatorPredictor

    check_split(split)
    models = [load(run, device, LanguageModelPredictor if interpolate else Predictor) for run in runs]
    if len(runs) == 1 or interpolate:
        return models
    if not isinstance(models[0], TranslatorPredictor):
        raise UsageError(
            "Several runs must be translators, or language models with --interpolate. Evaluate other runs one at a "
            "time; `seqloom compare` compares their metrics."
        )
    parts = [model if isinstance(model, TranslatorPredictor) else run for model, run in zip(models, runs, strict=True)]
    return [ensemble(parts, device)]  # raises an error if a run is not a translator


def check_split(split: str) -> None:
    from seqloom.data.corpus import SPLITS

    if split not in SPLITS:
        raise UsageError(f"There is no split {split!r}: {did_you_mean(split, SPLITS)}.")


def refuse_unused_options(
    model: "AnyPredictor", has_search: bool, has_pairs: bool, has_out: bool, plots: Mapping[str, Path]
) -> None:
    """Raise an error if the evaluation of this model does not support a given option."""
    used, what = model.evaluation_class.option_groups, f"{model.name} is {model.description}."
    given = {"search": has_search, "pairs": has_pairs, "out": has_out}
    if any(is_given and group not in used for group, is_given in given.items()):
        *names, last = (name for group, options in SEARCH_OPTIONS.items() if group not in used for name in options)
        raise UsageError(f"{', '.join(names)} and {last} require a translator; {what}")
    if plots and not {"confusion", "reliability"} & set(used):
        raise UsageError(f"--confusion and --reliability require a classifier or tagger; {what}")
    if "confusion" in plots and "confusion" not in used:
        raise UsageError(f"--confusion requires one label per text or word; {what}")
    if "reliability" in plots and "reliability" not in used:
        raise UsageError(f"--reliability requires a classifier; {what}")
