"""Random GPT-2 and Llama models of `transformers`: equal outputs after import and export."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

transformers = pytest.importorskip("transformers")
from tests.exchange.small_decoders import SHAPES, begins, make, save, texts, write  # noqa: E402

from seqloom.core.errors import CheckpointError  # noqa: E402
from seqloom.decoding.beam import BeamConfig, beam_search  # noqa: E402
from seqloom.exchange.conversion import (  # noqa: E402
    export_run,
    import_model,
    read_directory,
)
from seqloom.exchange.weights import IDENTITY, RotaryHalves  # noqa: E402
from seqloom.text import END  # noqa: E402

SHORTEST, LONGEST = 4, 14  # limits of the number of generated tokens


@pytest.fixture(scope="module", params=SHAPES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any, Path]:
    """Return the model of `transformers`, its converted content, the seqloom model and the directory."""
    path = tmp_path_factory.mktemp("exchange") / request.param
    theirs = write(path, request.param)
    found = read_directory(path)
    return theirs, found, build_model(found), path


def build_model(found: Any) -> Any:
    model = found.model.build(len(found.tokenizer)).eval()
    model.load_state_dict(found.weights)
    return model


def encode_both(theirs: Any, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return the same texts with start tokens, as ids of `transformers` and of seqloom."""
    plain = texts()
    first = torch.full((len(plain), 1), begins(theirs))
    ours = torch.tensor([tokenizer.from_original_ids(row) for row in plain.tolist()])
    return torch.cat([first, plain], dim=1), torch.cat([torch.full_like(first, END), ours], dim=1)


@torch.no_grad()
def test_logits_match_transformers(pair: Any) -> None:
    theirs, found, model, _ = pair
    there, here = encode_both(theirs, found.tokenizer)
    wanted, made = theirs(there).logits, model(here)
    assert not found.initialized
    assert wanted.std() > 0.3
    torch.testing.assert_close(made, wanted[..., found.tokenizer.order], atol=1e-5, rtol=0)
    with pytest.raises(AssertionError):  # control: the order of the tokens matters
        torch.testing.assert_close(made, wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_double_precision_logits_match_transformers(pair: Any) -> None:
    theirs, found, _, path = pair
    there, here = encode_both(theirs, found.tokenizer)
    double = type(theirs).from_pretrained(path, dtype=torch.float64).eval()
    made, wanted = build_model(found).double()(here), double(there).logits[..., found.tokenizer.order]
    # transformers always rotates queries by angles in single precision.
    torch.testing.assert_close(made, wanted, atol=1e-10 if found.family.name == "GPT-2" else 1e-5, rtol=0)


@torch.no_grad()
def test_single_steps_match_transformers(pair: Any) -> None:
    """Position 0 is the start token, as in transformers."""
    theirs, found, model, _ = pair
    there, here = encode_both(theirs, found.tokenizer)
    wanted = theirs(there).logits[..., found.tokenizer.order].log_softmax(dim=-1)
    state = model.start(rows=len(here))
    for place in range(here.shape[1]):
        output = model.step(here[:, place : place + 1], state)
        state = output.state
        torch.testing.assert_close(output.log_probs, wanted[:, place], atol=1e-5, rtol=0)


def generate_theirs(theirs: Any, tokenizer: Any, prompt: Tensor, **options: Any) -> list[list[int]]:
    made = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=SHORTEST,
        max_new_tokens=LONGEST,
        do_sample=False,
        pad_token_id=tokenizer.order[END],
        **options,
    )
    rows = [tokenizer.from_original_ids(row) for row in made[:, prompt.shape[1] :].tolist()]
    return [row[: row.index(END) + 1] if END in row else row for row in rows]


def search_ours(model: Any, prompt: Tensor, **options: Any) -> list[list[list[int]]]:
    shortest, longest = (length + prompt.shape[1] for length in (SHORTEST, LONGEST))
    options |= {"min_length": shortest, "max_length": longest}
    made = beam_search(model, options=BeamConfig(**options), end=END, prompt=prompt)
    return [[[*one.tokens, *[END] * one.finished][prompt.shape[1] :] for one in row] for row in made]


def test_greedy_search_matches_transformers(pair: Any) -> None:
    theirs, found, model, _ = pair
    there, here = (tokens[:, :4] for tokens in encode_both(theirs, found.tokenizer))
    made = [row[0] for row in search_ours(model, here[:, 1:], beam=1)]
    assert made == generate_theirs(theirs, found.tokenizer, there)
    assert min(map(len, made)) > SHORTEST


def test_beam_search_matches_transformers(pair: Any) -> None:
    """Compare beam searches without length penalty, because transformers excludes the prompt from lengths.

    Only rows whose hypotheses all end are compared, because transformers also ranks truncated hypotheses.
    """
    theirs, found, model, _ = pair
    there, here = (tokens[:, :4] for tokens in encode_both(theirs, found.tokenizer))
    made = search_ours(model, here[:, 1:], beam=4, n_best=4, length_penalty=0.0)
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0, "early_stopping": False}
    flat = generate_theirs(theirs, found.tokenizer, there, **options)
    others = [flat[start : start + 4] for start in range(0, len(flat), 4)]
    compared = [(row, other) for row, other in zip(made, others, strict=True) if all(END in ids for ids in other)]
    assert [row for row, _ in compared] == [other for _, other in compared]
    assert compared


