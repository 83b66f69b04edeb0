"""BART and Marian on the command line: import, use, training, export and invalid input."""

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("sentencepiece")
pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file
from tests.exchange.small_encoder_decoders import write
from tests.text.small_pairs import ENGLISH, FRENCH

from seqloom.cli.app import main
from seqloom.exchange.conversion import read_directory
from seqloom.nn.positions import sinusoid_table
from seqloom.predict.loader import load

NAMES = {"bart": "bart-2-heads", "marian": "marian-2-heads"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directories `bart` and `marian`, the imported runs `bart-run` and `marian-run`, and sentence pairs."""
    folder = tmp_path_factory.mktemp("encoder-decoders")
    for name, shape in NAMES.items():
        write(folder / name, shape)
    about = {"source_lang": "en", "target_lang": "fr", "unk_token": {"content": "<unk>"}}
    (folder / "marian" / "tokenizer_config.json").write_text(json.dumps(about))
    for name in NAMES:
        assert main(["import-hf", str(folder / name), str(folder / f"{name}-run")]) == 0
    for language, lines in (("en", ENGLISH), ("fr", FRENCH)):
        short = [line[:30].strip() for line in lines]
        (folder / f"a.{language}").write_text("".join(f"{line}\n" for line in short), encoding="utf-8")
        (folder / f"t.{language}").write_text("".join(f"{line} {n}\n" for n in range(8) for line in short))
    return folder


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Any:
    """Copy a directory, so that a test can change it."""
    return lambda name: Path(shutil.copytree(folder / name, tmp_path / name))


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))


@pytest.mark.parametrize("name", NAMES)
def test_imported_run_works_with_other_commands(
    seqloom: Any, folder: Path, tmp_path: Path, type_in: Any, name: str
) -> None:
    run = folder / f"{name}-run"
    type_in("".join(f"{line}\n" for line in ENGLISH).encode())
    shown = seqloom("translate", run, "--max-length", 9, "--alignment")
    assert shown.code == 0 and len(shown.out.splitlines()) == len(ENGLISH)
    pairs = ("--source", folder / "a.en", "--reference", folder / "a.fr")
    measured = seqloom("evaluate", run, *pairs, "--json").json
    assert measured["loss"] > 0
    for part in ((), ("--part", "encoder"), ("--part", "decoder"), ("--part", "cross")):
        seen = seqloom("inspect", "attention", run, "The cat sat", "--target", "Le chat", *part)
        assert seen.code == 0 and "The" in seen.out + seen.err
    seqloom("evaluate", run).fails_with(3, "the model was imported", "--source FILE")
    recipe = load(run, "cpu").decode
    assert (recipe.beam, recipe.length_penalty) == (4, 0.8)  # values of generation_config.json


@pytest.mark.parametrize("name", NAMES)
def test_imported_model_translates_with_required_terms(seqloom: Any, folder: Path, name: str) -> None:
    words = ["translate", folder / f"{name}-run", "The cat sat", "--max-length", 30, "--json"]
    result = seqloom(*words, "--force", "le chat").json
    assert "le chat" in result["translation"].lower() and result["missing_terms"] == []
    assert "le chat" not in seqloom(*words).json["translation"].lower()


@pytest.mark.parametrize("name", NAMES)
def test_imported_model_is_trained_and_exported(seqloom: Any, folder: Path, tmp_path: Path, name: str) -> None:
    """A few steps change the model, and the trained model is exported."""
    run = folder / f"{name}-run"
    recipe = tmp_path / "further.yaml"
    model = "model: {kind: transformer}\n" if name == "marian" else ""  # the kind that the run's model kind extends
    recipe.write_text(
        f"task: translate\ninit: {{from: {run}}}\n{model}"
        f"data: {{corpus: parallel, train: [{folder}/t.en, {folder}/t.fr]}}\n"
        "batch: {tokens: 400, dev_pairs: 0, max_length: 38}\ntrain: {steps: 30, lr: 0.01, device: cpu}\n"
    )
    shown = seqloom("train", recipe, "--out", tmp_path / "run")
    assert shown.code == 0, shown.err
    pairs = ("--source", folder / "a.en", "--reference", folder / "a.fr", "--json")
    before, after = (seqloom("evaluate", one, *pairs).json["loss"] for one in (run, tmp_path / "run"))
    assert after < before - 0.5
    assert load(tmp_path / "run", "cpu").recipe.model.kind == "start-token-transformer"
    written = seqloom("export-hf", tmp_path / "run", tmp_path / "out")
    assert written.code == 0, written.err
    back: Any = read_directory(tmp_path / "out")
    learned = load(tmp_path / "run", "cpu").model.state_dict()
    assert all(torch.equal(back.weights[key], value) for key, value in learned.items())
    lines = [line.strip() for line in (folder / "a.en").read_text().splitlines()]
    output = seqloom("translate", tmp_path / "run", *lines, "--beam", 1, "--max-length", 12).out.splitlines()
    assert output == said_there(tmp_path / "out", lines, 12 + (name == "bart")) and len(set(output)) > 1


def said_there(path: Path, lines: list[str], longest: int) -> list[str]:
    """Translate lines greedily with `transformers`."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about a punctuation normalizer that is not used
        reader = transformers.AutoTokenizer.from_pretrained(path)
    read = reader(lines, padding=True, return_tensors="pt")
    model.generation_config.forced_eos_token_id = None
    created = model.generate(**read, num_beams=1, max_new_tokens=longest, do_sample=False)
    return [text.replace("\n", " ") for text in reader.batch_decode(created, skip_special_tokens=True)]


def test_marian_languages_are_imported(folder: Path, tmp_path: Path, seqloom: Any) -> None:
    run = load(folder / "marian-run", "cpu").run
    assert (run.data["source"], run.data["target"], run.recipe["data"]["source"]) == ("en", "fr", "en")
    seqloom("export-hf", folder / "marian-run", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (about["source_lang"], about["target_lang"]) == ("en", "fr")


def test_targets_use_the_target_tokenizer(folder: Path) -> None:
    translator: Any = load(folder / "marian-run", "cpu")
    tokenizer, source, text = translator.tokenizer, ENGLISH[0], FRENCH[0]
    ids = tokenizer.of_targets.encode(text)
    assert ids != tokenizer.encode(text) and tokenizer.unknown not in ids
    view = translator.attention(source, text)
    assert view.tokens.rows[:-1] == [tokenizer.token(id) for id in ids]
    assert "".join(view.words.rows[:-1]) == text.replace(" ", "")
    (ranked,) = translator.rescore([(source, [text])])
    assert ranked.candidates[0].ids == ids and ranked.log_prob == pytest.approx(view.log_prob, abs=1e-4)
    (begun,) = translator.translate([source], prefix=text, max_length=60)
    assert begun.candidates[0].ids[: len(ids)] == ids
    measured = translator.report_pairs([source], [text]).metrics
    assert measured["loss"] == pytest.approx(-view.log_prob / (len(ids) + 1), abs=1e-4)


# --- configs --------------------------------------------------------------------------------------------------------

# Keys that earlier versions of transformers wrote and that published models contain.
EARLIER = {
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "bad_words_ids": [[1]],
    "classif_dropout": 0.0,
    "early_stopping": True,
    "gradient_checkpointing": False,
    "max_length": 512,
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "num_hidden_layers": 2,
    "task_specific_params": {"summarization": {"length_penalty": 1.0}},
}


@pytest.mark.parametrize("name", NAMES)
def test_config_of_earlier_versions_is_accepted(copied: Any, name: str) -> None:
    path, bart = copied(name), name == "bart"
    own = {"normalize_embedding": bart, "static_position_embeddings": not bart}
    change(path / "config.json", **EARLIER, **own)
    assert read_directory(path).model == read_directory(path.parent / name).model


def test_bart_without_forced_bos_starts_with_bos(copied: Any) -> None:
    path = copied("bart")
    change(path / "generation_config.json", forced_bos_token_id=None)
    assert read_directory(path).model.target_bos is None
    change(path / "config.json", force_bos_token_to_be_generated=True)
    result: Any = read_directory(path)
    assert result.tokenizer.to_original_ids([result.model.target_bos]) == [0]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "bart",
            {
                "activation_function": "mish",
                "decoder_ffn_dim": 25,
                "encoder_layerdrop": 0.1,
                "normalize_before": True,
                "decoder_start_token_id": 9999,
                "flux": 7,
            },
            [
                "6 problems",
                "activation_function must be gelu",
                "decoder_ffn_dim must be 24; it is 25",
                "encoder_layerdrop must be 0",
                "normalize_before must be false",
                "decoder_start_token_id must be a token id below 294; it is 9999",
                "flux is unknown; it is 7",
            ],
        ),
        ("marian", {"decoder_vocab_size": 7}, ["1 problem", "decoder_vocab_size must be 101"]),
        ("marian", {"static_position_embeddings": False}, ["static_position_embeddings must be true"]),
        ("bart", {"d_model": 18}, ["mismatches", "model.shared.weight must be 294×18; it is 294×16", "more"]),
        ("bart", {"encoder_layers": 3}, ["model.encoder.layers.2.", "is missing"]),
        ("bart", {"vocab_size": 200}, ["tokenizer.json does not match the model", "200 embeddings"]),
        ("marian", {"vocab_size": 50}, ["does not match the model", "50 embeddings"]),
    ],
)
def test_unsupported_settings_are_reported_together(
    seqloom: Any, copied: Any, name: str, changes: Any, message: list[str]
) -> None:
    """One error reports the problems of all files together."""
    path = copied(name)
    start = changes.pop("decoder_start_token_id", None)
    change(path / "config.json", **changes)
    if start is not None:
        change(path / "generation_config.json", decoder_start_token_id=start)
        changes["decoder_start_token_id"] = start
    seqloom("import-hf", path, path.parent / "run").fails_with(4, *message, lines=15)
    assert not (path.parent / "run").exists()


