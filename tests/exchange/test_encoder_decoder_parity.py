"""Random BART and Marian models of `transformers`: equal outputs after import and export.

Searches are compared with settings under which both programs follow the same rules: all k hypotheses are returned,
`early_stopping=False` corresponds to `stopping: usual`, and no end is forced. If <s> is forced before a target,
`transformers` counts it in the length and seqloom does not. These searches therefore use length_penalty 0.
"""

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("sentencepiece")
pytest.importorskip("transformers")
import transformers
from tests.exchange.small_encoder_decoders import SHAPES, before_targets, ours, sources, targets, write
from tests.text.small_pairs import ENGLISH, FRENCH

from seqloom.core.errors import CheckpointError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.exchange.conversion import create_run, export_run, read_directory
from seqloom.exchange.encoder_decoder import ReorderPairs
from seqloom.exchange.marian import Marian
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.exchange.weights import IDENTITY, LeadingRows, TokenRows
from seqloom.text import END

SHORTEST, LONGEST = 4, 30  # limits of the number of generated tokens
DECODE = ("num_beams", "length_penalty")


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory) -> tuple[Any, Any, Any]:
    """Return the model of `transformers`, the imported run and its seqloom model."""
    path = tmp_path_factory.mktemp("exchange") / request.param
    theirs = write(path, request.param)
    found = read_directory(path)
    model = found.model.build(len(found.tokenizer)).eval()
    model.load_state_dict(found.weights)
    return theirs, found, model


@torch.no_grad()
def logits(theirs: Any) -> Any:
    source, mask = sources(theirs)
    found = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=targets(theirs)).logits
    return found[:, len(before_targets(theirs)) - 1 :]


@torch.no_grad()
def test_logits_match_transformers(pair):
    theirs, found, model = pair
    source, inputs = ours(found.tokenizer, theirs)
    made = model(source["tokens"], source["mask"], inputs)
    wanted = logits(theirs)
    assert not found.initialized
    torch.testing.assert_close(made, wanted[..., found.tokenizer.order], atol=1e-5, rtol=0)
    with pytest.raises(AssertionError):  # control: the order of the tokens matters
        torch.testing.assert_close(made, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("bart-2-heads", (LeadingRows, "read", lambda self, theirs: (theirs[0][: -self.count],))),
        ("bart-2-heads", (TokenRows, "read", lambda self, theirs: theirs)),
        ("bart-3-heads", (StartTokenConfig, "source_bos", None)),
        ("marian-2-heads", (StartTokenConfig, "bos", None)),
        ("marian-2-heads", (Marian, "reorder", lambda self, model, axis, other=IDENTITY: ReorderPairs(axis, other))),
    ],
)
@torch.no_grad()
def test_wrong_conversions_change_results(name, wrong, tmp_path, monkeypatch):
    """Control for `test_logits_match_transformers`."""
    theirs = write(tmp_path / name, name)
    found: Any
    where, what, instead = wrong
    if where is StartTokenConfig:
        found = read_directory(tmp_path / name)
        model = replace(found.model, **{what: instead}).build(len(found.tokenizer)).eval()
    else:
        monkeypatch.setattr(where, what, instead)
        found = read_directory(tmp_path / name)
        model = found.model.build(len(found.tokenizer)).eval()
    model.load_state_dict(found.weights)
    source, inputs = ours(found.tokenizer, theirs)
    made = model(source["tokens"], source["mask"], inputs)
    assert (made - logits(theirs)[..., found.tokenizer.order]).abs().max() > 0.01


def generate_theirs(theirs: Any, tokenizer: Any, beams: int, penalty: float) -> list[list[list[int]]]:
    source, mask = sources(theirs)
    found = theirs.generate(
        input_ids=source,
        attention_mask=mask,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
        early_stopping=False,
        min_new_tokens=SHORTEST,
        max_new_tokens=LONGEST,
        do_sample=False,
    )
    before = len(before_targets(theirs))
    rows = [tokenizer.from_original_ids(row[before:]) for row in found.tolist()]
    ids = [row[: row.index(END) + 1] if END in row else row for row in rows]
    return [ids[start : start + beams] for start in range(0, len(ids), beams)]


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 0.8)])
def test_search_matches_transformers(pair, beams, penalty):
    """Only finished hypotheses are compared, because transformers also ranks unfinished ones of maximum length."""
    theirs, found, model = pair
    forced = len(before_targets(theirs)) - 1
    source, _ = ours(found.tokenizer, theirs)
    options = BeamConfig(
        beam=beams,
        n_best=beams,
        length_penalty=0.0 if forced else penalty,
        min_length=SHORTEST - forced,
        max_length=LONGEST - forced,
    )
    banned = [found.model.bos] if found.family.name == "Marian" else []
    made = beam_search(model, options=options, end=END, source=source, banned=banned)
    compared = 0
    for row, other in zip(made, generate_theirs(theirs, found.tokenizer, beams, options.length_penalty), strict=True):
        if beams == 1 or all(END in ids for ids in other):
            assert [[*one.tokens, *[END] * one.finished] for one in row] == other
            compared += any(len(ids) > 5 for ids in other)
    assert compared


