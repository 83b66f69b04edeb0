"""Images and clips as input and output of commands."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._output import check_plot_path, print_predictions, write_plot
from seqloom.cli._tables import TableFile
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.base import P
    from seqloom.predict.classify_images import ImageClassification, ImageClassifierPredictor
    from seqloom.predict.frames import FrameTagger
    from seqloom.predict.generate_images import ImageGeneratorPredictor

GENERATED_IMAGES = 64  # number of images that `seqloom generate` draws by default


def classify_image_files(
    model: "ImageClassifierPredictor",
    paths: list[str] | None,
    top: int,
    why: bool,
    out: Path | None,
    as_json: bool,
    batch: int,
    window: int | None,
) -> None:
    """Print the labels of image files; with `why` and `out`, plot the important parts of a single image."""
    if out is not None and (not why or len(paths or ()) != 1):
        raise UsageError("--out requires --why and a single image: it plots the important parts of the image.")
    check_plot_path(out)
    lines, size = open_lines(paths, batch, window, are_paths=True)
    answers = model.classify(lines, top=top, why=why, batch_size=batch, window=size, stream=True)

    def draw(answers: "Iterable[ImageClassification]") -> "Iterator[ImageClassification]":
        for answer in answers:
            if out is not None:
                write_plot(out, model.draw_why(answer))
            yield answer

    print_predictions(model, draw(answers), as_json)


def write_generated_images(
    model: "ImageGeneratorPredictor",
    grid: Path | None,
    steps_grid: Path | None,
    animation: Path | None,
    samples: int | None,
    seed: int,
) -> None:
    """Generate images and write them as a grid, as a picture of their steps, and as an animation."""
    outputs = [(grid, "grid", ".png"), (steps_grid, "steps-grid", ".png"), (animation, "animation", ".gif")]
    if not any(path for path, _, _ in outputs):
        raise UsageError("Name the file of the images: --grid images.png, --steps-grid steps.png or --animation x.gif.")
    for path, option, suffix in outputs:
        if path is not None:
            check_image_path(path, option, suffix)
    from seqloom.core.files import write_atomic
    from seqloom.data.images import encode_png

    generated = model.generate(GENERATED_IMAGES if samples is None else samples, seed=seed)
    contents = (
        (grid, lambda: encode_png(generated.grid())),
        (steps_grid, lambda: encode_png(generated.steps())),
        (animation, generated.animation),
    )
    for path, encode in contents:
        if path is not None:
            write_atomic(path, encode())
            typer.echo(f"Wrote {path}.", err=True)


def check_image_path(path: Path, option: str, suffix: str) -> None:
    """Raise an error before any work if an image could not be written."""
    from seqloom.core.files import check_writable

    if path.suffix.lower() != suffix:
        raise UsageError(f"--{option} must be a file that ends in {suffix}; got {path}.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file.")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: the folder {path.parent} does not exist. Create it first.")
    check_writable(path)


def tag_frames(
    model: "FrameTagger[P]",
    paths: list[str] | None,
    table: Path | None,
    columns: list[str] | None,
    out: Path | None,
    as_json: bool,
    batch: int,
    window: int | None,
) -> None:
    """Print the labels of the frames of clips or sounds; with `out`, plot a single clip or sound with its labels."""
    if table is not None:
        rows = TableFile(table, columns, out, model)
        rows.write(model, model.predict(rows.texts, batch_size=batch))
        return
    if out is not None and len(paths or ()) != 1:
        unit = model.inputs[0]
        raise UsageError(f"--out requires --in, or one {unit}: the frames of the {unit} are drawn.")
    check_plot_path(out)
    lines, size = open_lines(paths, batch, window, are_paths=True)

    def draw(answers: "Iterable[P]") -> "Iterator[P]":
        for answer in answers:
            if out is not None:
                write_plot(out, model.draw_tags(answer))
            yield answer

    print_predictions(model, draw(model.predict(lines, batch_size=batch, window=size, stream=True)), as_json)
