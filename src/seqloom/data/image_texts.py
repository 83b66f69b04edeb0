"""Examples with an image, a text to read, and texts to write. Captions have no text to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from seqloom.data.corpus import Corpus, Example, frame
from seqloom.data.images import Image


class DescribedExample(Example):
    """The base class of examples with texts that a model writes, and optionally a text that a model reads."""

    @property
    def source_text(self) -> str:
        """The text that a model reads beside the image, or "" without such a text."""
        return ""

    @property
    def target_texts(self) -> Sequence[str]:
        """The correct texts, at least one."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The name of the image or clip, for display."""
        raise NotImplementedError

    def texts(self) -> Sequence[str]:
        return [text for text in (self.source_text, *self.target_texts) if text]


@dataclass(frozen=True)
class ImageTextExample(DescribedExample):
    """The base class of examples with an image and texts."""

    unit: ClassVar = "images"

    image: Image

    @property
    def text(self) -> str:
        return self.image.name

    def content(self) -> bytes:
        return b"".join(map(frame, (self.image.sha256, self.source_text, *self.target_texts)))


@dataclass(frozen=True)
class CaptionedImage(ImageTextExample):
    """An image and its captions, which describe it independently."""

    form: ClassVar = "image-captioning"

    captions: tuple[str, ...]

    @property
    def target_texts(self) -> Sequence[str]:
        return self.captions

    @classmethod
    def sizes(cls, corpus: "Corpus[CaptionedImage]", split: str) -> dict[str, int]:
        examples = corpus.split(split)
        captions = [caption for example in examples for caption in example.captions]
        words = sum(len(caption.split()) for caption in captions)
        return {"images": len(examples), "captions": len(captions), "words": words}
