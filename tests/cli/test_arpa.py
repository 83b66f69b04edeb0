import gzip
import math
from pathlib import Path
from typing import Any

import pytest

from seqloom.predict.loader import load

TEXTS = ["the cat sat here .", "the zyx saw the naïve fox .", "dog the dog", "", "."]

TINY = """\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-99\t<s>\t-0.2
-0.5\t</s>
-0.4\tone\t-0.1
-0.6\ttwo
-1.0\t<unk>

\\2-grams:
-0.3\t<s> one
-0.2\tone two

\\end\\
"""


@pytest.fixture(scope="module")
def arpa(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from seqloom.cli.app import main

    file = tmp_path_factory.mktemp("arpa") / "grams.arpa"
    assert main(["arpa", "export", str(runs / "grams"), str(file)]) == 0
    return file


def test_export_prints_sizes(seqloom: Any, runs: Path, tmp_path: Path, arpa: Path) -> None:
    shown = seqloom("arpa", "export", runs / "grams", tmp_path / "a.arpa.gz")
    assert shown.code == 0 and shown.err == ""
    assert shown.out.startswith(f"Wrote {tmp_path / 'a.arpa.gz'}: ")
    assert "3-grams" in shown.out
    assert gzip.decompress((tmp_path / "a.arpa.gz").read_bytes()) == arpa.read_bytes()


def test_scores_match_kenlm(runs: Path, arpa: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    model = kenlm.LanguageModel(str(arpa))
    for scored in load(runs / "grams").score(TEXTS):
        theirs = [log10 for log10, _, _ in model.full_scores(scored.text, bos=True, eos=True)]
        assert [value / math.log(10) for value in scored.log_probs] == pytest.approx(theirs, abs=1e-5)


def test_reimported_model_has_equal_scores(seqloom: Any, runs: Path, tmp_path: Path, texts: Path, arpa: Path) -> None:
    shown = seqloom("arpa", "import", arpa, tmp_path / "my run")
    assert shown.code == 0 and shown.err == ""
    assert f"seqloom generate '{tmp_path / 'my run'}'" in shown.out
    for ours, theirs in zip(load(runs / "grams").score(TEXTS), load(tmp_path / "my run").score(TEXTS), strict=True):
        assert theirs.tokens == ours.tokens
        assert theirs.log_probs == pytest.approx(ours.log_probs, abs=1e-9)
    original, imported = (
        seqloom("evaluate", run, texts / "test.txt", "--documents=line", "--json").json
        for run in (runs / "grams", tmp_path / "my run")
    )
    for name in ("loss", "word_perplexity", "bits_per_character", "words"):
        assert imported[name] == pytest.approx(original[name], rel=1e-9)


def test_imported_run_works_with_other_commands(seqloom: Any, runs: Path, tmp_path: Path, arpa: Path) -> None:
    run = tmp_path / "run"
    assert seqloom("arpa", "import", arpa, run).code == 0
    assert seqloom("generate", run, "--prompt=the cat", "--tokens=4").out.startswith("the cat ")
    assert seqloom("arpa", "export", run, tmp_path / "again.arpa").code == 0
    compared = seqloom("compare", run, runs / "grams", "--json").json
    assert "dev metrics are missing" in compared["not_ranked"]
    assert all(row["finished"] for row in compared["runs"])
    seqloom("evaluate", run).fails_with(3, "because the model was imported", "seqloom evaluate RUN FILE")
    seqloom("train", "--resume", run).fails_with(3, "because the model was imported")


def test_model_without_unknown_word_is_rejected(seqloom: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.arpa").write_text(TINY.replace("ngram 1=5", "ngram 1=4").replace("-1.0\t<unk>\n", ""))
    seqloom("arpa", "import", tmp_path / "tiny.arpa", tmp_path / "run").fails_with(3, "<unk>")
    assert not (tmp_path / "run").exists()


def test_handwritten_model_has_its_listed_scores(seqloom: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.arpa").write_text(TINY)
    assert seqloom("arpa", "import", tmp_path / "tiny.arpa", tmp_path / "run").code == 0
    known, unknown = seqloom("score", tmp_path / "run", "one two", "two three", "--json").objects
    assert [token["token"] for token in known["tokens"]] == ["one", "two", "</s>"]
    assert [token["log_prob"] / math.log(10) for token in known["tokens"]] == pytest.approx([-0.3, -0.2, -0.5])
    assert unknown["unknown"] == ["three"]
    assert [token["log_prob"] / math.log(10) for token in unknown["tokens"]] == pytest.approx([-0.2 - 0.6, -1.0, -0.5])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("ngram 2=2", "ngram 2=3"), "line 16"),
        (("-0.4\tone\t-0.1", "x\tone\t-0.1"), "line 8"),
        (("-0.4\tone\t-0.1", "0.4\tone\t-0.1"), "line 8"),
        (("-0.2\tone two", "-0.2\tone three"), "line 14"),
        (("\\data\\", ""), "line 1"),
        (("\\end\\\n", ""), "line 1"),
        (("-0.6\ttwo", "-0.6\tone"), "line 9"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[1]),
)
def test_invalid_line_is_reported_by_number(seqloom: Any, tmp_path: Path, change: tuple[str, str], line: str) -> None:
    file = tmp_path / "broken.arpa"
    file.write_text(TINY.replace(*change))
    seqloom("arpa", "import", file, tmp_path / "run").fails_with(3, str(file), line)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"not an ARPA file\n", b""], ids=["bytes", "text", "empty"])
def test_other_file_formats_are_rejected(seqloom: Any, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.arpa"
    file.write_bytes(content)
    seqloom("arpa", "import", file, tmp_path / "run").fails_with(3, str(file), lines=1)
    (tmp_path / "x.arpa.gz").write_bytes(content)
    seqloom("arpa", "import", tmp_path / "x.arpa.gz", tmp_path / "run").fails_with(3, "x.arpa.gz", lines=1)


def test_invalid_paths_and_models_are_rejected(seqloom: Any, runs: Path, tmp_path: Path, arpa: Path) -> None:
    seqloom("arpa", "import", tmp_path / "no.arpa", tmp_path / "run").fails_with(3, "no.arpa does not exist", lines=1)
    seqloom("arpa", "import", tmp_path, tmp_path / "run").fails_with(3, "is a folder", lines=1)
    seqloom("arpa", "import", arpa, runs / "grams").fails_with(2, f"{runs / 'grams'} exists", lines=1)
    seqloom("arpa", "export", runs / "chars", tmp_path / "a.arpa").fails_with(2, "requires an n-gram model", lines=1)
    seqloom("arpa", "export", runs / "grams", arpa).fails_with(2, f"{arpa} exists", lines=1)
    seqloom("arpa", "export", runs / "grams", tmp_path / "no/a.arpa").fails_with(2, "does not exist", lines=1)
    seqloom("arpa", "export", tmp_path, tmp_path / "a.arpa").fails_with(4, "is not a run", lines=1)
    assert not (tmp_path / "a.arpa").exists()
