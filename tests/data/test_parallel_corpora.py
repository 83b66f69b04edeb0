"""Requirements for every parallel corpus; corpora that need downloads read small files of the same layout."""

import gzip
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqloom.config import build, to_mapping
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import CorpusConfig, corpora_of_form, multi30k, tatoeba
from seqloom.data.corpus import Corpus
from seqloom.data.examples import ParallelExample, side_counts
from seqloom.data.files import data_folder, use_data_folder
from seqloom.data.splits import hold_out, link_groups

PARALLEL = corpora_of_form("parallel")


NOUNS = ["dog", "cat", "owl", "fox"]
TABLE = "".join(f"The {noun} {n}.\tLe {noun} {n}.\tby someone\n" for n in range(12) for noun in NOUNS)
FILES = {
    **{
        f"multi30k/{split}.{language}.gz": f"A {split} {language}.\nTwo: {split} {language} \n"
        for split in ("train", "val", "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
        for language in ("en", "de", "fr")
    },
    "tatoeba/fra.txt.gz": TABLE,
    "mine.en": "".join(f"line {n}\n" for n in range(40)),
    "mine.de": "".join(f"Zeile {n}\n" for n in range(40)),
}
BY_FILES = ["multi30k", "parallel", "tatoeba"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for name, text in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def settings(name: str, folder: Path) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "parallel": {"train": [str(folder / "mine.en"), str(folder / "mine.de")]},
        "tatoeba": {"dev": 5, "test": 5},
    }
    return {"corpus": name, **options.get(name, {})}


@pytest.fixture(params=BY_FILES)
def corpus(request: pytest.FixtureRequest, folder: Path) -> Corpus[ParallelExample]:
    with use_data_folder(folder):
        return corpora.load(build(CorpusConfig[ParallelExample], settings(request.param, folder)))


def test_parallel_corpora_are_registered() -> None:
    assert set(BY_FILES) <= set(PARALLEL)
    assert not set(PARALLEL) & set(corpora.corpora_of_form("text"))


@pytest.mark.parametrize("name", BY_FILES)
def test_config_round_trips(name: str, folder: Path) -> None:
    built = build(CorpusConfig[ParallelExample], settings(name, folder))
    assert type(built) is PARALLEL[name].Config
    assert build(CorpusConfig[ParallelExample], to_mapping(built)) == built


def test_corpus_is_complete(corpus: Corpus[ParallelExample]) -> None:
    assert corpus.name in PARALLEL
    assert all((corpus.version, corpus.licence, corpus.description, *corpus.languages))
    assert set(corpus.splits) == {"train", "dev", "test"}
    pairs = [pair for pairs in corpus.splits.values() for pair in pairs]
    assert all(pair.source.strip() and pair.target.strip() and "\n" not in pair.source + pair.target for pair in pairs)


def test_no_sentence_is_in_two_splits(corpus: Corpus[ParallelExample]) -> None:
    for side in ("source", "target"):
        texts = [{getattr(pair, side) for pair in pairs} for pairs in corpus.splits.values()]
        assert all(not first & second for first, second in combinations(texts, 2))


def test_sides_have_equal_counts_and_splits_have_different_fingerprints(corpus: Corpus[ParallelExample]) -> None:
    counts = side_counts(corpus.split("train"))
    assert counts["source"].documents == counts["target"].documents == len(corpus.split("train"))
    assert len(set(corpus.fingerprint().values())) == 3
    with pytest.raises(DataError, match=r"no split 'valid'\. Its splits are train"):
        corpus.split("valid")


def test_fraction_of_multi30k_is_nested(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other"
    (copy / "multi30k").mkdir(parents=True)
    for file in (folder / "multi30k").iterdir():
        (copy / "multi30k" / file.name).write_bytes(file.read_bytes())
    for language in ("en", "de"):
        lines = "".join(f"{language} {number}\n" for number in range(50))
        (copy / f"multi30k/train.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    with use_data_folder(copy):
        complete, half, tenth, other_seed = (
            multi30k.load(multi30k.Config(fraction=fraction, seed=seed)).split("train")
            for fraction, seed in ((1.0, 0), (0.5, 0), (0.1, 0), (0.1, 1))
        )
        (note,) = multi30k.load(multi30k.Config(fraction=0.1)).notes
    assert (len(complete), len(half), len(tenth)) == (50, 25, 5) and set(tenth) < set(half) < set(complete)
    assert list(tenth) == [pair for pair in complete if pair in tenth] and set(other_seed) != set(tenth)
    assert note == "5 of 50 training pairs are used (data.fraction)"
    with pytest.raises(ValueError, match="fraction must be greater than 0; got 0"):
        multi30k.Config(fraction=0)


def test_multi30k_sides_of_different_length_are_rejected(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other"
    (copy / "multi30k").mkdir(parents=True)
    for file in (folder / "multi30k").iterdir():
        (copy / "multi30k" / file.name).write_bytes(file.read_bytes())
    (copy / "multi30k/val.de.gz").write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    with use_data_folder(copy), pytest.raises(DataError, match=r"val.en.gz has 2 and .*val.de.gz has 3"):
        corpora.load(multi30k.Config())


# --- tatoeba --------------------------------------------------------------------------------------------------------


def test_tatoeba_has_equal_splits_in_both_directions(folder: Path) -> None:
    with use_data_folder(folder):
        forward: Any = corpora.load(tatoeba.Config(dev=5, test=5))
        backward: Any = corpora.load(tatoeba.Config(source="fr", target="en", dev=5, test=5))
    for name, pairs in forward.splits.items():
        assert [ParallelExample(pair.target, pair.source) for pair in pairs] == backward.split(name)
    assert forward.split("train")[0] == ParallelExample("The dog 0.", "Le dog 0.")  # the third column is not read
    assert [len(pairs) for pairs in forward.splits.values()] == [38, 5, 5]


def test_tatoeba_max_words_excludes_long_pairs(tmp_path: Path) -> None:
    (tmp_path / "tatoeba").mkdir()
    rows = [f"a b {n}\tc d {n}\n" for n in range(6)] + ["a b c d\te\n", "e\ta b c d\n"]
    (tmp_path / "tatoeba/deu.txt").write_text("".join(rows))
    with use_data_folder(tmp_path):
        corpus: Any = corpora.load(tatoeba.Config(target="de", dev=1, test=1, max_words=3))
        assert sum(map(len, corpus.splits.values())) == 6
        with pytest.raises(DataError, match=r"6 usable pairs, too few for data.dev=5"):
            corpora.load(tatoeba.Config(target="de", dev=5, test=1, max_words=3))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"source": "fr", "target": "de"}, "one of source and target must be en"),
        ({"source": "en", "target": "en"}, "one of source and target must be en"),
        ({"target": "fra"}, "did you mean fr"),
        ({"dev": 0}, "at least 1"),
        ({"max_words": 0}, "at least 1"),
    ],
)
def test_invalid_tatoeba_settings_are_rejected(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(CorpusConfig[ParallelExample], {"corpus": "tatoeba", **setting})


@pytest.mark.parametrize("name", ["multi30k", "tatoeba"])
def test_error_for_missing_data_gives_instructions(name: str, tmp_path: Path) -> None:
    with use_data_folder(tmp_path), pytest.raises(DataError, match="which does not exist") as lacking:
        corpora.load(PARALLEL[name].Config())
    assert str(tmp_path) in str(lacking.value) and "https://" in str(lacking.value)


# --- held-out groups ------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(0, 5), st.integers(0, 5))
def test_groups_are_not_separated(groups: list[str], dev: int, test: int) -> None:
    chosen = hold_out(groups, {"dev": dev, "test": test})
    assert len(chosen) == len(groups)
    assert len(set(zip(groups, chosen, strict=True))) == len(set(groups))
    largest = max((groups.count(name) for name in groups), default=0)
    for split, size in (("dev", dev), ("test", test)):
        assert chosen.count(split) < size + max(largest, 1)
        if chosen.count("train"):  # enough examples remain
            assert chosen.count(split) >= size


def test_held_out_groups_are_independent_of_order() -> None:
    groups = [f"group {n}" for n in range(50)]
    chosen = dict(zip(groups, hold_out(groups, {"dev": 5, "test": 5}), strict=True))
    reversed_order = dict(zip(groups[::-1], hold_out(groups[::-1], {"dev": 5, "test": 5}), strict=True))
    assert chosen == reversed_order
    assert sorted(chosen.values()).count("dev") == 5


def test_transitively_linked_pairs_form_one_group() -> None:
    pairs = [("b", "1"), ("c", "2"), ("a", "1"), ("a", "3"), ("d", "3"), ("e", "e")]
    assert link_groups(pairs) == ["a", "c", "a", "a", "a", "e"]
    assert link_groups([("x", "y"), ("y", "z")]) == ["x", "y"]  # a source is not linked to an equal target


# --- real data sets -------------------------------------------------------------------------------------------------

needs_data = pytest.mark.skipif(
    data_folder() is None, reason="the data sets are missing: set SEQLOOM_DATA to their folder"
)


@needs_data
@pytest.mark.parametrize(("target", "count"), [("fr", 167_130), ("de", 169_159)])
def test_real_tatoeba_has_expected_size(target: Any, count: int) -> None:
    corpus: Any = corpora.load(tatoeba.Config(target=target))
    assert sum(map(len, corpus.splits.values())) == count
    assert all(2000 <= len(corpus.split(name)) < 2100 for name in ("dev", "test"))
    test_no_sentence_is_in_two_splits(corpus)


@needs_data
def test_real_multi30k_has_expected_sizes() -> None:
    corpus: Any = corpora.load(multi30k.Config())
    assert {name: len(pairs) for name, pairs in corpus.splits.items()} == {"train": 29_000, "dev": 1_014, "test": 1_000}
