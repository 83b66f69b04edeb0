"""One's own questions with answers in a text: JSON in SQuAD's form."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data import own_files
from seqloom.data.answers import Question
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out
from seqloom.data.readers import placed
from seqloom.data.squad import Missing, read_squad

SUMMARY = "one's own questions whose answers stand in a text: JSON in SQuAD's form"
FORM = "answers"
ENOUGH = 5  # articles for each split: with fewer, one may be most of it


@config
class Config:
    corpus: Literal["squad-files"] = "squad-files"
    train: str  # a .json file in SQuAD's form, which may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the questions; 0 for no such split
    test_fraction: float = 0.1
    missing: Missing = "skip"  # an answer that is not in its context: leave the question out and count it, or refuse

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Question]:
    """The splits as given; what is missing of dev and test is held out from train, whole contexts at a time."""
    files = own_files.given(config)
    own_files.check_files(files)
    splits: dict[str, list[Question]] = {}
    notes: list[str] = []
    for name, file in files.items():
        found = read_squad(placed(Path(file)), config.missing)
        splits[name] = found.questions
        notes += found.notes(file)
    contexts = {name: [question.context for question in questions] for name, questions in splits.items()}
    notes += own_files.repeats(contexts, "contexts")
    splits = _complete(config, splits)
    return Corpus(
        name="squad-files",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}: questions and where their answers stand",
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def _complete(config: Config, splits: Mapping[str, Sequence[Question]]) -> dict[str, list[Question]]:
    """Hold out what is missing: whole articles where there are enough of them, else whole contexts."""
    questions, shares = splits["train"], own_files.missing_shares(config, splits)
    groups = [question.title or question.context for question in questions]
    if len(set(groups)) < ENOUGH * (len(shares) + 1):
        groups = [question.context for question in questions]
    sizes = {name: max(1, round(share * len(questions))) for name, share in shares.items()}
    return own_files.share_out(config, splits, held_out(groups, sizes), len(set(groups)))
