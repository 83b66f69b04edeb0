"""GPT compared with GPT-2 of `transformers` for equal random weights: logits, gradients, greedy and beam search."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.nn.torch_layers import exactly
from torch import Tensor, nn

from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.generate import generate
from seqloom.decoding.processors import SamplingConfig
from seqloom.models.gpt import GPT, GPTConfig
from seqloom.nn.positions import PositionsConfig

transformers = pytest.importorskip("transformers")

V, END = 23, 0
LONGEST = 30  # maximum number of generated tokens
LEARNED = PositionsConfig(kind="learned", max_length=40)
SHAPES: list[dict[str, Any]] = [
    {"d_model": 16, "heads": 4, "layers": 2},
    {"d_model": 12, "heads": 2, "layers": 4, "d_ff": 20, "activation": "gelu-tanh"},
    {"d_model": 24, "heads": 1, "layers": 1, "d_ff": 8, "activation": "relu", "tied": False},
    {"d_model": 20, "heads": 5, "layers": 3, "activation": "silu"},
]
# Names of the activations in `transformers`
NAMES = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}


@torch.no_grad()
def ours(shape: dict[str, Any]) -> GPT:
    """Build a model with large weights, so that predictions differ and END occurs."""
    torch.manual_seed(6)
    model = GPTConfig(dropout=0.0, positions=LEARNED, **shape).build(V).double().eval()
    for name, parameter in model.named_parameters():
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm.weight" in name else (-0.5, 0.5)))
    logits, end = model(torch.randint(1, V, (4, 30))), model.output.weight[END]
    missing = (logits.max(dim=-1).values - logits[..., END]).mean()
    model.backbone.norm.bias += 1.2 * missing * end / end.square().sum()
    return model


def pairs(model: GPT, other: Any) -> list[tuple[Tensor, Tensor, bool]]:
    """Yield the seqloom parameters with their counterparts, and whether the counterpart is transposed."""
    backbone: Any = model.backbone
    theirs = other.transformer
    result = [
        (backbone.embed.weight, theirs.wte.weight, False),
        (backbone.embedded.positions.weight, theirs.wpe.weight, False),
        (backbone.norm.weight, theirs.ln_f.weight, False),
        (backbone.norm.bias, theirs.ln_f.bias, False),
    ]
    result += [] if model.config.tied else [(model.output.weight, other.lm_head.weight, False)]
    for mine, same in zip(backbone.blocks, theirs.h, strict=True):
        at, ff = mine.self_attention, mine.feed_forward
        together = [torch.cat([getattr(part, name) for part in (at.q, at.k, at.v)]) for name in ("weight", "bias")]
        layers = [(at.out, same.attn.c_proj), (ff.up, same.mlp.c_fc), (ff.down, same.mlp.c_proj)]
        norms = [(mine.mixer_residual.norm, same.ln_1), (mine.feed_forward_residual.norm, same.ln_2)]
        result += [(together[0], same.attn.c_attn.weight, True), (together[1], same.attn.c_attn.bias, False)]
        result += [(a.weight, b.weight, True) for a, b in layers] + [(a.bias, b.bias, False) for a, b in layers]
        result += [pair for a, b in norms for pair in ((a.weight, b.weight, False), (a.bias, b.bias, False))]
    return result


@torch.no_grad()
def theirs(model: GPT) -> Any:
    shape = model.config
    config = transformers.GPT2Config(
        vocab_size=V,
        n_positions=40,
        n_embd=shape.d_model,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_inner=shape.feed_forward_size,
        activation_function=NAMES[shape.activation],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=shape.tied,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
    )
    other = transformers.GPT2LMHeadModel(config).double().eval()
    for mine, same, turned in pairs(model, other):
        same.copy_(mine.T if turned else mine)
    return other


@pytest.fixture(scope="module", params=range(len(SHAPES)), ids=lambda number: str(SHAPES[number]))
def both(request: Any) -> tuple[GPT, Any]:
    model = ours(SHAPES[request.param])
    return model, theirs(model)


def test_every_parameter_has_a_counterpart(both: tuple[GPT, Any]) -> None:
    model, other = both
    listed = sum(same.numel() for _, same, _ in pairs(model, other))
    assert listed == sum(parameter.numel() for parameter in other.parameters())
    assert listed == sum(parameter.numel() for parameter in model.parameters())


def test_logits_match_transformers(both: tuple[GPT, Any]) -> None:
    model, other = both
    tokens = torch.randint(V, (5, 40))
    with torch.no_grad():
        exactly(model(tokens), other(tokens).logits)


def test_gradients_match_transformers(both: tuple[GPT, Any]) -> None:
    model, other = both
    inputs, targets = torch.randint(V, (2, 3, 17))
    for each_model in both:
        each_model.zero_grad()
    model.loss(inputs, targets)[0].backward()
    F.cross_entropy(other(inputs).logits.flatten(0, 1), targets.flatten()).backward()
    leaves = {id(parameter): parameter for parameter in model.parameters()}
    for mine, same, turned in pairs(model, other):
        if id(mine) in leaves:  # except the three parameters that `transformers` stores as one
            exactly(mine.grad.T if turned else mine.grad, same.grad)  # type: ignore[union-attr]
    for block, same in zip(model.backbone.blocks, other.transformer.h, strict=True):
        parts: Any = (block.self_attention.q, block.self_attention.k, block.self_attention.v)
        exactly(torch.cat([part.weight.grad for part in parts]).T, same.attn.c_attn.weight.grad)


def generate_with_transformers(other: Any, prompt: Tensor, **options: Any) -> list[list[int]]:
    """Return the texts that `transformers` generates after a prompt, up to END."""
    result = other.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=LONGEST, do_sample=False, **options
    )
    tokens = [row[prompt.shape[1] :].tolist() for row in result]
    return [row[: row.index(END)] if END in row else row for row in tokens]


def test_greedy_search_matches_transformers(both: tuple[GPT, Any]) -> None:
    model, other = both
    prompt = torch.cat([torch.zeros(6, 1, dtype=torch.long), torch.randint(1, V, (6, 3))], dim=1)
    steps = generate(model, prompt, options=SamplingConfig(temperature=0), max_tokens=LONGEST, end=END)
    tokens = torch.stack([step.tokens for step in steps], dim=1).tolist()
    result = [row[: row.index(END)] if END in row else row for row in tokens]
    assert result == generate_with_transformers(other, prompt)
    assert len({tuple(row) for row in result}) > 1


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_beam_search_matches_transformers(both: tuple[GPT, Any], beam: int, alpha: float) -> None:
    """With n_best = beam, early_stopping=False of `transformers` corresponds to the stopping rule `usual`."""
    model, other = both
    options = BeamConfig(beam=beam, n_best=beam, length_penalty=alpha, max_length=LONGEST)
    hypotheses = beam_search(model, options=options, end=END)[0]
    result = [hypothesis.tokens for hypothesis in hypotheses]
    assert any(hypothesis.finished for hypothesis in hypotheses)
    outputs = {"num_beams": beam, "num_return_sequences": beam, "length_penalty": alpha, "early_stopping": False}
    assert result == generate_with_transformers(other, torch.tensor([[END]]), **(outputs if beam > 1 else {}))
