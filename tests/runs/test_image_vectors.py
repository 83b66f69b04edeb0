"""Vectors of a frozen image encoder, which are computed once."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.example_files import write

from seqloom import load, train_recipe
from seqloom.core.files import tensors_from_file
from seqloom.data.images import ImageShape, ImageTable, PixelImage
from seqloom.models.image_encoder import EfficientNetEncoderConfig, ResNetEncoderConfig
from seqloom.models.image_to_text import ImageToTextConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.recipes import read_recipe
from seqloom.runs import image_vectors
from seqloom.runs.image_vectors import GROUP, VectorTable
from seqloom.runs.image_weights import PACKAGE
from seqloom.tasks.caption import Task
from seqloom.train.events import Saved

RNG = np.random.default_rng(1)
SMALL = ["model.image.size=32", "model.seq2seq.hidden=8", "tokenizer.min_count=1", "batch.size=4", "decode.beam=2"]
STEPS = ["train.epochs=null", "train.steps=4", "train.evaluate_every=2", "train.warmup=1"]
needs_weights = pytest.mark.skipif(find_spec(PACKAGE) is None, reason="needs seqloom[efficientnet]")


def make_table(count: int) -> tuple[VectorTable, torch.Tensor]:
    """Return a table and the vectors of all images, computed one by one."""
    torch.manual_seed(1)
    encoder = ResNetEncoderConfig(channels=(8,), blocks=1, first_stride=4).build(8, 8, 3).eval()
    pixels = RNG.integers(0, 256, size=(count, 8, 8, 3), dtype=np.uint8)
    images = ImageTable([PixelImage(str(n), each) for n, each in enumerate(pixels)], ImageShape(8, 8, 3))
    with torch.no_grad():
        expected = torch.cat([encoder(torch.from_numpy(each[None])) for each in pixels])
    return VectorTable(images, encoder), expected


def test_table_contains_the_vectors_of_the_encoder() -> None:
    table, expected = make_table(GROUP + 3)
    members = np.array([GROUP + 1, 2, 2, 0])
    found = table.take(members)
    assert found.dtype == torch.float16 and table.fits
    torch.testing.assert_close(found.float(), expected[members], atol=1e-3 * float(expected.abs().max()), rtol=2e-3)


def test_vectors_do_not_depend_on_the_order_of_reading() -> None:
    """A resumed run reads other images first, but exactly the same vectors."""
    first, _ = make_table(GROUP + 3)
    second = VectorTable(first.images, first.encoder)
    order = RNG.permutation(GROUP + 3)
    one_by_one = torch.cat([second.take(np.array([index])) for index in order])
    assert torch.equal(one_by_one, first.take(order))


def test_table_that_is_too_large_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_vectors, "MAX_CACHE_FRACTION", 1e-12)
    assert not make_table(3)[0].fits


@pytest.mark.parametrize("texts", [False, True])
def test_model_reads_vectors_like_images(texts: bool) -> None:
    torch.manual_seed(1)
    image = EfficientNetEncoderConfig(pretrained=False, frozen=False, size=32)
    seq2seq = RecurrentSeq2SeqConfig(hidden=8, encoder_layers=0)
    model: Any = ImageToTextConfig(image=image, seq2seq=seq2seq).build(7, 8, 8, 3, texts).eval()
    images = torch.from_numpy(RNG.integers(0, 256, size=(2, 8, 8, 3), dtype=np.uint8))
    source: dict[str, torch.Tensor] = {"text": torch.tensor([[1, 2], [3, 0]])} if texts else {}
    embed = model.source_embed[0]
    expected = embed({**source, "images": images})
    torch.testing.assert_close(embed({**source, "vectors": embed.image(images)}), expected)


@pytest.mark.parametrize(
    ("options", "frozen"), [([], True), (["augment.mirror=true"], False), (["model.image.frozen=false"], False)]
)
def test_only_frozen_encoders_without_augmentation_are_computed_once(options: list[str], frozen: bool) -> None:
    assert Task(read_recipe("caption-flickr8k", options)[1], None).is_frozen == frozen


@needs_weights
def test_frozen_encoder_is_run_once_and_resuming_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLOOM_DATA", str(write(tmp_path / "data")))

    def stop(event: Any) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    recipe = ["caption-flickr8k", *SMALL, *STEPS]
    train_recipe(*recipe, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_recipe(*recipe, out=tmp_path / "b", on_event=stop)
    train_recipe(*recipe, out=tmp_path / "b", resume=True)
    a, b = (tensors_from_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)

    model = load(tmp_path / "a", "cpu")
    task = model.task()
    batch = task.batch(1, 0)
    assert set(batch["source"]) == {"vectors"} and batch["source"]["vectors"].shape[1:] == (1, 1280)
    report = model.report("test")
    files = [example.image.decode().pixels for example in task.corpus.split("test")]
    assert [each.text for each in model.caption(files)] == [line.text for line in report.lines]
