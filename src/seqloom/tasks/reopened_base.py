"""The data of an existing run. A split can be used if it has not changed since training.

This is also possible if files have been moved, have grown or are missing.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqloom.core.errors import ChangedDataError, DataError
from seqloom.data.corpus import SPLITS, Corpus, FilesConfig
from seqloom.data.files import expand_home, moved_data
from seqloom.data.splits import first_examples

if TYPE_CHECKING:
    from seqloom.data.corpus import Fingerprinted
    from seqloom.runs.run import Run
    from seqloom.tasks.base import TaskRecipe

Load = Callable[[Any], Any]  # loads the corpus of a recipe


def reopen_corpus(run: "Run", recipe: "TaskRecipe", load: Load) -> Any:
    """Load the data of a run. Using a split that has changed since training raises an error.

    The files are those of the recipe, or those that `use_data_folder` names. If a file has grown, only the examples at
    its beginning are used. If a file is missing, only the splits that have their own files are used.
    """
    if isinstance(recipe.data, FilesConfig):
        path = moved_data()
        recipe = recipe if path is None else replace(recipe, data=recipe.data.relocate(path))
        files = recipe.data.files()
        missing = {
            split: file for split, paths in files.items() for file in paths if not expand_home(Path(file)).exists()
        }
        if missing:
            return _load_present(run, recipe, load, missing)
    corpus = load(recipe)
    changed = changed_splits(run, corpus)
    if changed and not isinstance(corpus, Corpus):
        raise ChangedDataError(f"{_describe_change(run, corpus, ', '.join(changed))} Train a new run.")
    if changed and isinstance(recipe.data, FilesConfig):
        with suppress(DataError), first_examples(run.data["counts"]):
            beginning = load(recipe)
            if len(left := changed_splits(run, beginning)) < len(changed):
                grown = " and ".join(next(iter(files.values())))
                note = f"{grown} has grown since training; only the examples of the training data are used"
                corpus, changed = replace(beginning, changes=(note,)), left
    return _without(run, recipe, corpus, changed) if changed else corpus


def changed_splits(run: "Run", corpus: "Fingerprinted") -> list[str]:
    """Return the names of the splits that differ from those of the run."""
    now, then = corpus.fingerprint(), run.data["sha256"]
    return sorted(split for split in now.keys() | then.keys() if now.get(split) != then.get(split))


def _describe_change(run: "Run", corpus: "Fingerprinted", changed: str) -> str:
    return (
        f"The data of {run.path} has changed since it was trained: {changed} of {corpus.name} differ "
        f"(then {run.data['version']}, now {corpus.version})."
    )


def _without(run: "Run", recipe: "TaskRecipe", corpus: Corpus[Any], changed: list[str]) -> Corpus[Any]:
    """Return a corpus in which using a changed split raises an error."""
    advice = "Restore the data, or train a new run."
    if isinstance(recipe.data, FilesConfig):
        advice = f"Name a copy of the old data with --data PATH, or evaluate a file: seqloom evaluate {run.path} FILE."
    problem = f"{_describe_change(run, corpus, ', '.join(changed))} {advice}"
    unchanged = [split for split in corpus.splits if split not in changed]
    note = f"{' and '.join(changed)} of {corpus.name} changed since training, but {' and '.join(unchanged)} did not"
    return replace(
        corpus,
        splits={split: corpus.splits[split] for split in unchanged},
        changed={**corpus.changed, **dict.fromkeys(changed, problem)},
        changes=(*corpus.changes, *([note] if unchanged else [])),
    )


def _load_present(run: "Run", recipe: "TaskRecipe", load: Load, missing: Mapping[str, str]) -> Corpus[Any]:
    """Load the splits that have their own existing files. Using any other split raises an error."""
    config, first = recipe.data, next(iter(missing.values()))
    problem = (
        f"{first} does not exist. If the data has moved, specify its new location with --data PATH; to evaluate a "
        f"file: "
        f"seqloom evaluate {run.path} FILE."
    )
    whole: dict[str, Any] = {"dev_fraction": 0.0, "test_fraction": 0.0, "dev": None, "test": None}
    corpora: dict[str, Corpus[Any]] = {}
    for split in config.files() if "train" in config.file_keys else ():
        if split != "train" and split not in missing:
            alone = replace(config, train=getattr(config, split), **whole)
            corpora[split] = load(replace(recipe, data=alone))
    splits = {split: corpus.split("train") for split, corpus in corpora.items()}
    if not splits:
        raise DataError(problem)
    corpus = replace(
        next(iter(corpora.values())),
        splits=splits,
        changed={split: problem for split in SPLITS if split not in splits},
        changes=(f"{first} does not exist; only {' and '.join(splits)} can be used",),
    )
    changed = [split for split in changed_splits(run, corpus) if split in splits]
    return _without(run, recipe, corpus, changed) if changed else corpus
