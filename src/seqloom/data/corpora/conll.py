"""The user's own tagged sentences: CoNLL columns or CoNLL-U."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.data.conll import Field, Sentence, TagScheme, find_scheme, parse_tags, read_conll, read_conllu
from seqloom.data.corpus import Corpus
from seqloom.data.corpus_config import FileConfig
from seqloom.data.examples import TokenClassificationExample
from seqloom.data.file_corpus import check_files, load_files
from seqloom.data.files import expand_home

SUMMARY = "one's own tagged sentences: CoNLL columns, a word a line, or CoNLL-U"
FORM = "token-classification"


@config
class Config(FileConfig):
    corpus: Literal["conll"] = "conll"
    train: str  # a word and its tag on each line, a blank line between sentences; may be .gz
    format: Literal["conll", "conllu"] | None = None  # if left out, conllu where the name ends so
    columns: tuple[int, int] = (1, -1)  # CoNLL: of the word and of its tag, from 1, or from the end: -1 is the last
    field: Field = "upos"  # CoNLL-U: what to tag with
    scheme: TagScheme = "auto"  # how spans are written; plain: each word has a tag of its own
    invalid: Literal["repair", "refuse"] = "repair"  # what to do with tags that break the scheme

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if 0 in self.columns:
            yield f"columns are counted from 1, or from -1 backwards, got {list(self.columns)}"
        if self.columns[0] == self.columns[1]:
            yield f"columns must be two different ones, got {self.columns[0]} twice"


def load(config: Config) -> Corpus[TokenClassificationExample]:
    """The training sentences decide the scheme of the tags; the same sentence is never in two splits."""
    check_files(config)
    sentences = {split: read_sentences(config, file) for split, (file,) in config.files().items()}
    scheme = find_scheme(config.scheme, sentences["train"])
    return load_files(
        config,
        lambda split, file: parse_tags(sentences[split], scheme, config.invalid, file),
        description=f"{config.train}" + (f", spans in {scheme}" if scheme else ", a tag for each word"),
        groups=lambda examples, _: [join(example) for example in examples],
        repeats=("sentences", join),
    )


def join(sentence: TokenClassificationExample) -> str:
    return " ".join(sentence.words)


def read_sentences(config: Config, file: str) -> list[Sentence]:
    path = expand_home(Path(file))
    by_name = "conllu" if path.name.removesuffix(".gz").endswith(".conllu") else "conll"
    if (config.format or by_name) == "conllu":
        return read_conllu(path, config.field)
    return read_conll(path, config.columns)