def test_separate_vocabularies_are_rejected(seqloom: Any, copied: Any) -> None:
    path = copied("marian")
    change(path / "tokenizer_config.json", separate_vocabs=True)
    seqloom("import-hf", path, path.parent / "run").fails_with(
        4, "separate_vocabs in tokenizer_config.json must be false"
    )


@pytest.mark.parametrize("file", ["source.spm", "target.spm", "vocab.json"])
def test_incomplete_tokenizer_is_rejected(seqloom: Any, copied: Any, file: str) -> None:
    path = copied("marian")
    (path / file).write_bytes(b"\x00 rubbish")
    seqloom("import-hf", path, path.parent / "run").fails_with(4, "SentencePiece" if file.endswith("spm") else "JSON")
    (path / file).unlink()
    seqloom("import-hf", path, path.parent / "run").fails_with(4, "is incomplete", file)


def test_invalid_unknown_token_is_rejected(seqloom: Any, copied: Any) -> None:
    path = copied("marian")
    change(path / "tokenizer_config.json", unk_token=["<unk>"])
    seqloom("import-hf", path, path.parent / "run").fails_with(4, "the id of unknown must be from")


def test_unexpected_special_tokens_are_rejected(seqloom: Any, copied: Any) -> None:
    path = copied("bart")
    file = json.loads((path / "tokenizer.json").read_text())
    file["post_processor"]["cls"] = ["<unk>", 3]
    (path / "tokenizer.json").write_text(json.dumps(file))
    seqloom("import-hf", path, path.parent / "run").fails_with(
        4, "tokenizer.json does not match", "adds 3 before and 2 after a text", "reads 0 before and 2 after it"
    )


