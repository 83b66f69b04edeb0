"""Corpora of text-to-text tasks and their baselines: docstrings, trees, turns of a play, sums and letters."""

import ast
from pathlib import Path
from typing import Any

import pytest

from seqloom.config import build
from seqloom.core.dependency_trees import read_tree
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora, docstrings
from seqloom.data.baselines import BASELINES
from seqloom.data.corpora import CorpusConfig, conllu_trees, docstring_signatures, docstring_summaries, toy_pairs
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample
from seqloom.data.files import use_data_folder
from seqloom.data.splits import normal_form

MODULE = '''"""Read tables of text.

A table is a file with rows and columns, which this module reads one by one.

>>> rows("x")
"""

def rows(path: str, *, sep: str = ",") -> list[str]:
    """Return all rows of a table.

    The rows are read in order.
    """

class Table:
    async def close(self):
        """Close the file. close() may be called twice."""

    def size(self, /, *more, unit="row", **rest):
        "Return the number of rows in the table."
'''


def load(name: str, **settings: Any) -> Corpus[ParallelExample]:
    corpus: Corpus[ParallelExample] = corpora.load(build(CorpusConfig[ParallelExample], {"corpus": name, **settings}))
    return corpus


# --- docstrings -------------------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> list[docstrings.Documented]:
    for name in ("tables.py", "package/part.py", "package/test/skipped.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "broken.py").write_text("def f(:")
    return list(docstrings.read_docstrings(tmp_path))


def test_docstrings_are_read_without_imports(library: list[docstrings.Documented]) -> None:
    signatures = {item.signature for item in library if item.package == "tables"}
    assert signatures == {
        "",
        "def rows(path, *, sep=','):",
        "async def close(self):",
        "def size(self, /, *more, unit='row', **rest):",
    }
    assert [item.package for item in library] == ["package"] * 4 + ["tables"] * 4


def test_summary_is_the_first_line_and_the_source_is_the_body(library: list[docstrings.Documented]) -> None:
    pairs = [pair for item in library[:4] for _, pair in docstring_summaries.summary_pairs(item, 10)]
    # The body of `rows` is too short, and the example of the module is left out
    assert pairs == [ParallelExample("A table is a file with rows and columns, which", "Read tables of text.")]
    long = docstrings.Documented("p", "f", "Return every row.\n\nThe rows of all tables are read in order.")
    ((package, pair),) = docstring_summaries.summary_pairs(long, 60)
    assert (package, pair.target) == ("p", "Return every row.")
    for text in (
        "f(x) -> list of rows\n\nThe rows of all tables are read in order.",
        "Return every row\nof a table.\n\nThe rows of all tables are read in order.",
        "Return every row.",
    ):
        assert list(docstring_summaries.summary_pairs(docstrings.Documented("p", "f", text), 60)) == []


def test_function_whose_docstring_states_its_signature_is_omitted(library: list[docstrings.Documented]) -> None:
    config = docstring_signatures.Config(max_characters=40)
    targets = [pair.target for item in library[:4] for _, pair in docstring_signatures.signature_pairs(item, config)]
    assert targets == ["def rows(path, *, sep=','):"]  # the header of `size` has more than 40 characters


@pytest.mark.parametrize("name", ["docstring-summaries", "docstring-signatures"])
def test_packages_and_docstrings_are_in_one_split(name: str) -> None:
    corpus = load(name)
    sources = {split: {normal_form(pair.source) for pair in pairs} for split, pairs in corpus.splits.items()}
    assert sum(map(len, sources.values())) == len(set().union(*sources.values())) > 1000
    assert all(len(sources[split]) >= 0.1 * sum(map(len, sources.values())) - 1 for split in ("dev", "test"))
    if name == "docstring-signatures":
        assert all(ast.parse(f"{pair.target} pass") for pairs in corpus.splits.values() for pair in pairs)


def test_missing_source_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"contains none\. Install Python with the source files"):
        list(docstrings.read_docstrings(tmp_path))


# --- dependency trees -------------------------------------------------------------------------------------------------


def conllu(*sentences: str) -> str:
    """Write sentences of `word/head/relation`."""
    lines = []
    for sentence in sentences:
        for number, item in enumerate(sentence.split(), start=1):
            word, head, relation = item.split("/")
            lines.append(f"{number}\t{word}\t_\tTAG{number}\t_\t_\t{head}\t{relation}\t_\t_")
        lines.append("")
    return "\n".join(lines)


def test_trees_are_written_in_brackets(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    crossing = "a/3/x b/4/x c/0/root d/3/x"
    file.write_text(conllu("John/2/nsubj:pass sleeps/0/root (/2/punct", crossing, "a/0/root b/1/x c/1/x d/1/x e/1/x"))
    pairs, notes = conllu_trees.read_trees(file, max_words=4, leaves="words")
    assert pairs == [ParallelExample("John sleeps (", "(root (nsubj John ) sleeps (punct -LRB- ) )")]
    assert notes == [
        "1 sentence was left out of a.conllu, because trees that are not projective cannot be written in brackets"
    ]
    pairs, _ = conllu_trees.read_trees(file, max_words=3, leaves="tags")
    assert pairs[0].target == "(root (nsubj TAG1 ) TAG2 (punct TAG3 ) )"
    pairs, _ = conllu_trees.read_trees(file, max_words=3, leaves="numbers")
    assert pairs[0].target == "(root (nsubj 1 ) 2 (punct 3 ) )"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a/7/root",
            "Line 1 of .* must have the number of a word of its sentence, or 0, .* HEAD, but has '7'",
        ),
        ("a/_/root", "Line 1 of .* but has '_'"),
        ("a/1/root", "must contain projective trees of at most 12 words, but it contains none"),
    ],
)
def test_invalid_heads_are_reported(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(conllu(content))
    with pytest.raises(DataError, match=message):
        conllu_trees.read_trees(file, max_words=12, leaves="words")


# --- dialogue ---------------------------------------------------------------------------------------------------------

PLAY = "\n\n".join(f"{'AB'[n % 2]}:\nturn {n}\nof a play" for n in range(40)) + "\n\nno speaker\n\n"


def test_history_changes_sources_but_not_targets(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare/input.txt").write_text(PLAY)
    with use_data_folder(tmp_path):
        short, long = (load("shakespeare-turns", history=history) for history in (0, 2))
        few = load("shakespeare-turns", max_words=4)
    assert short.split("train")[2] == ParallelExample("A: turn 2 of a play | B:", "turn 3 of a play")
    assert long.split("train")[2].source == "A: turn 0 of a play | B: turn 1 of a play | A: turn 2 of a play | B:"
    for split in ("train", "dev", "test"):
        assert [pair.target for pair in short.split(split)] == [pair.target for pair in long.split(split)]
    # The first turn of each split is no target, so no turn of train is in the source of a turn of dev
    assert [len(pairs) for pairs in short.splits.values()] == [31, 3, 3]
    assert not any(few.splits.values())  # every turn has five words


# --- sums and letters -------------------------------------------------------------------------------------------------


def test_generated_targets_follow_from_the_sources() -> None:
    for task, rule in (
        ("add", lambda source: str(sum(map(int, source.split("+"))))),
        ("copy", str),
        ("reverse", lambda source: source[::-1]),
    ):
        corpus = load("toy-pairs", task=task, length=4, train=300, dev=30, test=30)
        pairs = [pair for pairs in corpus.splits.values() for pair in pairs]
        assert all(pair.target == rule(pair.source) for pair in pairs)
        assert len({pair.source for pair in pairs}) == len(pairs) == 360


def test_more_pairs_than_possible_are_refused() -> None:
    with pytest.raises(DataError, match="more than half of the 100 possible pairs; got 60"):
        toy_pairs.load(toy_pairs.Config(length=1, train=40, dev=10, test=10))
    with pytest.raises(UsageError, match="length"):
        load("toy-pairs", length=0)


# --- baselines --------------------------------------------------------------------------------------------------------


def test_baselines_use_only_training_pairs_and_sources() -> None:
    train = [
        ParallelExample("one two", "(root (a one ) two )"),
        ParallelExample("three", "(root three )"),
        ParallelExample("four five", "(root four (b five ) )"),
        ParallelExample("six seven", "(root six (b seven ) )"),
        ParallelExample("four", "(root three )"),
    ]
    sources = ["x y z", "four five. Six"]
    predictions = {name: baseline.predict(train, sources) for name, baseline in BASELINES.items()}
    assert predictions == {
        "nearest": [predictions["nearest"][0], "(root four (b five ) )"],
        "lead": ["x y z", "four five."],
        "most-frequent": ["(root three )"] * 2,
        "right-branching": ["(root x (b y (b z ) ) )", "(root four (b five. (b Six ) ) )"],
    }
    tree = read_tree(predictions["right-branching"][0])
    assert tree is not None and tree.heads == (0, 1, 2)
