"""Models of clips: the vectors of frames, padding, the order of frames, and explanations."""

from typing import Any

import numpy as np
import pytest
import torch

from seqloom.config import ConfigError
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.inspect.views.video import explain_clip
from seqloom.models.image_encoder import PatchEncoderConfig, ResNetEncoderConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import TransformerConfig
from seqloom.models.video import (
    FrameOptions,
    VideoClassifierConfig,
    VideoTaggerConfig,
    VideoToTextConfig,
)
from seqloom.nn.encoders import RecurrentEncoderConfig, TransformerEncoderConfig

SIDE, FRAMES = 8, 5
IMAGE = PatchEncoderConfig(patch=4, d_model=6)
ENCODERS = {
    "none": None,
    "recurrent": RecurrentEncoderConfig(hidden=7),
    "transformer": TransformerEncoderConfig(d_model=8, heads=2, layers=1, d_ff=16, dropout=0.0),
}
LENGTHS = torch.tensor([5, 3])


def draw_frames(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, FRAMES, SIDE, SIDE, 1), generator=generator, dtype=torch.uint8)


def batch(seed: int = 1) -> dict[str, Any]:
    mask = torch.arange(FRAMES) < LENGTHS.unsqueeze(1)
    return {"frames": draw_frames(seed), "mask": mask, "words": mask}


@pytest.mark.parametrize("locations", ["concatenate", "mean", "max"])
def test_vector_of_a_frame_combines_the_vectors_of_its_locations(locations: Any) -> None:
    encoder = FrameOptions(image=IMAGE, locations=locations).frame_encoder(SIDE, SIDE, 1)
    frames = draw_frames()
    x = encoder({"frames": frames})
    assert x.shape == (2, FRAMES, encoder.output_size)
    for row in range(2):
        for t in range(FRAMES):
            vectors = encoder.image(frames[row, t][None])[0]  # (N, D)
            expected = {"concatenate": vectors.flatten(), "mean": vectors.mean(0), "max": vectors.max(0).values}
            torch.testing.assert_close(x[row, t], expected[locations])


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS.keys())
@pytest.mark.parametrize("pooling", ["mean", "max", "attention", "last"])
def test_padding_does_not_change_the_label(encoder: Any, pooling: Any) -> None:
    if encoder is None and pooling == "last":
        with pytest.raises(ConfigError, match="pooling last needs an encoder"):
            VideoClassifierConfig(image=IMAGE, encoder=encoder, pooling=pooling)
        return
    torch.manual_seed(1)
    model = VideoClassifierConfig(image=IMAGE, encoder=encoder, pooling=pooling).build(SIDE, SIDE, 1, 4).eval()
    first = batch()
    other = {**first, "frames": torch.where(first["mask"][..., None, None, None], first["frames"], 77)}
    torch.testing.assert_close(model(other), model(first))
    alone = {"frames": first["frames"][1:, :3], "mask": first["mask"][1:, :3]}
    torch.testing.assert_close(model(alone)[0], model(first)[1])
    changed = first["frames"].clone()
    changed[1, 2] = 255 - changed[1, 2]
    assert not torch.allclose(model({**first, "frames": changed})[1], model(first)[1])  # control: a real frame matters


@pytest.mark.parametrize("name", ENCODERS)
def test_only_encoders_read_the_order_of_frames(name: str) -> None:
    torch.manual_seed(1)
    config = VideoClassifierConfig(image=IMAGE, encoder=ENCODERS[name], pooling="mean")
    model, first = config.build(SIDE, SIDE, 1, 4).eval(), batch()
    first["mask"] = torch.ones_like(first["mask"])
    is_equal = torch.allclose(model({**first, "frames": first["frames"].flip(1)}), model(first), atol=1e-6)
    assert is_equal == (name == "none")


