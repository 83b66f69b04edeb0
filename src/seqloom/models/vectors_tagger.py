"""A model that labels each vector of a sequence, such as the frames of a sound.

h_1 … h_S = encoder(x_1 … x_S)     e_t = W h_t + b     p(y_t) = softmax(e_t), or p(y_1 … y_S) by a CRF
"""

from typing import Annotated, Literal

from torch import Tensor

from seqloom.config import Discriminator, config
from seqloom.config.constraints import Fraction
from seqloom.models.tagger import Batch, TaggerBase
from seqloom.nn.encoders import AnyEncoderConfig, RecurrentEncoderConfig


@config
class VectorsTaggerConfig:
    kind: Literal["vectors-tagger"] = "vectors-tagger"
    # encoder that reads the vectors; null: none, each vector is labelled independently
    encoder: Annotated[AnyEncoderConfig, Discriminator("kind")] | None = RecurrentEncoderConfig()
    crf: bool = False  # predict the labels of a recording jointly with a conditional random field
    dropout: Fraction = 0.0  # dropout before the output layer

    def build(self, size: int, tags: int) -> "VectorsTagger":
        """Create a model that reads vectors of `size` values."""
        return VectorsTagger(self, size, tags)


class VectorsTagger(TaggerBase):
    """A model that labels vectors. A batch contains vectors (B, S, D), their mask and words (B, S), and tags (B, S)."""

    def __init__(self, config: VectorsTaggerConfig, size: int, tags: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = None if config.encoder is None else config.encoder.build(size)
        outputs = size if self.encoder is None else self.encoder.output_size
        self.build_output(outputs, tags, dropout=config.dropout, crf=config.crf, constrained=False)

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return [] if self.encoder is None else self.encoder.notes()

    def read(self, batch: Batch) -> Tensor:
        """Compute h (B, S, H) of the vectors."""
        return batch["vectors"] if self.encoder is None else self.encoder(batch["vectors"], batch["mask"])

    def forward(self, batch: Batch) -> Tensor:
        """Compute the emissions (B, S, K). Without a CRF, the emissions are logits."""
        emissions: Tensor = self.output(self.dropout(self.read(batch)))
        return emissions
