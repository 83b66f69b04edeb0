"""What corpora of one's own files share: a file for train; for dev and test files too, or a part that is held out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from seqloom.core.errors import DataError
from seqloom.data.corpus import SPLITS
from seqloom.data.readers import located, placed


def fraction_problems(config: Any) -> Iterator[str]:
    if min(config.dev_fraction, config.test_fraction) < 0 or config.dev_fraction + config.test_fraction >= 1:
        yield "dev_fraction and test_fraction must be at least 0 and together less than 1"


def given(config: Any) -> dict[str, str]:
    """The splits that have a file."""
    named = {name: getattr(config, name) for name in SPLITS}
    return {name: file for name, file in named.items() if file is not None}


def whole_paths(config: Any, recipe_folder: Path) -> dict[str, str]:
    """The files as whole paths. What is not in the current folder may lie beside the recipe that names it."""
    return {name: located(file, recipe_folder) for name, file in given(config).items()}


def place_of(split: str, file: str) -> Path:
    """Where the file of a split lies; DataError with the key that names it, if nowhere."""
    path = placed(Path(file))
    if not path.exists():
        raise DataError(
            f"{file} does not exist. Check the name, data.{split}=…, and from which folder the command is run."
        )
    return path.resolve()


def check_files(files: Mapping[str, str]) -> None:
    """Every file must be there, and none may serve two splits."""
    places = {name: place_of(name, file) for name, file in files.items()}
    for one, other in combinations(places, 2):
        if places[one] == places[other]:
            raise DataError(f"data.{one} and data.{other} must not overlap, but both read {files[one]}.")


def missing_shares(config: Any, splits: Mapping[str, Any]) -> dict[str, float]:
    """The splits to hold out from train, and how much of it each is."""
    shares = {"dev": config.dev_fraction, "test": config.test_fraction}
    return {name: share for name, share in shares.items() if name not in splits and share > 0}


def share_out(
    config: Any, splits: Mapping[str, Sequence[Any]], chosen: Sequence[str], different: int
) -> dict[str, list[Any]]:
    """All splits, those of train by the split chosen for each; DataError if one has nothing."""
    missing = list(missing_shares(config, splits))
    made: dict[str, list[Any]] = {name: list(examples) for name, examples in splits.items()}
    made |= {name: [] for name in ("train", *missing)}
    for example, name in zip(splits["train"], chosen, strict=True):
        made[name].append(example)
    if not all(made[name] for name in ("train", *missing)):
        raise DataError(
            f"{config.train} is too short: {' and '.join(missing)} are held out from it, one example each at least, "
            f"but it has only {different} different.\n"
            f"Give more, or files of their own: {', '.join(f'data.{name}' for name in missing)}."
        )
    return {name: made[name] for name in SPLITS if name in made}


def absent(splits: Mapping[str, Any]) -> dict[str, str]:
    """Why a split is not there."""
    return {
        name: f"data.{name}_fraction is 0 and data.{name} names no file."
        for name in ("dev", "test")
        if name not in splits
    }


def left_out(places: Sequence[int], what: str, file: str) -> list[str]:
    """A note on examples that could not be used: how many, and where the first is. `what`: what they lack."""
    if not places:
        return []
    if len(places) == 1:
        return [f"1 example has {what} and was left out, at line {places[0]:,} of {file}"]
    return [f"{len(places):,} examples have {what} and were left out, the first at line {places[0]:,} of {file}"]


def repeats(texts: Mapping[str, Sequence[str]], what: str) -> list[str]:
    """A note on what stands in two of the given splits: figures on it say little."""
    notes, found = [], {name: set(own) for name, own in texts.items()}
    for one, other in combinations(found, 2):
        if shared := len(found[one] & found[other]):
            notes.append(f"{shared:,} of the {len(found[other]):,} different {what} of {other} stand in {one} too")
    return notes