def test_repeated_frames_do_not_change_the_statistics_of_equal_clips() -> None:
    """With batch norm, a clip of equal frames has the same output in training for any number of repeated frames."""
    torch.manual_seed(1)
    config = VideoClassifierConfig(image=ResNetEncoderConfig(channels=(4,), blocks=1), encoder=None)
    model = config.build(SIDE, SIDE, 1, 3).train()
    still = draw_frames()[:, :1].expand(-1, FRAMES, -1, -1, -1)
    masks = [torch.arange(FRAMES) < torch.tensor([[5], [n]]) for n in (5, 2)]
    outputs = [model({"frames": still, "mask": mask}) for mask in masks]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("crf", [False, True])
def test_labels_of_frames_ignore_padding(crf: bool) -> None:
    torch.manual_seed(1)
    model: Any = VideoTaggerConfig(image=IMAGE, encoder=ENCODERS["recurrent"], crf=crf).build(SIDE, SIDE, 1, 3)
    model.eval()
    tags = torch.tensor([[0, 1, 2, 0, 1], [2, 1, 0, -1, -1]])
    first = {**batch(), "tags": tags}
    alone = {"frames": first["frames"][1:, :3], "words": first["words"][1:, :3], "tags": tags[1:, :3]}
    torch.testing.assert_close(model.log_likelihood(alone)[0][0], model.log_likelihood(first)[0][1])
    assert model.predict(alone)[0].tolist() == model.predict(first)[1, :3].tolist()
    if not crf:
        logits = model(alone)[0]
        expected = logits.log_softmax(-1)[range(3), [2, 1, 0]].sum()
        torch.testing.assert_close(model.log_likelihood(alone)[0][0], expected)


@pytest.mark.parametrize(
    "seq2seq",
    [
        RecurrentSeq2SeqConfig(cell="lstm", hidden=12),
        RecurrentSeq2SeqConfig(cell="gru", hidden=12, attention=None),
        TransformerConfig(d_model=12, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0),
    ],
    ids=["attention", "no-attention", "transformer"],
)
def test_captions_ignore_padding_and_train_the_image_encoder(seq2seq: Any) -> None:
    torch.manual_seed(1)
    model = VideoToTextConfig(image=IMAGE, seq2seq=seq2seq).build(9, SIDE, SIDE, 1).eval()
    clips = batch()
    source = {"tokens": {"frames": clips["frames"]}, "mask": clips["mask"]}
    alone = {"tokens": {"frames": clips["frames"][1:, :3]}, "mask": clips["mask"][1:, :3]}
    options = BeamConfig(beam=3, max_length=6)
    both, single = (beam_search(model, source=each, options=options, end=0) for each in (source, alone))
    assert [h.tokens for h in single[0]] == [h.tokens for h in both[1]]
    targets = {
        "source": source["tokens"],
        "source_mask": clips["mask"],
        "inputs": torch.zeros(2, 1, dtype=torch.long),
        "targets": torch.ones(2, 1, dtype=torch.long),
        "target_mask": torch.ones(2, 1, dtype=torch.bool),
    }
    model.loss(targets)[0].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if ".image." in n)


def test_occlusion_is_the_decrease_in_probability_without_each_frame() -> None:
    torch.manual_seed(1)
    config = VideoClassifierConfig(image=IMAGE, encoder=ENCODERS["recurrent"], pooling="attention")
    model = config.build(SIDE, SIDE, 1, 4).eval()
    pixels = draw_frames()[0].numpy()
    reasons = explain_clip(model, pixels, 2, "c")

    def p(frames: Any) -> float:
        mask = torch.ones(1, len(frames), dtype=torch.bool)
        return model.probabilities({"frames": torch.from_numpy(frames)[None], "mask": mask})[0, 2].item()

    expected = [p(pixels) - p(np.delete(pixels, t, axis=0)) for t in range(FRAMES)]
    np.testing.assert_allclose(reasons.maps["occlusion"], expected, atol=1e-6)
    assert reasons.maps["attention"].shape == (FRAMES,) and reasons.maps["attention"].sum() == pytest.approx(1)
    best = int(np.argmax(expected))
    assert reasons.to_fields()[0] == f"frame {best + 1}: {expected[best]:+.3f}"
    assert explain_clip(model, pixels[:1], 2, "c").maps["occlusion"].tolist() == [0.0]
