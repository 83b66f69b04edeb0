"""Tests of encoder–decoders whose source is a sequence of vectors, such as an image."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom.config import ConfigError
from seqloom.core.errors import UsageError
from seqloom.core.tree import Tree
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.image_encoder import PatchEncoderConfig, ResNetEncoderConfig
from seqloom.models.image_to_text import ImageToTextConfig
from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig
from seqloom.models.seq2seq import Seq2Seq, SourceVectors
from seqloom.models.transformer import TransformerConfig

VOCABULARY, SIDE, END = 11, 8, 0
SEQ2SEQ = {
    "attention": RecurrentSeq2SeqConfig(cell="lstm", hidden=12),
    "no-encoder": RecurrentSeq2SeqConfig(cell="gru", hidden=12, encoder_layers=0),
    "bahdanau": RecurrentSeq2SeqConfig(cell="gru", hidden=12, attention=AttentionConfig(order="bahdanau")),
    "no-attention": RecurrentSeq2SeqConfig(cell="lstm", hidden=12, attention=None),
    "transformer": TransformerConfig(d_model=12, heads=2, encoder_layers=1, decoder_layers=2, dropout=0.0),
    "transformer-no-encoder": TransformerConfig(d_model=12, heads=2, encoder_layers=0, decoder_layers=1, dropout=0.0),
}
CONFIGS = pytest.mark.parametrize("seq2seq", SEQ2SEQ.values(), ids=SEQ2SEQ.keys())


class Lookup(SourceVectors):
    """Embeddings of tokens as a source of vectors."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.embed, self.output_size = nn.Embedding.from_pretrained(weight), weight.shape[1]

    def forward(self, source: Tree) -> Tensor:
        vectors: Tensor = self.embed(source)
        return vectors


def draw_batch(texts: bool = False, rows: int = 3) -> dict[str, Tree]:
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(1, VOCABULARY, (rows, 5), generator=generator)
    target_mask = torch.arange(5) < torch.tensor([[5], [3], [4]])[:rows]
    targets = targets.masked_fill(~target_mask, 0)
    inputs = torch.cat([torch.full((rows, 1), END), targets[:, :-1]], dim=1)
    source = {"images": torch.randint(0, 256, (rows, SIDE, SIDE, 3), generator=generator, dtype=torch.uint8)}
    mask = torch.ones(rows, 4, dtype=torch.bool)
    if texts:
        source["text"] = torch.randint(1, VOCABULARY, (rows, 3), generator=generator)
        mask = torch.cat([mask, torch.arange(3) < torch.tensor([[3], [1], [2]])[:rows]], dim=1)
    return {
        "source": source,
        "source_mask": mask,
        "inputs": inputs,
        "targets": targets,
        "target_mask": target_mask,
    }


def build(seq2seq: object, texts: bool = False) -> Seq2Seq:
    torch.manual_seed(1)
    config = ImageToTextConfig(image=PatchEncoderConfig(patch=4, d_model=6), seq2seq=seq2seq)
    return config.build(VOCABULARY, SIDE, SIDE, 3, texts).eval()


@CONFIGS
def test_token_vectors_as_input_give_the_results_of_the_text_model(
    seq2seq: RecurrentSeq2SeqConfig | TransformerConfig,
) -> None:
    """With embeddings as vectors and the identity as projection, the model is the ordinary encoder–decoder."""
    torch.manual_seed(3)
    text_model: Any = seq2seq.build(VOCABULARY).eval()
    is_recurrent = isinstance(seq2seq, RecurrentSeq2SeqConfig)
    embed = text_model.source_embed if is_recurrent else text_model.source_embed.embed
    model: Any = seq2seq.build(VOCABULARY, source=Lookup(embed.weight.detach())).eval()
    project = model.source_embed[1] if is_recurrent else model.source_embed.embed[1]
    shared = {name: value for name, value in text_model.state_dict().items() if "source_embed" not in name}
    missing, unexpected = model.load_state_dict(shared, strict=False)
    assert not unexpected and all("source_embed" in name for name in missing)
    nn.init.eye_(project.weight)
    batch = draw_batch()
    batch["source"] = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]])
    batch["source_mask"] = torch.arange(4) < torch.tensor([[4], [2], [3]])
    torch.testing.assert_close(model.target_log_probs(batch), text_model.target_log_probs(batch))
    first, second = (
        beam_search(
            each,
            source={"tokens": batch["source"], "mask": batch["source_mask"]},
            options=BeamConfig(beam=3, max_length=6),
            end=END,
        )
        for each in (model, text_model)
    )
    assert [[h.tokens for h in row] for row in first] == [[h.tokens for h in row] for row in second]


@CONFIGS
@pytest.mark.parametrize("texts", [False, True], ids=["image", "image-and-text"])
def test_log_probs_of_steps_match_those_of_teacher_forcing(seq2seq: object, texts: bool) -> None:
    model, batch = build(seq2seq, texts), draw_batch(texts)
    expected = model.target_log_probs(batch)
    state = model.start({"tokens": batch["source"], "mask": batch["source_mask"]})
    for t in range(5):
        output = model.step(batch["inputs"][:, t : t + 1], state)
        state = output.state
        found = output.log_probs.gather(1, batch["targets"][:, t : t + 1]).squeeze(1)
        real = batch["target_mask"][:, t]
        torch.testing.assert_close(found[real], expected[real, t])


