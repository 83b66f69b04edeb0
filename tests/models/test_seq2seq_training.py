import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.small_seq2seq import REPRESENTATIVE, TARGETS, H, V, exactly, log_probs, model, some_batch, source_of
from torch import Tensor

from seqloom.config import build, to_mapping
from seqloom.core.errors import DataError, UsageError
from seqloom.core.protocols import DecodeState
from seqloom.core.tree import select_rows
from seqloom.models import MODELS
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig


@pytest.fixture(params=REPRESENTATIVE)
def seq2seq(request):
    return model(**REPRESENTATIVE[request.param])


# Loss and gradients.


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_matches_torch_cross_entropy_without_padding(seq2seq, smoothing):
    batch = some_batch()
    real = batch["target_mask"]
    logits = seq2seq(batch["source"], batch["source_mask"], batch["inputs"])
    value, count = seq2seq.loss(batch, smoothing)
    exactly(value, F.cross_entropy(logits[real], batch["targets"][real], label_smoothing=smoothing))
    assert count == sum(TARGETS)
    p = logits[real].log_softmax(-1)
    target_log_probs = p.gather(1, batch["targets"][real].unsqueeze(1)).squeeze(1)
    exactly(value, ((1 - smoothing) * -target_log_probs + smoothing * -p.mean(-1)).mean())
    exactly(-seq2seq.target_log_probs(batch).sum() / count, seq2seq.loss(batch)[0])


