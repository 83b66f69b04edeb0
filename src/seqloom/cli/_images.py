"""Images as input of commands."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from seqloom.cli._input import open_lines
from seqloom.cli._output import check_plot_path, print_predictions, write_plot
from seqloom.core.errors import UsageError

if TYPE_CHECKING:
    from seqloom.predict.classify_images import ImageClassification, ImageClassifierPredictor


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
        raise UsageError("--out requires --why and one image, whose important parts it draws.")
    check_plot_path(out)
    lines, size = open_lines(paths, batch, window, are_paths=True)
    answers = model.classify(lines, top=top, why=why, batch_size=batch, window=size, stream=True)

    def draw(answers: "Iterable[ImageClassification]") -> "Iterator[ImageClassification]":
        for answer in answers:
            if out is not None:
                write_plot(out, model.draw_why(answer))
            yield answer

    print_predictions(model, draw(answers), as_json)