@CONFIGS
def test_gradients_reach_the_image_encoder(seq2seq: object) -> None:
    model, batch = build(seq2seq, texts=True), draw_batch(texts=True)
    model.loss(batch)[0].backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0
        for name, parameter in model.named_parameters()
        if "source_embed" in name
    )


@CONFIGS
def test_padding_of_the_text_does_not_change_the_loss(seq2seq: object) -> None:
    model, batch = build(seq2seq, texts=True), draw_batch(texts=True)
    expected = model.target_log_probs(batch)
    text = torch.where(batch["source_mask"][:, 4:], batch["source"]["text"], 7)
    changed = {**batch, "source": {**batch["source"], "text": text}}
    torch.testing.assert_close(model.target_log_probs(changed), expected)


@CONFIGS
def test_every_part_of_the_source_affects_the_output(seq2seq: object) -> None:
    """Control: another image or another question changes the probabilities."""
    model, batch = build(seq2seq, texts=True), draw_batch(texts=True)
    expected, source = model.target_log_probs(batch), batch["source"]
    for name, values in {"images": 255 - source["images"], "text": (source["text"] % (VOCABULARY - 1)) + 1}.items():
        changed = {**batch, "source": {**source, name: values}}
        assert not torch.allclose(model.target_log_probs(changed), expected)


def test_consistency_loss_reads_images_twice() -> None:
    model, batch = build(RecurrentSeq2SeqConfig(hidden=12, dropout=0.5)).train(), draw_batch()
    torch.manual_seed(2)
    value, count = model.loss(batch, consistency=1.0)
    assert int(count) == int(batch["target_mask"].sum())
    assert torch.isfinite(value)


def test_context_without_encoder_is_the_mean_of_the_vectors() -> None:
    model: Any = build(RecurrentSeq2SeqConfig(hidden=12, encoder_layers=0), texts=True)
    batch = draw_batch(texts=True)
    memory = model.encode(batch["source"], batch["source_mask"])
    vectors, mask = model.source_embed(batch["source"]), batch["source_mask"]
    means = [row[real].mean(dim=0) for row, real in zip(vectors, mask, strict=True)]
    torch.testing.assert_close(memory["context"], torch.stack(means))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TransformerConfig(tied="all"), "tied must be decoder or none"),
        (RecurrentSeq2SeqConfig(reverse=True), "reverse needs a text"),
    ],
)
def test_options_for_text_sources_are_rejected(options: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ImageToTextConfig(image=ResNetEncoderConfig(), seq2seq=options)


def test_encoder_options_without_encoder_are_rejected() -> None:
    with pytest.raises(ConfigError, match="need an encoder"):
        RecurrentSeq2SeqConfig(encoder_layers=0, bidirectional=True)


# --- Show and Tell, and Show, Attend and Tell -------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_first_input_of_the_decoder_is_the_mean_vector(cell: Any) -> None:
    """NIC: the log-probs equal those of one pass over the inputs W c, END, y_1, y_2 … from the zero state."""
    model: Any = build(RecurrentSeq2SeqConfig(cell=cell, hidden=12, encoder_layers=0, attention=None, context="first"))
    batch = draw_batch()
    c = model.source_embed(batch["source"]).mean(dim=1)
    inputs = torch.cat([model.bridge(c).unsqueeze(1), model.target_embed(batch["inputs"])], dim=1)
    states = model.decoder(inputs)[0][:, 1:]
    expected = model.output(states).log_softmax(-1).gather(2, batch["targets"].unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(model.target_log_probs(batch), expected.masked_fill(~batch["target_mask"], 0))
    state = model.start({"tokens": batch["source"], "mask": batch["source_mask"]})
    output = model.step(batch["inputs"][:, :1], state)
    torch.testing.assert_close(output.log_probs, model.output(states[:, 0]).log_softmax(-1))


def test_context_first_requires_images_and_no_attention() -> None:
    with pytest.raises(ConfigError, match="context first needs a decoder without attention"):
        RecurrentSeq2SeqConfig(context="first")
    with pytest.raises(UsageError, match="context first needs images or clips"):
        RecurrentSeq2SeqConfig(context="first", attention=None).build(VOCABULARY)


@pytest.mark.parametrize("name", ["attention", "bahdanau", "transformer"])
@pytest.mark.parametrize("texts", [False, True])
def test_doubly_stochastic_loss_adds_the_penalty_of_each_text(name: str, texts: bool) -> None:
    """The penalty is computed from the attention weights with loops over texts, locations and words."""
    model, batch = build(SEQ2SEQ[name], texts), draw_batch(texts)
    weights = model.attention(batch)
    assert weights is not None
    penalty = 0.0
    for row, (source, target) in enumerate(zip(batch["source_mask"], batch["target_mask"], strict=True)):
        for j in range(len(source)):
            if source[j]:
                penalty += (1 - sum(weights[row, t, j].item() for t in range(len(target)) if target[t])) ** 2
    plain, count = model.loss(batch)
    value, _ = model.loss(batch, doubly_stochastic=0.7)
    assert value.item() == pytest.approx(plain.item() + 0.7 * penalty / int(count), rel=1e-5)
    value.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
