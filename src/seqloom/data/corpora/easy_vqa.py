"""easy-VQA: questions about images of a single coloured shape, with their choices."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqloom.config import config
from seqloom.config.constraints import Fraction, Gt
from seqloom.core.errors import DataError, ResourceError
from seqloom.data.corpus import Corpus
from seqloom.data.files import read_bytes
from seqloom.data.splits import divide, hold_out

if TYPE_CHECKING:
    from seqloom.data.image_texts import VisualQuestion

SUMMARY = "easy-VQA: questions about images of one coloured shape, from a package (pip install 'seqloom[vqa]')"
FORM = "visual-question-answering"
PACKAGE = "easy_vqa"
KINDS = {
    "yes/no": ("yes", "no"),
    "shape": ("circle", "rectangle", "triangle"),
    "colour": ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow"),
}


@config
class Config:
    corpus: Literal["easy-vqa"] = "easy-vqa"
    # fraction of the training images that are held out for dev with all their questions
    dev_fraction: Annotated[Fraction, Gt(0)] = 0.1


def load(config: Config) -> "Corpus[VisualQuestion]":
    """Read the installed package, without importing it. Test is the test part of the package."""
    folder = find_package()
    train = read_part(folder, "train")
    size = max(1, round(config.dev_fraction * len(train)))
    splits = divide(train, hold_out([example.image.name for example in train], {"dev": size}), ("train", "dev"))
    return Corpus(
        name="easy-vqa",
        version="1.0",
        licence="MIT",
        description="questions about images of 64 × 64 pixels with one coloured shape (Zhou 2019)",
        splits={**splits, "test": read_part(folder, "test")},
    )


def find_package() -> Path:
    """Return the folder of the data in the installed package."""
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if (path := Path(location) / "data").is_dir():
            return path
    raise ResourceError("The corpus easy-vqa needs the package easy-vqa: pip install 'seqloom[vqa]'.")


def read_part(folder: Path, part: str) -> "list[VisualQuestion]":
    """Read the questions of a part. Each question is stored as [question, answer, number of the image]."""
    from seqloom.data.image_texts import VisualQuestion
    from seqloom.data.images import EncodedImage, read_image_file

    path = folder / part / "questions.json"
    kinds: Mapping[str, str] = {answer: kind for kind, answers in KINDS.items() for answer in answers}
    images: dict[int, EncodedImage] = {}
    examples = []
    try:
        for question, answer, number in json.loads(read_bytes(path)):
            kind, name = kinds[answer], f"{int(number)}.png"
            if number not in images:
                images[number] = EncodedImage(f"{part}/{name}", read_image_file(path.parent / "images" / name))
            examples.append(VisualQuestion(images[number], question, (answer,), kind, KINDS[kind]))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path} must contain the questions of easy-VQA 1.0 ({error}). Install the package again: "
            "pip install --force-reinstall easy-vqa."
        ) from None
    return examples