def test_exported_model_is_imported_unchanged(pair, tmp_path):
    """`transformers` reads the export and computes equal logits, and seqloom reads bit-identical weights."""
    theirs, found, _ = pair
    run = create_run(found, tmp_path / "run")
    written = export_run(run.path, tmp_path / "out")
    again = read_directory(tmp_path / "out")
    assert written.family.name == found.family.name and again.model == found.model
    assert again.tokenizer.to_json() == found.tokenizer.to_json() and again.weights.keys() == found.weights.keys()
    assert all(torch.equal(again.weights[name], tensor) for name, tensor in found.weights.items())
    other, report = type(theirs).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    torch.testing.assert_close(logits(other.eval()), logits(theirs), atol=1e-6, rtol=0)
    kept: tuple[str, ...] = (
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "bad_words_ids",
    )
    kept += ("num_beams", "length_penalty")
    for key in kept:
        assert getattr(other.generation_config, key) == getattr(theirs.generation_config, key), key
    assert other.config.pad_token_id == theirs.config.pad_token_id


SEARCHES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, tuple[int, float]]] = {
    "nothing": ({}, {}, (1, 1.0)),
    "no file": ({}, None, (1, 1.0)),
    "null": ({}, {"num_beams": None, "length_penalty": None}, (1, 1.0)),
    "a beam": ({}, {"num_beams": 3}, (3, 1.0)),
    "a penalty": ({}, {"length_penalty": 0.6}, (1, 0.6)),
    "config.json": ({"num_beams": 6, "length_penalty": 2.0}, None, (6, 2.0)),
    "config.json, which has no say": ({"num_beams": 6}, {}, (1, 1.0)),
}


@pytest.mark.parametrize("name", ["bart-3-heads", "marian-2-heads"])
@pytest.mark.parametrize("said", SEARCHES)
def test_search_options_come_from_directory(name, said, tmp_path):
    """The defaults are those of transformers. After an export, generate() uses the same options."""
    write(tmp_path / "in", name)
    config, generation, wanted = SEARCHES[said]
    known = json.loads((tmp_path / "in" / "config.json").read_text())
    (tmp_path / "in" / "config.json").write_text(json.dumps({**known, **config}))
    path = tmp_path / "in" / "generation_config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in DECODE}
    path.unlink() if generation is None else path.write_text(json.dumps({**kept, **generation}))
    run = create_run(read_directory(tmp_path / "in"), tmp_path / "run")
    assert tuple(run.recipe["decode"][key] for key in ("beam", "length_penalty")) == wanted
    export_run(run.path, tmp_path / "out")
    for folder in ("in", "out"):
        found = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / folder).generation_config
        assert (found.num_beams or 1, found.length_penalty or 1.0) == wanted
    if generation == {}:
        written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
        assert written.keys().isdisjoint(DECODE)


def test_tokenizer_without_added_tokens_is_rejected(tmp_path):
    write(tmp_path, "bart-2-heads")
    file = json.loads((tmp_path / "tokenizer.json").read_text())
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    nothing = {"type": "TemplateProcessing", "single": [text], "pair": [text, other], "special_tokens": {}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**file, "post_processor": nothing}))
    with pytest.raises(CheckpointError) as refused:
        read_directory(tmp_path)
    said = str(refused.value)
    assert said.startswith(
        f"{tmp_path / 'tokenizer.json'} does not match the model: its post_processor adds nothing around"
    )
    assert "the model reads 0 before and 2 after it" in said and "null" not in said and "None" not in said
    assert "BartTokenizerFast.from_pretrained(DIR).save_pretrained(DIR)." in said
    # Follows the advice of the message
    transformers.BartTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert read_directory(tmp_path).parameters


@pytest.mark.parametrize("name", ["bart-2-heads", "marian-2-heads"])
def test_imported_and_exported_tokenizers_give_equal_ids(name, tmp_path):
    theirs = write(tmp_path / "in", name)
    found: Any = read_directory(tmp_path / "in")
    export_run(create_run(found, tmp_path / "run").path, tmp_path / "out")
    before = [theirs.config.bos_token_id] if found.family.name == "BART" else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        readers = [
            transformers.AutoTokenizer.from_pretrained(path) for path in (found.directory.path, tmp_path / "out")
        ]
    for text in (*ENGLISH, *FRENCH, "  two  spaces"):
        own = [*before, *found.tokenizer.to_original_ids([*found.tokenizer.encode(text), END])]
        assert [reader(text)["input_ids"] for reader in readers] == [own, own]


@pytest.mark.parametrize("penalty", [-1.0, 12.0, "much"])
def test_invalid_length_penalty_is_ignored(penalty, tmp_path):
    write(tmp_path / "in", "bart-3-heads")
    path = tmp_path / "in" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "length_penalty": penalty}))
    run = create_run(read_directory(tmp_path / "in"), tmp_path / "run")
    assert run.recipe["decode"]["length_penalty"] == 1.0
