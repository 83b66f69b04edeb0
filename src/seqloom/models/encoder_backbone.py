"""The encoder of a Transformer as a backbone."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from seqloom.core.tokens import EXTRA
from seqloom.models.backbones import Backbone
from seqloom.models.transformer import TransformerConfig
from seqloom.nn.backbone import Embedded, SourceEncoder
from seqloom.nn.pooling import mean_of_real


class EncoderBackbone(SourceEncoder, Backbone):
    """The encoder of an encoder–decoder Transformer as a backbone. The encoder reads a text a as END a END."""

    form = "ends"
    source_embed: Embedded
    embeddings: ClassVar[str] = "source_embed.embed.weight"
    pretrained_names: ClassVar[dict[str, str]] = {name: name for name in ("source_embed.", "encoder.", "encoder_norm.")}

    def __init__(self, config: TransformerConfig, vocabulary: int, predicts: bool = False) -> None:
        super().__init__(vocabulary, predicts)
        self.output_size = config.d_model
        self.source_embed = Embedded(config, nn.Embedding(vocabulary + EXTRA, config.d_model), "text")
        self.encoder, self.encoder_norm = config.encoder(), config.final_norm()
        nn.init.normal_(self.token_embedding().weight, std=config.d_model**-0.5)

    def token_embedding(self) -> nn.Embedding:
        return self.source_embed.embed

    def read(self, tokens: Tensor, mask: Tensor, segments: Tensor | None = None) -> Tensor:
        return self.run_encoder(tokens, mask)[0]

    def attentions(self, tokens: Tensor, mask: Tensor) -> list[Tensor]:
        return self.run_encoder(tokens, mask, weights=True)[1]

    def extract(self, h: Tensor, mask: Tensor) -> Tensor:
        return mean_of_real(h, mask)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [list(part.parameters()) for part in (self.source_embed, *self.encoder)]
        groups[-1].extend(self.encoder_norm.parameters())
        return groups

    def load_pretrained(self, weights: Mapping[str, Tensor], origin: str) -> None:
        """Copy the weights of a pretrained model, except the embeddings of a denoiser's sentinels."""
        embeddings = weights.get(self.embeddings)
        if embeddings is not None:
            weights = {**weights, self.embeddings: embeddings[: self.vocabulary + EXTRA]}
        super().load_pretrained(weights, origin)
