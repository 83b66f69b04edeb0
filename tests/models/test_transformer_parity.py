"""The Transformer compared with four models of `transformers` for equal random weights: logits and search.

    Marian    post-norm, sinusoids in halves       Bart     post-norm, learned positions, normalized embeddings
    Pegasus   pre-norm, sinusoids in halves        MBart    pre-norm, learned positions, normalized embeddings

The two beam searches have equal rules if all k hypotheses are returned (n_best = beam, num_return_sequences =
num_beams). `early_stopping=False` corresponds to `stopping: usual`. Both searches divide by length^α, where the length
includes END but not the first token.
"""

from typing import Any

import pytest
import torch
from benchmarks.hugging_face import same_parameters
from torch import Tensor, nn

from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.nn.positions import PositionsConfig

transformers = pytest.importorskip("transformers")

V, END, PAD = 23, 0, 22
SHORTEST, LONGEST = 3, 38  # maximum number of generated tokens
HALVES = PositionsConfig(layout="halves")
LEARNED = PositionsConfig(kind="learned", max_length=40)

# The name of each kind in `transformers`, and its options in seqloom.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Marian": ("MarianMTModel", {"positions": HALVES}),
    "Bart": ("BartForConditionalGeneration", {"positions": LEARNED, "embed_norm": True}),
    "Pegasus": ("PegasusForConditionalGeneration", {"positions": HALVES, "norm_first": True}),
    "MBart": ("MBartForConditionalGeneration", {"positions": LEARNED, "norm_first": True, "embed_norm": True}),
}
SHAPES: list[dict[str, Any]] = [
    {"d_model": 16, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 24, "activation": "relu"},
    {"d_model": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 3, "d_ff": 40, "activation": "gelu"},
    {"d_model": 24, "heads": 1, "encoder_layers": 3, "decoder_layers": 1, "d_ff": 8, "activation": "silu"},
]
SHAPES[0] |= {"tied": "all"}
SHAPES[1] |= {"embed_scale": False}


def ours(kind: str, shape: dict[str, Any]) -> Transformer:
    """Build a model in which END is, on average, as probable as the most probable token.

    A tied model with random weights tends to repeat its input and needs a larger bias.
    """
    torch.manual_seed(5)
    model = TransformerConfig(dropout=0.0, **shape, **KINDS[kind][1]).build(V).double().eval()
    for name, parameter in model.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.5, 0.5)))
    with torch.no_grad():
        logits = model(*sources(), torch.randint(1, PAD, (4, 30)))
        model.output.bias[END] += (logits.max(dim=-1).values - logits[..., END]).mean() + (shape.get("tied") == "all")
    return model


@torch.no_grad()
def theirs(kind: str, model: Transformer) -> Any:
    """Return the `transformers` model with the same weights."""
    shape = model.config
    both = {f"{side}_attention_heads": shape.heads for side in ("encoder", "decoder")}
    both |= {f"{side}_ffn_dim": shape.feed_forward_size for side in ("encoder", "decoder")}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=V,
        d_model=shape.d_model,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        activation_function=shape.activation,
        max_position_embeddings=40,
        scale_embedding=shape.embed_scale,
        tie_word_embeddings=shape.tied == "all",
        dropout=0.0,
        eos_token_id=END,
        bos_token_id=END,
        decoder_start_token_id=END,
        pad_token_id=PAD,
        forced_eos_token_id=None,
        **both,
    )
    other = getattr(transformers, KINDS[kind][0])(config).double().eval()
    for mine, same in same_parameters(model, other):
        same.copy_(mine)
    return other


def sources() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([7, 3, 5, 1])
    mask = torch.arange(7) < lengths[:, None]
    tokens = torch.randint(1, PAD, (4, 7), generator=torch.Generator().manual_seed(2))
    return tokens.scatter(1, lengths[:, None] - 1, END).masked_fill(~mask, PAD), mask


@pytest.fixture(params=[(kind, number) for kind in KINDS for number in range(len(SHAPES))], ids=str)
def pair(request):
    kind, number = request.param
    model = ours(kind, SHAPES[number])
    return model, theirs(kind, model)


@torch.no_grad()
def test_logits_match_transformers(pair):
    model, other = pair
    tokens, mask = sources()
    inputs = torch.randint(1, PAD, (4, 9), generator=torch.Generator().manual_seed(3))
    inputs[:, 0] = END
    expected = other(input_ids=tokens, attention_mask=mask.long(), decoder_input_ids=inputs)
    tables = model.config.positions is HALVES  # the tables of `transformers` are in float32
    torch.testing.assert_close(model(tokens, mask, inputs), expected.logits, atol=1e-6 if tables else 1e-10, rtol=0)
    expected = other.float()(input_ids=tokens, attention_mask=mask.long(), decoder_input_ids=inputs)
    torch.testing.assert_close(model.float()(tokens, mask, inputs), expected.logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_attention_weights_match_transformers(pair):
    model, other = pair
    tokens, mask = sources()
    inputs = torch.full((4, 5), 3).index_fill(1, torch.tensor([0]), END)
    other.set_attn_implementation("eager")
    expected = other(input_ids=tokens, attention_mask=mask.long(), decoder_input_ids=inputs, output_attentions=True)
    real = torch.ones_like(inputs, dtype=torch.bool)
    batch = {"source": tokens, "source_mask": mask, "inputs": inputs, "targets": inputs, "target_mask": real}
    result = model.attentions(batch)
    for name, layers in (
        ("encoder", expected.encoder_attentions),
        ("decoder", expected.decoder_attentions),
        ("cross", expected.cross_attentions),
    ):
        for mine, theirs in zip(result[name], layers, strict=True):
            rows = mask[:, None, :, None] if name == "encoder" else torch.ones(())  # queries at padding are ignored
            torch.testing.assert_close(mine, theirs * rows, atol=1e-6, rtol=0, check_dtype=False)


def generate_with_transformers(model: Any, beams: int, penalty: float) -> list[list[list[int]]]:
    """Return the ids of every hypothesis of each source, with END if it is finished."""
    tokens, mask = sources()
    result = model.generate(
        input_ids=tokens,
        attention_mask=mask.long(),
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
        early_stopping=False,
        min_new_tokens=SHORTEST,
        max_new_tokens=LONGEST,
        do_sample=False,
        bad_words_ids=[[PAD]],
    )
    rows = [row[1:] for row in result.tolist()]  # the first token is the initial END
    ids = [row[: row.index(END) + 1] if END in row else row for row in rows]
    return [ids[start : start + beams] for start in range(0, len(ids), beams)]


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 1.0), (4, 0.6)])
def test_generation_matches_transformers(pair, beams, penalty):
    """Compare finished hypotheses, because `transformers` also ranks hypotheses of the maximum length."""
    our_model, model = pair
    tokens, mask = sources()
    options = BeamConfig(beam=beams, n_best=beams, length_penalty=penalty, min_length=SHORTEST, max_length=LONGEST)
    result = beam_search(our_model, options=options, end=END, source={"tokens": tokens, "mask": mask}, banned=(PAD,))
    compared = 0
    for row, other in zip(result, generate_with_transformers(model, beams, penalty), strict=True):
        if beams == 1 or all(END in ids for ids in other):
            assert [[*hypothesis.tokens, *[END] * hypothesis.finished] for hypothesis in row] == other
            compared += 1
    assert compared