def test_missing_bias_is_zero_and_other_heads_are_noted(seqloom: Any, copied: Any) -> None:
    """BartModel has no output bias, so the bias is 0. The head of a classifier is not imported."""
    path = copied("bart")
    complete = load_file(path / "model.safetensors")
    bias = complete.pop("final_logits_bias")
    bare = {key.removeprefix("model."): tensor for key, tensor in complete.items()}
    save_file(bare, path / "model.safetensors", {"format": "pt"})
    result: Any = read_directory(path)
    assert not result.initialized and result.weights["output.bias"].eq(0).all() and bias.ne(0).any()
    assert torch.equal(result.weights["output.weight"], complete["model.shared.weight"][result.tokenizer.order])
    save_file({**complete, "classification_head.dense.weight": torch.zeros(2, 2)}, path / "model.safetensors")
    shown = seqloom("import-hf", path, path.parent / "run")
    assert shown.code == 0 and "classification_head.dense.weight" in shown.err


def test_marian_positions_must_be_sinusoids(seqloom: Any, copied: Any) -> None:
    path = copied("marian")
    complete = load_file(path / "model.safetensors")
    table = sinusoid_table(40, 16, "halves")
    save_file({**complete, "model.encoder.embed_positions.weight": table}, path / "model.safetensors")
    assert read_directory(path).model == read_directory(path.parent / "marian").model
    save_file({**complete, "model.encoder.embed_positions.weight": table.flip(0)}, path / "model.safetensors")
    output = "model.encoder.embed_positions.weight must be the sinusoids of Marian"
    seqloom("import-hf", path, path.parent / "run").fails_with(4, output)


