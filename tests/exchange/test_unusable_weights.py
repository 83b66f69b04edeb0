"""Unsupported, nonfinite and missing weights raise errors that say what to do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.exchange.small_decoders import configure, refused, weights, write_by_hand

from seqloom.core.errors import CheckpointError
from seqloom.exchange.conversion import import_model
from seqloom.runs.transfer import Pretrained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_by_hand(tmp_path / "model")


def test_shards_without_index_are_reported(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for part in range(1, 8):
        (folder / f"model-{part:05}-of-00007.safetensors").touch()
    message = refused(
        folder, "is incomplete: it has sharded weights (model-00001-of-00007.safetensors, ", "3 more), but"
    )
    assert message.endswith("but model.safetensors.index.json is missing. Download this file, too.")


@pytest.mark.parametrize(
    ("architecture", "model_type", "wanted"),
    [
        ("GPT2LMHeadModel", "gpt2", "AutoModelForCausalLM"),
        ("LlamaForCausalLM", "llama", "AutoModelForCausalLM"),
        ("GPT2Model", "gpt2", "AutoModelForCausalLM"),
        ("BertForMaskedLM", "bert", "AutoModelForMaskedLM"),
        ("BertForPreTraining", "bert", "AutoModelForPreTraining"),
        ("BertModel", "bert", "AutoModel"),  # the user would not notice that the head is randomly initialized
        ("BertForTokenClassification", "bert", "AutoModelForTokenClassification"),
        (None, "bert", "AutoModelForMaskedLM"),
        ("BartForConditionalGeneration", "bart", "AutoModelForSeq2SeqLM"),
        ("MarianMTModel", "marian", "AutoModelForSeq2SeqLM"),
        (None, "marian", "AutoModelForSeq2SeqLM"),
    ],
)
def test_advice_for_pickles_names_the_class_with_the_head_of_the_model(
    folder: Path, architecture: str | None, model_type: str, wanted: str
) -> None:
    configure(folder, model_type=model_type, architectures=... if architecture is None else [architecture])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(
        folder,
        f"transformers: {wanted}.from_pretrained(DIR).save_pretrained(NEW), and the tokenizer: ",
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(NEW).",
    )


@pytest.mark.parametrize("said", [..., None, "gpt2", [3], ["Unused"]])
def test_advice_for_pickles_of_an_unknown_model_names_no_class(folder: Path, said: Any) -> None:
    configure(folder, model_type=["x"], architectures=said)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "from_pretrained(DIR).save_pretrained(NEW) of the matching AutoModelFor… class, and the tokenizer")


def test_nonfinite_weights_are_rejected(folder: Path, tmp_path: Path) -> None:
    tensors = weights()
    tensors["transformer.h.0.mlp.c_fc.bias"][3] = torch.nan
    tensors["transformer.wte.weight"][2] = torch.inf
    save_file(tensors, folder / "model.safetensors")
    refused(folder, "2 tensors have NaN or infinity", "wte.weight: 8 of 136", "h.0.mlp.c_fc.bias: 1 of 32")
    with pytest.raises(CheckpointError):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_without_weights_is_reported(folder: Path, tmp_path: Path) -> None:
    run, _ = import_model(folder, tmp_path / "run")
    (run.path / "model.safetensors").unlink()
    said = (
        r"run is incomplete: model\.safetensors is missing\. The run was imported: remove it and import the model "
        r"again\."
    )
    with pytest.raises(CheckpointError, match=said):
        run.model("cpu")
    with pytest.raises(
        CheckpointError, match=rf"init\.from: .*{said} Or use random initial weights: init\.weights=false"
    ):
        _ = Pretrained.open(run.path).sha256
