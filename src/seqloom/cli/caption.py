"""`seqloom caption`: write captions of images."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import Beam, Device, Run, batch_option, drop_unset, json_option, window_option
from seqloom.cli._output import check_plot_path, format_lists, print_predictions, write_plot
from seqloom.cli._tables import TableColumns, TableFile, TableIn, TableOut, check_table_options
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.image_to_text import ImageToTextPredictor, W

AttentionOut = Annotated[
    Path | None,
    typer.Option(
        "--attention", help="With one image: plot the attention of each word over the image to this .png or .svg file."
    ),
]
NBest = Annotated[int | None, typer.Option(min=1, help="Number of texts per image. [default: the recipe's]")]
LengthPenalty = Annotated[float | None, typer.Option(help="Exponent of the length penalty; 0 favours short texts.")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens, including END.")]


def caption(
    run: Run,
    images: Annotated[
        list[str] | None, typer.Argument(help="Image files. [default: paths from standard input]")
    ] = None,
    beam: Beam = None,
    n_best: NBest = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    attention: AttentionOut = None,
    as_json: Annotated[bool, json_option("One JSON object per image, with scores and candidates.")] = False,
    batch: Annotated[int, batch_option("Number of images per batch.")] = 32,
    window: Annotated[int | None, window_option("Images")] = None,
    device: Device = "auto",
    table: TableIn = None,
    column: TableColumns = None,
    out: TableOut = None,
) -> None:
    """Describe images: `seqloom caption runs/X photo.jpg --beam 5 --attention words.png`.

    With --in, the captions are added to a table: `seqloom caption runs/X --in in.csv --column image --out out.csv`.
    """
    check_table_options(table, column, out, images, attention=attention, as_json=as_json)
    check_attention_path(attention, images)
    from seqloom.predict.image_to_text import Captioner
    from seqloom.predict.loader import load

    options = drop_unset(beam=beam, n_best=n_best, length_penalty=length_penalty, max_length=max_length)
    model = load(run, device, Captioner)
    if table is not None:
        rows = TableFile(table, column, out, model)
        rows.write(model, model.caption(rows.texts, batch_size=batch, **options))
        return
    lines, size = open_lines(images, batch, window, are_paths=True)
    captions = model.caption(
        lines, attention=attention is not None, batch_size=batch, window=size, stream=True, **options
    )
    print_written(model, captions, n_best, attention, as_json)


def check_attention_path(path: Path | None, images: list[str] | None) -> None:
    """Raise an error before any work if the attention could not be plotted."""
    if path is not None and len(images or ()) != 1:
        raise UsageError("--attention requires a single image: the attention is drawn over the image.")
    check_plot_path(path)


def print_written(
    model: "ImageToTextPredictor[W]",
    predictions: "Iterable[W]",
    n_best: int | None,
    attention: Path | None,
    as_json: bool,
) -> None:
    """Print the texts that a model wrote, as n-best lists if requested, and plot the attention of the best text."""

    def draw(predictions: "Iterable[W]") -> "Iterator[W]":
        for prediction in predictions:
            if attention is not None:
                write_plot(attention, model.draw_attention(prediction))
            yield prediction

    def to_fields(prediction: "W") -> "Iterator[tuple[str, str]]":
        return ((each.text, f"{each.score:.4f}") for each in prediction.candidates)

    print_predictions(model, draw(predictions), as_json, format_lists(to_fields) if n_best else None)