def test_pairs_longer_than_the_context_are_skipped_or_truncated(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    """Training skips long pairs if the recipe allows this. Pairs of dev and of other files are truncated."""
    run, long = folder / "bart-run", "Le chat dort. " * 40
    for name, lines in {"dev.en": ["The cat sat", long], "dev.fr": ["Le chat", long]}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    for language in ("en", "fr"):
        (tmp_path / f"t.{language}").write_text((folder / f"t.{language}").read_text() + f"{long}\n")
    recipe = tmp_path / "further.yaml"
    recipe.write_text(
        f"task: translate\ninit: {{from: {run}}}\n"
        f"data: {{corpus: parallel, train: [t.en, t.fr], dev: [dev.en, dev.fr]}}\n"
        "batch: {tokens: 400, max_length: null}\ntrain: {steps: 2, lr: 0.01, device: cpu}\n"
    )
    refused = seqloom("train", recipe, "--out", tmp_path / "run")
    most = load(run, "cpu").longest_source
    refused.fails_with(3, "A source of train has", f"batch.max_length={most}.")
    assert "model.positions" not in refused.err
    shown = seqloom("train", recipe, f"batch.max_length={most}", "--out", tmp_path / "run")
    assert shown.code == 0 and "1 of 2 pairs of dev are truncated" in shown.err, shown.err
    message = seqloom("evaluate", tmp_path / "run")
    assert message.code == 0 and message.err.count("are truncated") == 1
    pairs = ("--source", tmp_path / "dev.en", "--reference", tmp_path / "dev.fr")
    assert seqloom("evaluate", run, *pairs, "--json").json["loss"] > 0


def test_unavailable_metrics_are_omitted(seqloom: Any, folder: Path, tmp_path: Path) -> None:
    for name in ("s", "r"):
        (tmp_path / name).write_text("The cat sat\n\nThe dog\n")
    shown = seqloom("evaluate", folder / "bart-run", "--source", tmp_path / "s", "--reference", tmp_path / "r").out
    assert "3 pairs, 1 of them blank; " in shown and "?" not in shown.splitlines()[0]
    assert "exact match               0.00 %" in shown
