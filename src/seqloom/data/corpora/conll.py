"""One's own tagged sentences: CoNLL columns or CoNLL-U."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data import own_files
from seqloom.data.conll import Field, Sentence, TagScheme, find_scheme, read_conll, read_conllu, understood
from seqloom.data.corpus import Corpus, version_of
from seqloom.data.holdout import held_out
from seqloom.data.readers import placed
from seqloom.data.tagged import Tagged

SUMMARY = "one's own tagged sentences: CoNLL columns, a word a line, or CoNLL-U"
FORM = "tagged"


@config
class Config:
    corpus: Literal["conll"] = "conll"
    train: str  # a word and its tag on each line, a blank line between sentences; may be .gz
    dev: str | None = None  # the same; without it, dev_fraction is held out from train
    test: str | None = None  # likewise
    dev_fraction: float = 0.1  # of the sentences; 0 for no such split
    test_fraction: float = 0.1
    format: Literal["conll", "conllu"] | None = None  # if left out, conllu where the name ends so
    columns: tuple[int, int] = (1, -1)  # CoNLL: of the word and of its tag, from 1, or from the end: -1 is the last
    field: Field = "upos"  # CoNLL-U: what to tag with
    scheme: TagScheme = "auto"  # how spans are written; plain: each word has a tag of its own
    invalid: Literal["repair", "refuse"] = "repair"  # what to do with tags that break the scheme

    def problems(self) -> Iterator[str]:
        yield from own_files.fraction_problems(self)
        if 0 in self.columns:
            yield f"columns are counted from 1, or from -1 backwards, got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be two different ones, got {self.columns[0]} twice"

    def located(self, recipe_folder: Path) -> "Config":
        """The same with whole paths. What is not in the current folder may lie beside the recipe that names it."""
        whole = own_files.whole_paths(self, recipe_folder)
        return replace(self, train=whole["train"], dev=whole.get("dev"), test=whole.get("test"))


def load(config: Config) -> Corpus[Tagged]:
    """The splits as given; what is missing of dev and test is held out from train."""
    files = own_files.given(config)
    own_files.check_files(files)
    read = {name: read_sentences(config, file) for name, file in files.items()}
    scheme = find_scheme(config.scheme, read["train"])
    splits: dict[str, list[Tagged]] = {}
    notes: list[str] = []
    for name, file in files.items():
        splits[name], more = understood(read[name], scheme, config.invalid, file)
        notes += more
    texts = {name: [" ".join(sentence.words) for sentence in sentences] for name, sentences in splits.items()}
    notes += own_files.repeats(texts, "sentences")
    splits = _complete(config, splits, texts["train"])
    return Corpus(
        name="conll",
        version=version_of(splits),
        licence="the user's own",
        description=f"{config.train}" + (f", spans in {scheme}" if scheme else ", a tag for each word"),
        splits=splits,
        absent=own_files.absent(splits),
        notes=tuple(notes),
    )


def read_sentences(config: Config, file: str) -> list[Sentence]:
    path = placed(Path(file))
    ends = path.name.removesuffix(".gz").endswith(".conllu")
    if (config.format or ("conllu" if ends else "conll")) == "conllu":
        return read_conllu(path, config.field)
    return read_conll(path, config.columns)


def _complete(config: Config, splits: Mapping[str, Sequence[Tagged]], texts: Sequence[str]) -> dict[str, list[Tagged]]:
    """Hold out what is missing; the same sentence is never in two splits."""
    shares = own_files.missing_shares(config, splits)
    sizes = {name: max(1, round(share * len(texts))) for name, share in shares.items()}
    return own_files.share_out(config, splits, held_out(texts, sizes), len(set(texts)))
