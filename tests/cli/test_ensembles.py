"""Ensembles of translators: `seqloom translate A B`, `seqloom evaluate A B` and `seqloom.ensemble`."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checksums import update_checksums

import seqloom as package
from seqloom.cli.translate import split_words
from seqloom.core.errors import UsageError
from seqloom.decoding.beam import BeamConfig
from seqloom.evaluate.alignment import from_pharaoh
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor
from seqloom.text.base import digest

LINES = ["the cat sat 3 .", "", "a dog ran", "the owl slept 5 ."]


@pytest.fixture
def copies(translators: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(translators, tmp_path / "runs"))


# --- translate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("one", "two"), ("one", "transformer"), ("blind", "transformer", "two")])
def test_paths_before_texts_are_combined_as_an_ensemble(
    seqloom: Any, translators: Path, type_in: Any, names: tuple[str, ...]
) -> None:
    paths = [translators / name for name in names]
    expected = [one.text for one in package.ensemble(paths, "cpu").translate(LINES)]
    shown = seqloom("translate", *paths, *LINES)
    assert (shown.code, shown.out) == (0, "".join(f"{text}\n" for text in expected))
    type_in("\n".join(LINES).encode())
    assert seqloom("translate", *paths).out == shown.out
    assert expected[1] == "" and all(text for text in expected if text != expected[1])


@pytest.mark.parametrize("name", ["one", "transformer", "blind"])
def test_ensemble_of_one_model_gives_the_results_of_the_model(seqloom: Any, translators: Path, name: str) -> None:
    run, words = translators / name, [*LINES, "--n-best", "3", "--json"]
    alone, twice = seqloom("translate", run, *words), seqloom("translate", run, run, *words)
    assert alone.code == 0 and twice.out == alone.out
    assert seqloom("translate", run, run, run, *words).out == alone.out


def test_ensemble_differs_from_its_members(seqloom: Any, translators: Path) -> None:
    one, other = translators / "one", translators / "transformer"
    outputs = {seqloom("translate", *runs, *LINES, "--json").out for runs in ([one], [other], [one, other])}
    assert len(outputs) == 3


def test_probability_is_the_mean_of_the_members(translators: Path) -> None:
    parts = [load(translators / name, "cpu", TranslatorPredictor) for name in ("one", "transformer", "blind")]
    together = package.ensemble(parts)
    (result,) = together.translate("the cat sat 3 .", beam=1)
    tokenizer, ids = together.tokenizer, result.candidates[0].ids
    source = torch.tensor([[*tokenizer.encode("the cat sat 3 ."), 0]])
    output = [*ids, 0] if result.candidates[0].finished else ids
    with torch.no_grad():
        logits = [part.model(source, None, torch.tensor([[0, *output[:-1]]])) for part in parts]
    chances = [one[0].double().softmax(-1)[torch.arange(len(output)), output] for one in logits]
    by_hand = sum(math.log(float(sum(at) / 3)) for at in zip(*chances, strict=True))
    assert result.log_prob == pytest.approx(by_hand, abs=1e-4)


def test_all_options_are_passed_to_the_search(seqloom: Any, translators: Path) -> None:
    runs = [translators / "one", translators / "transformer"]
    assert seqloom("translate", *runs, "the cat", "--prefix", "3 Katze").out.startswith("3 Katze")
    lines = seqloom("translate", *runs, "the cat", "the dog", "--n-best", "2", "--beam", "4").out.splitlines()
    assert [line.split(" ||| ")[0] for line in lines] == ["0", "0", "1", "1"]
    long = seqloom("translate", *runs, "the cat", "--min-length", "9", "--max-length", "9", "--json").json
    assert len(long["translation"].split()) == 8 or not long["candidates"][0]["finished"]
    sums = seqloom("translate", *runs, "the cat", "--length-penalty", "0", "--stopping", "exact", "--json").json
    assert sums["score"] == pytest.approx(sums["log_prob"])
    assert seqloom("translate", *runs, "the cat", "--coverage-penalty", "0.2").code == 0
    seqloom("translate", *runs, "x", "--beam", "2", "--n-best", "3").fails_with(
        2, "--n-best must be at most --beam", lines=1
    )


def test_alignment_is_the_mean_over_members_with_attention(seqloom: Any, translators: Path) -> None:
    one, two, blind = (translators / name for name in ("one", "two", "blind"))
    result = seqloom("translate", one, two, blind, "the cat sat 3 .", "--alignment", "--json").json
    assert result["source_words"] == ["the", "cat", "sat", "3", "."]
    assert all(a < 5 and b < len(result["words"]) for a, b in from_pharaoh(result["alignment"]))
    parts = [load(path, "cpu", TranslatorPredictor) for path in (one, two, blind)]
    together, target = package.ensemble(parts), result["translation"]
    view = together.attention("the cat sat 3 .", target)
    mean = (parts[0].attention("the cat sat 3 .", target).tokens.weights) / 2
    mean = mean + parts[1].attention("the cat sat 3 .", target).tokens.weights / 2
    torch.testing.assert_close(torch.tensor(view.tokens.weights), torch.tensor(mean), atol=1e-6, rtol=0)
    assert together.attention("the cat sat 3 .").links == result["alignment"]
    shown = seqloom("translate", blind, blind, "the cat", "--alignment")
    shown.fails_with(2, f"{blind} + {blind} has no attention weights", lines=1)


def test_different_vocabularies_are_rejected(seqloom: Any, translators: Path, runs: Path) -> None:
    one, other = translators / "one", translators / "bytes"
    output = (
        f"seqloom: {one} and {other} cannot be combined because their tokenizers differ (26 words of parallel "
        "and 270 byte-pair of parallel). Train them on the same data with the same tokenizer section.\n"
    )
    for command in (["translate", one, other, "the cat"], ["evaluate", one, other]):
        shown = seqloom(*command)
        shown.fails_with(2, lines=1)
        assert shown.err == output


def retold(translators: Path, folder: Path, **data: str) -> Path:
    """Copy the run `two` with a vocabulary in which two words are swapped, and with other data."""
    created = folder / "two"
    shutil.copytree(translators / "two", created)
    described = json.loads((created / "data.json").read_text())
    tokenizer = json.loads((created / "tokenizer.json").read_text())
    words = tokenizer["content"]["words"]
    words[-2:] = words[:-3:-1]
    tokenizer["sha256"] = digest("words", tokenizer["content"])
    (created / "tokenizer.json").write_text(json.dumps(tokenizer))
    (created / "data.json").write_text(json.dumps(described | data))
    update_checksums(created)
    return created


@pytest.mark.parametrize(
    ("data", "apart"),
    [
        ({"target": "fr"}, "26 words of parallel, en to de and 26 words of parallel, en to fr"),
        ({}, "26 words of parallel, en to de in both, but trained on different texts"),
    ],
)
def test_permuted_vocabularies_are_rejected(
    seqloom: Any, translators: Path, tmp_path: Path, data: dict[str, str], apart: str
) -> None:
    one, other = translators / "one", retold(translators, tmp_path, **data)
    seqloom("translate", one, other, "the cat").fails_with(
        2, f"because their tokenizers differ ({apart}). Train", lines=1
    )
    shown = seqloom("average", one, other, "--out", tmp_path / "x")
    shown.fails_with(2, f"cannot be averaged: their tokens differ ({apart}).", lines=1)


def test_different_languages_are_rejected(seqloom: Any, translators: Path) -> None:
    one, back = translators / "one", translators / "back"
    shown = seqloom("translate", one, back, "the cat")
    shown.fails_with(2, lines=1)
    assert shown.err == (f"seqloom: {one} and {back} cannot be combined: they translate en to de and de to en.\n")


def test_misspelt_run_is_not_translated_as_a_text(seqloom: Any, translators: Path, runs: Path, type_in: Any) -> None:
    type_in(b"the cat\n")
    one = translators / "one"
    seqloom("translate", one, translators / "tow").fails_with(4, "tow is not a run: it does not exist", lines=1)
    seqloom("translate", one, "the cat", translators / "two").fails_with(2, "Runs must precede the texts", lines=1)
    seqloom("translate", one, runs / "chars").fails_with(2, "is a language model", "needs a translator")
    seqloom("translate", runs / "chars", one).fails_with(2, "is a language model", "needs a translator")


def test_path_after_texts_is_noted_as_text(seqloom: Any, translators: Path) -> None:
    shown = seqloom("translate", translators / "one", "the cat", "runs/nope")
    assert shown.code == 0 and shown.out.count("\n") == 2
    assert "note: runs/nope is used as a text; no such run or file exists\n" in shown.err


def test_arguments_are_split_into_runs_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("runs/a", "runs/b", "c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").touch()
    (tmp_path / "recipe.yaml").touch()
    monkeypatch.chdir(tmp_path)
    a, b, c = Path("runs/a"), Path("runs/b"), Path("c")
    assert split_words(["runs/a"]) == ([a], [])
    assert split_words(["runs/a", "runs/b/", "c", "hello", ""]) == ([a, b, c], ["hello", ""])
    assert split_words(["runs/a", "", "and/or", "km/h"]) == ([a], ["", "and/or", "km/h"])
    assert split_words(["runs/a", "x" * 5000, "\0"]) == ([a], ["x" * 5000, "\0"])
    assert split_words(["c", "d"]) == ([c], ["d"])
    assert split_words(["runs/a", "runs/typo"]) == ([a, Path("runs/typo")], [])
    assert split_words(["nothing", "hello"]) == ([Path("nothing")], ["hello"])


def test_shortest_context_limits_the_source(translators: Path, tmp_path: Path, pairs: Path) -> None:
    words = [f"data.{split}=[{pairs / split}.en,{pairs / split}.de]" for split in ("train", "dev", "test")]
    words += [
        "tokenizer.kind=words",
        "model.hidden=4",
        "model.attention.score=location",
        "model.attention.max_length=6",
    ]
    short = package.train_recipe("translate-files", *words, "train.steps=1", "train.warmup=0", out=tmp_path / "short")
    together = package.ensemble([translators / "one", short])
    assert together.longest_source == 6 and package.ensemble([translators / "one"] * 2).longest_source is None
    result = together.translate(["the cat", "the cat sat a dog ran ."], stream=True)
    assert next(result).text
    with pytest.raises(Exception, match="Line 2 has 8 tokens"):
        next(result)


# --- evaluate -------------------------------------------------------------------------------------------------------

FIGURES = ("bleu", "bleu_lowercase", "chrf", "exact_match", "loss", "perplexity")


def test_evaluate_reports_ensemble_and_members(
    seqloom: Any, copies: Path, pairs: Path, tmp_path: Path, type_in: Any
) -> None:
    names, out = ["one", "transformer"], tmp_path / "out.txt"
    paths = [copies / name for name in names]
    result = seqloom("evaluate", *paths, "--split", "test", "--out", out, "--json").json
    assert (result["runs"], result["data"], result["pairs"]) == ([str(path) for path in paths], "parallel, test", 12)
    type_in((pairs / "test.en").read_bytes())
    assert seqloom("translate", *paths).out == out.read_text("utf-8")
    scored = seqloom("bleu", "--reference", pairs / "test.de", "--hypothesis", out, "--json").json
    assert scored["bleu"] == result["bleu"]
    for path, alone in zip(paths, result["alone"], strict=True):
        own = seqloom("evaluate", path, "--split", "test", "--json").json
        assert alone["run"] == str(path)
        assert {name: alone[name] for name in FIGURES} == {name: own[name] for name in FIGURES}
        kept = json.loads((path / "metrics/test.json").read_text())  # only metrics of single runs are stored
        assert kept["loss"] == alone["loss"] != result["loss"]


def test_loss_is_computed_from_the_mean_probability(translators: Path) -> None:
    parts = [load(translators / name, "cpu", TranslatorPredictor) for name in ("one", "two", "blind")]
    task = parts[0].task()
    total = count = 0.0
    with torch.no_grad():
        for _, batch in task.indexed_batches("dev"):
            chances = sum(part.model.target_log_probs(batch).double().exp() for part in parts) / 3
            total -= chances.log().sum().item()
            count += batch["target_mask"].sum().item()
    assert package.ensemble(parts).evaluate("dev")["loss"] == pytest.approx(total / count, rel=1e-6)


def test_text_output_lists_members_and_ensemble(seqloom: Any, copies: Path) -> None:
    paths = [copies / "one", copies / "two"]
    shown = seqloom("evaluate", *paths)
    result = seqloom("evaluate", *paths, "--json").json
    assert shown.code == 0, shown.err
    first, *_ = shown.out.splitlines()
    assert first.startswith(f"{paths[0]} + {paths[1]} on parallel, dev: 12 pairs, en to de; beam search, 3 hypotheses")
    head, one, two, together = shown.out.splitlines()[-4:]
    assert head.split() == ["models", "and", "ensemble:", "BLEU", "chrF", "exact", "loss"]
    assert one.split()[0] == str(paths[0]) and two.split()[0] == str(paths[1]) and together.split()[0] == "ensemble"
    assert together.split()[1] == f"{result['bleu']:.2f}" and one.split()[-1] == f"{result['alone'][0]['loss']:.4f}"


def test_search_options_and_other_sentences_do_not_change_saved_metrics(
    seqloom: Any, copies: Path, pairs: Path
) -> None:
    paths = [copies / "one", copies / "two"]
    before = [(path / "metrics/dev.json").read_text() for path in paths]
    result = seqloom("evaluate", *paths, "--beam", "1", "--json").json
    assert {result["decoding"], *(one["decoding"] for one in result["alone"])} == {"greedy search"}
    files = ["--source", pairs / "dev.en", "--reference", pairs / "dev.de"]
    other = seqloom("evaluate", *paths, *files, "--json").json
    assert [(path / "metrics/dev.json").read_text() for path in paths] == before
    split = seqloom("evaluate", *paths, "--json").json
    assert other.pop("data") == f"{pairs / 'dev.en'} and {pairs / 'dev.de'}"
    split.pop("data")
    assert other == split


def test_different_data_has_no_common_split(seqloom: Any, copies: Path, pairs: Path) -> None:
    about = copies / "two/data.json"
    about.write_text(about.read_text().replace(json.loads(about.read_text())["sha256"]["dev"], "0" * 64))
    update_checksums(copies / "two")
    paths = [copies / "one", copies / "two"]
    shown = seqloom("evaluate", *paths)
    shown.fails_with(2, "were not trained on the same data: dev differ", "--source FILE --reference FILE", lines=1)
    files = ["--source", pairs / "dev.en", "--reference", pairs / "dev.de"]
    assert seqloom("evaluate", *paths, *files, "--json").code == 0
    assert seqloom("translate", *paths, "the cat").code == 0


def test_only_language_models_are_interpolated(seqloom: Any, translators: Path, runs: Path) -> None:
    one, two = translators / "one", translators / "two"
    seqloom("evaluate", one, two, "--interpolate").fails_with(2, "is a translator", "needs a language model")
    seqloom("evaluate", one, two, "--weights", "0.5,0.5").fails_with(
        2, "--weights requires two or more language models", lines=1
    )
    seqloom("evaluate", runs / "chars", runs / "gru").fails_with(
        2, "Evaluate other runs one at a time", "--interpolate", lines=1
    )
    seqloom("evaluate", runs / "chars", one).fails_with(2, "Evaluate other runs one at a time", lines=1)
    seqloom("evaluate", one, runs / "chars").fails_with(2, "is a language model", "needs a translator")
    seqloom("evaluate", one, two, __file__).fails_with(2, "read two files aligned by line", lines=1)


# --- Python API -----------------------------------------------------------------------------------------------------


def test_ensemble_translates_evaluates_and_shows_attention(translators: Path) -> None:
    one = load(translators / "one", "cpu", TranslatorPredictor)
    together = package.ensemble([one, translators / "transformer"], "cpu")
    assert repr(together) == f"<{translators / 'one'} + {translators / 'transformer'}>"
    assert together.decode == one.decode == BeamConfig(beam=3)
    assert [len(result.candidates) for result in together.translate(LINES, n_best=2, batch_size=2)] == [2, 1, 2, 2]
    assert together.report("dev").metrics == together.evaluate("dev")
    sources, references = LINES[:1], ["3 Katze sass ."]
    assert together.report_pairs(sources, references).lines[0].reference == references[0]
    view = together.attention("the cat sat 3 .", "3 Katze sass .")
    assert view.words.weights.shape == (5, 6)
    thought = together.model.target_log_probs(_batch(together, "the cat sat 3 .", "3 Katze sass ."))
    assert view.log_prob == pytest.approx(thought.sum().item(), abs=1e-5)
    for few in ([], [one]):
        with pytest.raises(UsageError, match="At least two models are needed"):
            package.ensemble(few)


def _batch(translator: Any, source: str, target: str) -> dict[str, torch.Tensor]:
    read, output = (torch.tensor([[*translator.tokenizer.encode(text), 0]]) for text in (source, target))
    inputs = torch.cat([torch.zeros_like(output[:, :1]), output[:, :-1]], dim=1)
    masks = {"source_mask": torch.ones_like(read).bool(), "target_mask": torch.ones_like(output).bool()}
    return {"source": read, "inputs": inputs, "targets": output, **masks}
