import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

HYPOTHESES = ["The guard arrived late because of the rain", "he he he", "He He He eats tasty fruit"]
FIRST = ["The guard arrived late because it was raining", "He eats an apple", "He eats a sweet apple"]
SECOND = ["It rained, so the guard was late", "He ate an apple", "He is eating a tasty apple"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The hypotheses and two references."""
    paths = tmp_path / "hyp.txt", tmp_path / "ref.txt", tmp_path / "ref2.txt"
    for path, lines in zip(paths, (HYPOTHESES, FIRST, SECOND), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def test_scores_match_sacrebleu(seqloom: Any, files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, two = files
    bleu, chrf = BLEU(), CHRF()
    expected = bleu.corpus_score(HYPOTHESES, [FIRST, SECOND]), chrf.corpus_score(HYPOTHESES, [FIRST, SECOND])
    result = seqloom("bleu", "--reference", one, "--reference", two, "--hypothesis", hypotheses, "--json").json
    assert (result["bleu"], result["chrf"]) == (expected[0].score, expected[1].score)
    assert result["signatures"] == {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    assert "nrefs:2|" in result["signatures"]["bleu"]
    assert (result["correct"], result["total"]) == (expected[0].counts, expected[0].totals)
    assert (result["hypothesis_length"], result["reference_length"]) == (expected[0].sys_len, expected[0].ref_len)
    assert result["lines"] == 3 and "explained" not in result
    shown = seqloom("bleu", "--reference", one, "--reference", two, "--hypothesis", hypotheses)
    assert shown.err == ""
    assert f"BLEU  {expected[0].score:6.2f}   {bleu.get_signature()}\n" in shown.out
    assert f"chrF  {expected[1].score:6.2f}   {chrf.get_signature()}\n" in shown.out


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "none", "zh"])
def test_tokenize_and_lowercase_give_the_scores_of_sacrebleu(
    seqloom: Any, files: tuple[Path, Path, Path], tokenize: str
) -> None:
    hypotheses, one, _ = files
    words = ["--reference", one, "--hypothesis", hypotheses, "--tokenize", tokenize, "--lowercase", "--json"]
    result = seqloom("bleu", *words, "--explain", 2).json
    score = BLEU(tokenize=tokenize, lowercase=True, force=True).corpus_score(HYPOTHESES, [FIRST])
    assert result["bleu"] == score.score
    assert result["precisions"] == pytest.approx([precision / 100 for precision in score.precisions])
    assert f"case:lc|eff:no|tok:{tokenize}" in result["signatures"]["bleu"]
    assert "case:lc" in result["signatures"]["chrf"]
    tokens = [*"hehehe"] if tokenize == "char" else ["he"] * 3
    assert result["explained"]["hypothesis"] == tokens


def test_explain_prints_each_step(seqloom: Any, files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, two = files
    shown = seqloom("bleu", "--reference", one, "--hypothesis", hypotheses, "--explain", 1).out
    for step in (
        "Line 1 of 3",
        "hypothesis    8 tokens  The guard arrived late because of the rain",
        "not in the reference: of | the | rain",
        "p_1 = 5/8 = 0.6250",
        "c = r, so BP = exp(1 − r/c) = exp(1 − 8/8) = 1.0000",
        "BLEU-4 = 100 × 1 × (5/8 × 4/7 × 3/6 × 2/5)^(1/4) = 51.70",
        "sacrebleu's score for this line: 51.70",
        "Corpus of 3 lines",
        "p_1 = 7/17 = 0.4118, where this line contributes 5/8",
    ):
        assert step in shown, step
    assert f"sacrebleu's score for this corpus: {BLEU().corpus_score(HYPOTHESES, [FIRST]).score:.2f}" in shown
    shown = seqloom("bleu", "--reference", one, "--reference", two, "--hypothesis", hypotheses, "--explain", 3).out
    assert "p_1 = 3/6 = 0.5000   (without clipping it would be 5/6)" in shown
    assert "the closest of the lengths 5, 6" in shown


def test_json_explanation_has_counts_of_every_ngram(seqloom: Any, files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, _ = files
    result = seqloom("bleu", "--reference", one, "--hypothesis", hypotheses, "--explain", 1, "--json").json["explained"]
    assert result["line"] == 1
    assert (result["correct"], result["total"], result["brevity_penalty"]) == ([5, 4, 3, 2], [8, 7, 6, 5], 1)
    assert [round(value, 2) for value in result["unsmoothed"]] == [62.5, 59.76, 56.31, 51.7]
    assert result["sacrebleu"] == pytest.approx(result["unsmoothed"][3])
    assert result["ngrams"][1][0] == {"ngram": ["The", "guard"], "count": 1, "reference_count": 1, "clipped": 1}
    assert [len(ngrams) for ngrams in result["ngrams"]] == [8, 7, 6, 5]


def test_hypotheses_are_read_from_standard_input(seqloom: Any, type_in: Any, files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, _ = files
    from_file = seqloom("bleu", "--reference", one, "--hypothesis", hypotheses).out
    type_in(hypotheses.read_bytes())
    assert seqloom("bleu", "--reference", one, "--hypothesis", "-").out == from_file
    type_in(b"only one line\n")
    seqloom("bleu", "--reference", one, "--hypothesis", "-").fails_with(3, f"{one} has 3", "standard input has 1")
    type_in(b"\n")
    seqloom("bleu", "--reference", one, "--hypothesis", "-").fails_with(3, "but it is empty", lines=1)
    type_in(b"a\nb\xff\nc\n")
    seqloom("bleu", "--reference", one, "--hypothesis", "-").fails_with(3, "UTF-8", "line 2", "0xFF", lines=1)
    seqloom("bleu", "--reference", "-", "--hypothesis", hypotheses).fails_with(2, "--reference must be a file", lines=1)


def test_only_line_feeds_end_lines(seqloom: Any, tmp_path: Path) -> None:
    hypotheses, one = tmp_path / "hyp.txt", tmp_path / "ref.txt"
    hypotheses.write_bytes("a b\u2028c d\r\n\r\nlast\x0cline\n".encode())
    one.write_bytes(b"a b c d\n\nlast line")
    result = seqloom("bleu", "--reference", one, "--hypothesis", hypotheses, "--json").json
    assert result["lines"] == 3 and result["bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["does not exist"]),
        (b"", ["is empty"]),
        (b"\n\n\n", ["is empty"]),
        (b"a\nb\xff\nc\n", ["UTF-8", "line 2", "0xFF"]),
        (b"a\nb\n", ["hyp.txt has 3", "bad.txt has 2", "same number of lines"]),
    ],
)
def test_invalid_files_are_rejected(
    seqloom: Any, files: tuple[Path, Path, Path], content: bytes | None, words: list[str]
) -> None:
    hypotheses, one, _ = files
    bad = hypotheses.with_name("bad.txt")
    if content is not None:
        bad.write_bytes(content)
    seqloom("bleu", "--reference", one, "--reference", bad, "--hypothesis", hypotheses).fails_with(3, str(bad), *words)


def test_invalid_arguments_are_rejected(seqloom: Any, files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, _ = files
    pair = ["--reference", one, "--hypothesis", hypotheses]
    seqloom("bleu", *pair, "--explain", 4).fails_with(2, "from 1 to 3", "got 4", lines=1)
    seqloom("bleu", *pair, "--explain", 0).fails_with(2, "from 1 to 3", "got 0", lines=1)
    seqloom("bleu", *pair, "--tokenize", "chars").fails_with(2, "'chars'", "did you mean char?", lines=1)
    seqloom("bleu", "--hypothesis", hypotheses).fails_with(2, "--reference")
    seqloom("bleu", "--reference", one).fails_with(2, "--hypothesis")


def test_bleu_does_not_import_torch(files: tuple[Path, Path, Path]) -> None:
    hypotheses, one, _ = files
    program = (
        "import sys; from seqloom.cli.app import main\n"
        f"code = main(['bleu', '--reference', {str(one)!r}, '--hypothesis', {str(hypotheses)!r}, '--explain', '1'])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0