@torch.no_grad()
def test_exported_model_is_imported_unchanged(pair: Any, tmp_path: Path) -> None:
    """The second import equals the first, and transformers reads the export with equal logits."""
    theirs, _, _, path = pair
    run, found = import_model(path, tmp_path / "run")
    written = export_run(run.path, tmp_path / "out")
    again, _ = import_model(written.path, tmp_path / "again")
    assert (again.path / "tokenizer.json").read_bytes() == (run.path / "tokenizer.json").read_bytes()
    before, after = (load_file(path / "model.safetensors") for path in (run.path, again.path))  # headers name the run
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert (again.path / "recipe.yaml").read_text().replace("directory: out", f"directory: {path.name}") == (
        run.path / "recipe.yaml"
    ).read_text()
    reopened = transformers.AutoModelForCausalLM.from_pretrained(written.path).eval()
    there, _ = encode_both(theirs, found.tokenizer)
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in reopened.state_dict().items())
    torch.testing.assert_close(reopened(there).logits, theirs(there).logits, atol=1e-6, rtol=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(written.path)
    assert tokenizer.eos_token_id == theirs.config.eos_token_id
    assert tokenizer("the old dog barks")["input_ids"] == found.tokenizer.to_original_ids(
        found.tokenizer.encode("the old dog barks")
    )


@torch.no_grad()
def test_model_of_size_one_matches_transformers(tmp_path: Path) -> None:
    """The norm of a single number is its bias. The logits do not depend on the text, but they must be equal."""
    theirs = write(tmp_path / "gpt2", "gpt2-width-1", n_embd=1, n_head=1, n_layer=1)
    run, found = import_model(tmp_path / "gpt2", tmp_path / "run")
    there, here = encode_both(theirs, found.tokenizer)
    wanted = theirs(there).logits
    torch.testing.assert_close(run.model()(here), wanted[..., found.tokenizer.order], atol=1e-6, rtol=0)
    written = export_run(run.path, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(written.path).eval()
    torch.testing.assert_close(again(there).logits, wanted, atol=1e-6, rtol=0)


def test_odd_head_size_of_rotary_positions_is_rejected(tmp_path: Path) -> None:
    write(tmp_path / "llama", "llama-width-1", hidden_size=1, num_attention_heads=1, num_key_value_heads=1)
    with pytest.raises(CheckpointError, match="even d_model / heads; got 1 / 1"):
        read_directory(tmp_path / "llama")


def test_wrong_conversions_change_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Controls: reordered queries, a matrix that is not transposed, and swapped gates change the logits."""
    theirs = write(tmp_path / "llama", "llama-4-heads")

    def difference(name: str) -> float:
        found = read_directory(tmp_path / name)
        there, here = encode_both(theirs, found.tokenizer)
        with torch.no_grad():
            return float((build_model(found)(here) - theirs(there).logits[..., found.tokenizer.order]).abs().max())

    assert difference("llama") < 1e-5
    with monkeypatch.context() as patch:
        patch.setattr("seqloom.exchange.causal.IDENTITY", RotaryHalves(4))
        assert difference("llama") > 1e-2
    with monkeypatch.context() as patch:
        parts = {"feed_forward.up": "mlp.up_proj", "feed_forward.gate": "mlp.gate_proj"}
        patch.setattr("seqloom.exchange.causal.LLAMA_PARTS", {**_parts(), **parts})
        assert difference("llama") > 1e-2
    # The matrix is square, so its shape is valid even if it is not transposed
    theirs = write(tmp_path / "gpt2", "gpt2-1-head", n_inner=15)
    assert difference("gpt2") < 1e-5
    monkeypatch.setattr("seqloom.exchange.causal.TRANSPOSE", IDENTITY)
    assert difference("gpt2") > 1e-2


def _parts() -> dict[str, str]:
    from seqloom.exchange.causal import LLAMA_PARTS

    return LLAMA_PARTS


@torch.no_grad()
def test_backbone_and_tied_copies_are_read(tmp_path: Path) -> None:
    """GPT2Model is published without a head, and a tied head may be saved twice."""
    theirs = make("gpt2-2-heads")
    save(theirs.transformer, tmp_path / "bare")
    there, here = encode_both(theirs, read_directory(tmp_path / "bare").tokenizer)
    found = read_directory(tmp_path / "bare")
    torch.testing.assert_close(
        build_model(found)(here), theirs(there).logits[..., found.tokenizer.order], atol=1e-5, rtol=0
    )


@torch.no_grad()
def test_half_precision_is_read(tmp_path: Path) -> None:
    theirs = make("llama-4-heads").to(torch.bfloat16)
    save(theirs, tmp_path / "half")
    found = read_directory(tmp_path / "half")
    assert {tensor.dtype for tensor in found.weights.values()} == {torch.float32}
    there, here = encode_both(theirs, found.tokenizer)
    whole = type(theirs).from_pretrained(tmp_path / "half", dtype=torch.float32).eval()
    wanted = whole(there).logits[..., found.tokenizer.order]
    torch.testing.assert_close(build_model(found)(here), wanted, atol=1e-5, rtol=0)


def test_sharded_weights_are_read(tmp_path: Path) -> None:
    theirs = make("llama-4-heads")
    save(theirs, tmp_path / "whole")
    save(theirs, tmp_path / "parts", max_shard_size="5KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
    whole, parts = (read_directory(tmp_path / name) for name in ("whole", "parts"))
    assert whole.weights.keys() == parts.weights.keys()
    assert all(torch.equal(whole.weights[name], parts.weights[name]) for name in whole.weights)
    assert len(parts.directory.sha256()) > 2
