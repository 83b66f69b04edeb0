"""`seqloom transcribe`: write the texts of recordings."""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import Beam, Device, Run, batch_option, drop_unset, json_option, window_option
from seqloom.cli._output import check_plot_path, format_lists, print_predictions, write_plot
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.transcribe import RecordingInput, Transcriber, Transcription

STANDARD_INPUT = "-"


def transcribe(
    run: Run,
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Files of recordings; - reads standard input. [default: paths from standard input]"),
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Number of texts per recording. [default: the recipe's]")
    ] = None,
    by: Annotated[
        Literal["attention", "ctc", "joint"] | None,
        typer.Option(
            help="Joint models: write texts by the decoder, by CTC, or rank them by both. [default: the recipe's]"
        ),
    ] = None,
    lm: Annotated[Path | None, typer.Option("--lm", help="A run of a language model with the same tokens.")] = None,
    lm_weight: Annotated[float, typer.Option(min=0, help="Weight of log p of the language model.")] = 0.3,
    lm_bonus: Annotated[float, typer.Option(help="CTC with --lm: score added for each token.")] = 0.0,
    max_length: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens, including END.")] = None,
    alignment: Annotated[
        Path | None,
        typer.Option(help="With one recording: plot the alignment of its text to this .png or .svg file."),
    ] = None,
    as_json: Annotated[bool, json_option("One JSON object per recording, with scores and the alignment.")] = False,
    batch: Annotated[int, batch_option("Number of recordings per batch.")] = 32,
    window: Annotated[int | None, window_option("Recordings")] = None,
    device: Device = "auto",
) -> None:
    """Transcribe recordings: `seqloom transcribe runs/X strokes.json --alignment letters.png`."""
    if alignment is not None and len(files or ()) != 1:
        raise UsageError("--alignment requires one file with one recording, whose alignment it draws.")
    check_plot_path(alignment)
    from seqloom.predict.loader import load
    from seqloom.predict.transcribe import Transcriber

    model = load(run, device, Transcriber)
    options = drop_unset(beam=beam, n_best=n_best, by=by, max_length=max_length)
    lines, _ = open_lines(files, batch, window, are_paths=True)
    size = window or (1 if STANDARD_INPUT in (files or ()) else batch)  # a stream is transcribed while it is read
    needs_alignment = alignment is not None or (as_json and model.has_alignment(by))
    predictions = model.transcribe(
        read_inputs(lines, model, bool(files)),
        alignment=needs_alignment,
        language_model=lm,
        lm_weight=lm_weight,
        lm_bonus=lm_bonus,
        batch_size=batch,
        window=size,
        stream=True,
        **options,
    )
    if alignment is not None:
        predictions = draw_first(predictions, model, alignment)

    def to_fields(prediction: "Transcription") -> "Iterator[tuple[str, str]]":
        return ((each.text, f"{each.score:.4f}") for each in prediction.candidates)

    print_predictions(model, predictions, as_json, format_lists(to_fields) if n_best else None)


def read_inputs(lines: Iterable[str], model: "Transcriber", are_arguments: bool) -> "Iterator[RecordingInput]":
    """Yield paths, and the recordings of standard input for the argument -."""
    for line in lines:
        if are_arguments and line == STANDARD_INPUT:
            yield from model.read_stream(sys.stdin.buffer)
        else:
            yield line


def draw_first(predictions: "Iterable[Transcription]", model: "Transcriber", path: Path) -> "Iterator[Transcription]":
    """Yield the only prediction after its alignment is drawn; raise an error if there are several."""
    first, *others = islice(predictions, 2)
    if others:
        raise UsageError("--alignment requires one recording, but the file contains several.")
    write_plot(path, model.draw_alignment(first))
    yield first
