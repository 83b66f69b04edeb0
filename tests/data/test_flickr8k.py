"""Flickr8k with captions: splits, captions of each image, and damaged data."""

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from tests.data.example_files import write

from seqloom.core.errors import DataError
from seqloom.data.corpora import flickr8k_captions
from seqloom.data.corpus import Corpus
from seqloom.data.files import use_data_folder
from seqloom.data.image_texts import CaptionedImage


def load(folder: Path, train: int | None = None) -> Corpus[CaptionedImage]:
    with use_data_folder(folder):
        return flickr8k_captions.load(flickr8k_captions.Config(train=train))


def test_images_have_their_captions(tmp_path: Path) -> None:
    corpus = load(write(tmp_path))
    assert {split: len(corpus.split(split)) for split in corpus.splits} == {"train": 8, "dev": 3, "test": 3}
    for split, first in (("train", 0), ("dev", 8), ("test", 11)):
        for n, example in enumerate(corpus.split(split), start=first):
            assert example.captions == tuple(f"A dog {n} runs {k} ." for k in range(5))
            assert np.array_equal(example.image.decode().pixels[0, 0], (17 * n, 255 - 17 * n, 90))
    assert len(load(tmp_path, train=5).split("train")) == 5


def test_missing_images_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path) / "flickr8k" / "images_128_dev.zip"
    with ZipFile(path) as archive:
        content = archive.read("8.jpg")
    with ZipFile(path, "w") as archive:
        archive.writestr("8.jpg", content)
    with pytest.raises(DataError, match=r"2 of the 3 pictures of Flickr8k in dev have no images; the first is 9\.jpg"):
        load(tmp_path)
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"images_128_dev\.zip must be a readable ZIP archive"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"Flickr8k needs .*images_128_dev\.zip, which does not exist"):
        load(tmp_path)
