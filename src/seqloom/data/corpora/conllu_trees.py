"""Parsing as text: the words of a sentence of your own CoNLL-U files, and the dependency tree in brackets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from seqloom.config import config
from seqloom.config.constraints import PositiveInt
from seqloom.core.dependency_trees import DependencyTree, write_tree
from seqloom.core.errors import DataError
from seqloom.core.words import format_count, format_value
from seqloom.data.corpora.conll import Sentence, read_conllu
from seqloom.data.corpus import Corpus, FileConfig
from seqloom.data.examples import ParallelExample
from seqloom.data.files import expand_home
from seqloom.data.splits import Read, load_files

SUMMARY = "your own CoNLL-U files: sentences and their dependency trees in brackets"
FORM = "parallel"
Leaves = Literal["words", "tags", "numbers"]


@config
class Config(FileConfig):
    corpus: Literal["conllu-trees"] = "conllu-trees"
    train: str  # CoNLL-U file, optionally compressed (.gz or .zst)
    max_words: PositiveInt = 12  # sentences with more words are omitted
    leaves: Leaves = "numbers"  # what the trees contain: the words, their universal tags, or their numbers from 1


def load(config: Config) -> Corpus[ParallelExample]:
    """Load the sentences; equal sentences are in the same split."""
    return load_files(
        config,
        lambda _, file: read_trees(expand_home(Path(file)), config.max_words, config.leaves),
        description=f"sentences of at most {config.max_words} words of {config.train} and their dependency trees",
        groups=lambda pairs, _: [pair.source for pair in pairs],
        repeats=("sentences", lambda pair: pair.source),
    )


def read_trees(path: Path, max_words: int, leaves: Leaves) -> Read[ParallelExample]:
    """Read the sentences with at most `max_words` words and their trees, and a note on trees that are not projective.

    A tree that is not projective cannot be written in brackets, and the sentence is left out.
    """
    pairs: list[ParallelExample] = []
    left_out = 0
    for sentence, tags, tree in sentences_with_trees(path):
        if len(sentence.words) > max_words:
            continue
        numbers = [str(number) for number in range(1, len(tags) + 1)]
        text = write_tree(tree, {"words": sentence.words, "tags": tags, "numbers": numbers}[leaves])
        if text is None:
            left_out += 1
        else:
            pairs.append(ParallelExample(" ".join("_".join(word.split()) for word in sentence.words), text))
    if not pairs:
        raise DataError(
            f"{path} must contain projective trees of at most {max_words} words, but it contains none. "
            "Raise data.max_words, or check the column HEAD."
        )
    counted = format_count(left_out, "sentence was", "sentences were")
    note = f"{counted} left out of {path.name}, because trees that are not projective cannot be written in brackets"
    return pairs, [note] if left_out else []


def sentences_with_trees(path: Path) -> Iterator[tuple[Sentence, list[str], DependencyTree]]:
    """Yield the sentences of a CoNLL-U file with their universal tags and their trees."""
    columns = [read_conllu(path, column) for column in ("upos", "head", "deprel")]
    for sentence, of_heads, of_relations in zip(*columns, strict=True):
        heads: list[int] = []
        for line, head in zip(of_heads.lines, of_heads.tags, strict=True):
            if not head.isdecimal() or int(head) > len(sentence.words):
                raise DataError(
                    f"Line {line:,} of {path} must have the number of a word of its sentence, or 0, in the column "
                    f"HEAD, but has {format_value(head)}."
                )
            heads.append(int(head))
        relations = tuple(relation.partition(":")[0] for relation in of_relations.tags)  # without subtypes
        yield sentence, sentence.tags, DependencyTree(tuple(heads), relations)