def test_scores_computed_in_pieces_match_one_call(seq2seq, monkeypatch):
    batch = some_batch()
    whole = seq2seq.target_log_probs(batch)
    monkeypatch.setattr("seqloom.nn.softmax.SCORED_POSITIONS", 2)
    exactly(seq2seq.target_log_probs(batch), whole)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_gradients_match_finite_differences(name):
    torch.manual_seed(1)
    seq2seq = model(**{**REPRESENTATIVE[name], "hidden": 2, "embedding": 2})
    batch = some_batch((3, 1), (2, 1))
    names, values = zip(*seq2seq.named_parameters(), strict=True)

    def run(*values):
        return torch.func.functional_call(
            _Loss(seq2seq), dict(zip(("model." + n for n in names), values, strict=True)), batch
        )

    chosen = [value.detach().clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(run, chosen, fast_mode=True)


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return self.model.loss(batch, 0.1)[0]


def test_every_parameter_has_a_gradient(seq2seq):
    seq2seq.loss(some_batch())[0].backward()
    for name, parameter in seq2seq.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


def test_bfloat16_autocast_returns_a_single_precision_loss(seq2seq):
    seq2seq, batch = seq2seq.float(), some_batch()
    expected = seq2seq.loss(batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = seq2seq.loss(batch)
        output = seq2seq.step(batch["inputs"], seq2seq.start(source_of(batch)), batch["target_mask"])
    value.backward()
    assert value.dtype == output.log_probs.dtype == torch.float32
    torch.testing.assert_close(value, expected, atol=0.05, rtol=0)


LEARNERS: dict[str, dict[str, Any]] = {
    **REPRESENTATIVE,
    "cosine": {"attention": {"score": "cosine"}},
    "location": {"attention": {"score": "location", "max_length": 8}, "cell": "gru-cho"},
    "scaled-dot": {"attention": {"score": "scaled-dot"}, "combine": "sum", "tied": "all"},
    "elman": {"attention": {"order": "bahdanau", "score": "general"}, "cell": "elman", "tied": "decoder"},
}


@pytest.mark.parametrize("name", LEARNERS)
def test_twenty_pairs_are_memorized(name):
    torch.manual_seed(0)
    options: dict[str, Any] = {"hidden": 32, "embedding": 16, **LEARNERS[name]}
    if options["attention"] is not None:
        options["attention"] = AttentionConfig(**options["attention"])
    seq2seq = RecurrentSeq2SeqConfig(**options).build(V)
    batch = some_batch([4 + i % 3 for i in range(20)], [2 + i % 4 for i in range(20)])
    optimizer = torch.optim.Adam(seq2seq.parameters(), lr=2e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss, _ = seq2seq.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(seq2seq.parameters(), 1.0)
        optimizer.step()
        if loss.item() < 0.05:
            break
    assert loss.item() < 0.05


# Construction.


def test_model_without_attention_has_no_weights():
    seq2seq, batch = model(attention=None), some_batch()
    assert seq2seq.attention(batch) is None and seq2seq.attend is None
    assert seq2seq.step(batch["inputs"], seq2seq.start(source_of(batch))).attention is None
    assert set(seq2seq.encode(batch["source"], batch["source_mask"])) == {"context"}


def test_encoder_is_bidirectional_by_default_with_attention():
    assert model().config.is_bidirectional and not model(attention=None).config.is_bidirectional
    assert model(attention=None, bidirectional=True).config.encoder_size == 2 * H
    assert model(bidirectional=False).config.encoder_size == H
    assert model(combine="sum").config.encoder_size == H


@pytest.mark.parametrize("attention", [None, {}])
def test_tied_embeddings_are_one_parameter(attention):
    plain, decoder, everything = (model(attention=attention, tied=tied) for tied in ("none", "decoder", "all"))
    assert plain.output.weight is not plain.target_embed.weight
    assert decoder.output.weight is decoder.target_embed.weight and decoder.source_embed is not decoder.target_embed
    assert everything.source_embed is everything.target_embed
    assert everything.output.weight is everything.source_embed.weight
    copied = copy.deepcopy(everything)
    assert copied.output.weight is copied.source_embed.weight and copied.output.weight is not everything.output.weight
    other = model(seed=1, attention=attention, tied="all")
    other.load_state_dict(everything.state_dict())
    batch = some_batch()
    exactly(log_probs(other, batch), log_probs(everything, batch))


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_initial_distribution_is_nearly_uniform(name):
    options = dict(REPRESENTATIVE[name])
    attention = options.pop("attention")
    config = RecurrentSeq2SeqConfig(attention=attention and AttentionConfig(**attention), hidden=64, **options)
    torch.manual_seed(0)
    fresh = log_probs(config.build(V).eval(), some_batch())
    assert (fresh + torch.log(torch.tensor(V))).abs().max() < 0.6


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_dropout_is_active_only_in_training(name, variational):
    options = {**REPRESENTATIVE[name], "decoder_layers": 2}
    seq2seq, batch = model(dropout=0.4, variational_dropout=variational, **options), some_batch()
    assert seq2seq.train().loss(batch)[0] != seq2seq.loss(batch)[0]
    exactly(log_probs(seq2seq.eval(), batch), log_probs(model(**options), batch))


def test_variational_dropout_between_layers_is_constant_over_steps():
    for variational in (True, False):
        seq2seq = model(dropout=0.5, variational_dropout=variational, decoder_layers=2, attention={"order": "bahdanau"})
        noise: list[Tensor] = []
        seq2seq.decoder.dropout.register_forward_hook(lambda _, __, output, noise=noise: noise.append(output))
        seq2seq.eval().loss(some_batch())
        assert noise == []
        seq2seq.train().loss(some_batch())
        (between,) = noise  # the mask between both layers, for all steps
        assert between.shape[2] == H and between.shape[1] == some_batch()["inputs"].shape[1]
        assert torch.equal(between, between[:, :1].expand_as(between)) == variational
        assert set(between.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("variational", [False, True])
def test_variational_dropout_before_the_output_is_constant_over_steps(variational, monkeypatch):
    seq2seq, seen = model(dropout=0.5, variational_dropout=variational).train(), []

    def watched(hidden, *_):
        seen.append(hidden)
        return hidden.sum()

    monkeypatch.setattr(seq2seq.output, "total_loss", watched)
    seq2seq.loss(some_batch(targets=(4, 4, 4)))
    dropped = (seen[0] == 0).view(3, 4, H)
    assert dropped.any() and not dropped.all()
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped)) == variational


def test_projections_and_ineffective_options_are_noted():
    assert model().notes() == []
    (note,) = model(attention={"score": "dot"}).notes()
    assert note == "the dot score projects the encoder states from 12 to 6 dimensions"
    assert model(attention={"score": "scaled-dot"}).notes()[0].startswith("the scaled-dot score projects")
    assert model(attention={"score": "dot"}, combine="sum").notes() == []
    assert "swaps the two directions" in model(reverse=True).notes()[0]
    assert model(attention=None, reverse=True).notes() == []
    assert "MUT1 projects" in model(cell="mut1").notes()[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cell": "lsmt"}, "did you mean lstm"),
        ({"cell": "gru", "activation": "relu"}, "only to the elman cell"),
        ({"cell": "gru", "forget_bias": 1.0}, "only to the lstm cell"),
        ({"encoder_layers": -1}, r"encoder_layers:? must be at least 0[;,] got -1"),
        ({"decoder_layers": 0}, r"decoder_layers:? must be at least 1[;,] got 0"),
        ({"embedding": 0}, r"embedding:? must be at least 1[;,] got 0"),
        ({"dropout": 1.0}, r"dropout:? must be less than 1(\.0)?[;,] got 1\.0"),
        ({"bidirectional": False, "combine": "sum"}, "combine needs a bidirectional encoder"),
        ({"attention": {"score": "aditive"}}, "did you mean additive"),
        ({"attention": {"order": "bahdanau", "input_feeding": True}}, "input_feeding needs order luong"),
        ({"attention": {"max_length": 9}}, "max_length applies only to the location score"),
        ({"attention": {"score": "location", "max_length": 0}}, r"max_length:? must be at least 1[;,] got 0"),
        ({"context": "end"}, "start, first, every"),
        ({"tied": "both"}, "none, decoder, all"),
    ],
)
def test_invalid_options_are_rejected(options, words):
    with pytest.raises(UsageError, match=words):
        build(RecurrentSeq2SeqConfig, options)


def test_null_attention_survives_a_round_trip():
    assert build(RecurrentSeq2SeqConfig, {"attention": None}).attention is None
    assert build(RecurrentSeq2SeqConfig, {}).attention == AttentionConfig()
    config = RecurrentSeq2SeqConfig(attention=None)
    assert build(MODELS.find("recurrent-seq2seq"), to_mapping(config)) == config


def test_source_longer_than_the_locations_is_rejected():
    seq2seq = model(attention={"score": "location", "max_length": 4})
    with pytest.raises(DataError, match="has 4 positions, but a source has 5 tokens"):
        seq2seq.start(source_of(some_batch()))
    seq2seq.start(source_of(some_batch(sources=(4, 3, 1), source=7)))  # the source is longer only because of padding


def test_start_and_step_validate_their_arguments():
    seq2seq, batch = model(), some_batch()
    with pytest.raises(UsageError, match="needs a source"):
        seq2seq.start(rows=3)
    with pytest.raises(ValueError, match="rows must be 3, the number of sources; got 2"):
        seq2seq.start(source_of(batch), rows=2)
    state = seq2seq.start(source_of(batch), rows=3)
    four = DecodeState(select_rows(state.hidden, torch.tensor([0, 0, 1, 2])), state.memory)
    with pytest.raises(ValueError, match="the same number of hypotheses; got 4 for 3 sources"):
        seq2seq.step(torch.zeros(4, 1, dtype=torch.long), four)
