"""Requirements for every corpus of plain text; corpora that need downloads read small files of the same layout."""

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.data.example_files import FILES as EXAMPLES

from seqloom.config import build, config, to_mapping
from seqloom.core.errors import DataError, UsageError
from seqloom.data import corpora
from seqloom.data.corpora import CORPORA, CorpusConfig, corpora_of_form, pydocs
from seqloom.data.corpus import TextCorpus, TextCounts, digest
from seqloom.data.files import data_folder, use_data_folder

PLAIN = corpora_of_form("text")


FILES = {
    "tinyshakespeare/input.txt.gz": "".join(f"Speaker {n}:\nWords of speech {n}.\n\n" for n in range(40)),
    "ptb/ptb.train.txt.gz": " the <unk> of n \n a b c \n",
    "ptb/ptb.valid.txt.gz": " dev words \n",
    "ptb/ptb.test.txt.gz": " test words here \n more \n",
    "wikitext-2/train.txt.gz": " \n = Title = \n \n Text @-@ here <unk> . \n",
    "wikitext-2/valid.txt.gz": " \n = Dev = \n",
    "wikitext-2/test.txt.gz": " \n = Test = \n \n Ü . \n",
    **{
        f"multi30k/{split}.{language}.gz": f"A {split} {language}.\n\nA {split} {language}, too. \nThe same.\n"
        for split in ("train", "val", "test_2016_flickr")
        for language in ("en", "de")
    },
    "mine.txt": "".join(f"my line {n}\n" for n in range(30)),
    **{name: text for name, text in EXAMPLES.items() if name.startswith("sst2/")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def settings(name: str, folder: Path) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "text": {"train": str(folder / "mine.txt")},
        "toys": {"train": 200, "dev": 20, "test": 20},
    }
    return {"corpus": name, **options.get(name, {})}


@pytest.fixture(params=[name for name in PLAIN if name != "imported"])
def corpus(request: pytest.FixtureRequest, folder: Path) -> TextCorpus:
    with use_data_folder(folder):
        return corpora.load(build(CorpusConfig[str], settings(request.param, folder)))


def test_corpus_names_match_file_names() -> None:
    files = {path.stem.replace("_", "-") for path in Path(corpora.__path__[0]).glob("[!_]*.py")}
    assert set(CORPORA) == files >= {"pydocs", "toys", "text", "shakespeare", "ptb", "wikitext2"}


@pytest.mark.parametrize(("name", "module"), CORPORA.items())
def test_corpus_modules_follow_the_interface(name: str, module: ModuleType) -> None:
    assert module.Config.__dataclass_fields__["corpus"].default == name
    assert 0 < len(module.SUMMARY) <= 100
    assert "\n" not in module.SUMMARY
    assert f"\n    {module.FORM} " in str(corpora.__doc__)


def test_corpus_name_selects_config(folder: Path) -> None:
    for name, module in PLAIN.items():
        built = build(CorpusConfig[str], settings(name, folder))
        assert type(built) is module.Config
        assert build(CorpusConfig[str], to_mapping(built)) == built


def test_recipe_selects_corpus_config() -> None:
    @config
    class Recipe:
        data: CorpusConfig[str]

    assert build(Recipe, {"data": {"corpus": "pydocs"}}).data == pydocs.Config()
    with pytest.raises(UsageError, match="pydocs"):
        build(Recipe, {"data": {"corpus": "pydoc"}})
    with pytest.raises(UsageError, match="seed"):
        build(Recipe, {"data": {"corpus": "toys", "sed": 1}})


def test_unknown_name_is_rejected() -> None:
    with pytest.raises(UsageError, match="did you mean shakespeare"):
        corpora.find("shakespear")


def test_import_loads_no_heavy_packages() -> None:
    script = f"import sys\nsys.path[:0] = {sys.path!r}\nimport seqloom.data.corpora\nprint(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"'torch'", "'numpy'", "'pydoc_data.topics'", "'tokenizers'"} & set(loaded.strip("[]\n").split(", "))


def test_captions_of_dev_and_test_are_not_in_train(folder: Path) -> None:
    with use_data_folder(folder):
        corpus = corpora.load(build(CorpusConfig[str], {"corpus": "multi30k-text"}))
        german = corpora.load(build(CorpusConfig[str], {"corpus": "multi30k-text", "languages": ["de"]}))
    assert corpus.split("train") == ["A train en.", "A train en, too.", "A train de.", "A train de, too."]
    assert corpus.split("dev") == ["A val en.", "A val en, too.", "The same.", "A val de.", "A val de, too."]
    assert german.split("test") == ["A test_2016_flickr de.", "A test_2016_flickr de, too."]
    for languages in ([], ["en", "en"]):
        with pytest.raises(UsageError, match="languages must be at least one language"):
            build(CorpusConfig[str], {"corpus": "multi30k-text", "languages": languages})


def test_imported_corpus_has_no_text() -> None:
    for name, option in (
        ("imported", "seqloom evaluate RUN FILE"),
        ("imported-pairs", "--source FILE --reference FILE"),
    ):
        corpus = CORPORA[name].load(CORPORA[name].Config(directory="gpt2"))
        assert (corpus.version, corpus.splits, corpus.fingerprint()) == ("gpt2", {}, {})
        for split in ("train", "dev", "test"):
            with pytest.raises(DataError, match=f"the model was imported.*{option}"):
                corpus.split(split)


def test_corpus_has_metadata_and_nonempty_splits(corpus: TextCorpus) -> None:
    assert corpus.name in PLAIN
    assert all((corpus.version, corpus.licence, corpus.description))
    assert "train" in corpus.splits
    for name in ("train", "dev", "test"):
        assert (name in corpus.splits) != (name in corpus.absent)
    assert all(any(document.strip() for document in documents) for documents in corpus.splits.values())


def test_splits_do_not_overlap(corpus: TextCorpus) -> None:
    for first, second in combinations(corpus.splits.values(), 2):
        assert not {text for text in first if text.strip()} & {text for text in second if text.strip()}


def test_error_for_an_absent_split_states_the_reason(corpus: TextCorpus) -> None:
    for name, reason in corpus.absent.items():
        with pytest.raises(DataError, match=f"{corpus.name} has no {name} split"):
            corpus.split(name)
        assert reason
    with pytest.raises(DataError, match=r"no split 'valid'\. Its splits are train"):
        corpus.split("valid")


def test_counts_match_direct_counts(corpus: TextCorpus) -> None:
    for name in corpus.splits:
        counts = corpus.counts(name)
        documents = corpus.split(name)
        stream = "".join(document + "\n" for document in documents)
        assert counts.characters == len(stream)
        assert counts.bytes == len(stream.encode())
        assert counts.words == len(stream.split()) + len(documents)
        assert counts == corpus.counts(name)


FINGERPRINTS = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from seqloom.config import build
from seqloom.data import corpora
for settings in json.loads(sys.argv[2]):
    corpus = corpora.load(build(corpora.CorpusConfig[str], settings))
    print(corpus.name, corpus.version, corpus.fingerprint())
"""


def test_fingerprints_are_equal_in_every_process(folder: Path) -> None:
    arguments = [json.dumps(sys.path), json.dumps([settings(name, folder) for name in PLAIN])]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", FINGERPRINTS, *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed, "SEQLOOM_DATA": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) == len(PLAIN)


def test_fingerprint_depends_on_text_and_document_boundaries() -> None:
    different = [["ab", "c"], ["a", "bc"], ["abc"], ["ab", "c", ""], ["c", "ab"]]
    assert len(set(map(digest, different))) == len(different)


def test_counts_match_worked_example() -> None:
    assert TextCounts.of(["a bc", "", "é"]) == TextCounts(documents=3, words=6, characters=8, bytes=9)


@pytest.mark.parametrize("name", ["shakespeare", "ptb", "wikitext2"])
def test_error_for_missing_data_gives_instructions(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    with pytest.raises(DataError, match=r"SEQLOOM_DATA is not set.*\.txt\.gz") as unset:
        corpora.load(CORPORA[name].Config())
    monkeypatch.setenv("SEQLOOM_DATA", str(tmp_path))
    with pytest.raises(DataError, match="which does not exist") as lacking:
        corpora.load(CORPORA[name].Config())
    assert str(tmp_path) in str(lacking.value)
    for error in (unset, lacking):
        assert "https://github.com/" in str(error.value)
        assert str(error.value).count("\n") == 1


def test_data_folder_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQLOOM_DATA", raising=False)
    assert data_folder() is None
    monkeypatch.setenv("SEQLOOM_DATA", "~/sets")
    assert data_folder() == Path.home() / "sets"
    with use_data_folder(tmp_path):
        assert data_folder() == tmp_path
        with use_data_folder(None):
            assert data_folder() == tmp_path
    assert data_folder() == Path.home() / "sets"


def test_uncompressed_files_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare/input.txt").write_text("0123456789" * 3)
    with use_data_folder(tmp_path):
        corpus = corpora.load(CORPORA["shakespeare"].Config())
    assert corpus.splits == {"train": ["0123456789" * 2 + "0123456"], "dev": ["789"]}


def test_ptb_and_wikitext_lines_are_documents(folder: Path) -> None:
    with use_data_folder(folder):
        ptb, wiki = (corpora.load(CORPORA[name].Config()) for name in ("ptb", "wikitext2"))
    assert ptb.split("train") == [" the <unk> of n ", " a b c "]
    assert ptb.counts("test") == TextCounts(documents=2, words=6, characters=25, bytes=25)
    assert wiki.split("test") == [" ", " = Test = ", " ", " Ü . "]


@dataclass(frozen=True)
class UnknownConfig:
    corpus: str


def test_loading_unknown_corpus_is_rejected() -> None:
    with pytest.raises(UsageError, match="Unknown corpus 'nothing'"):
        corpora.load(UnknownConfig("nothing"))
