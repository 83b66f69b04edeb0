"""Taggers, which predict one of K tags for each word of a sentence.

    x_j = [E w_j; spelling]     h_1 … h_S = encoder(x_1 … x_S)     e_w = W h_{first(w)} + b

If a word is split into several tokens, its tag is predicted at the first token, which also has the word's spelling
features. With a CRF (`seqloom.nn.crf`), the tags of a sentence are scored jointly. Without a CRF, p(y_w) = softmax(e_w)
for each word.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import config
from seqloom.core.iob import Scheme, marks_spans
from seqloom.nn.crf import LinearChainCRF
from seqloom.nn.encoders import EncoderConfig, RecurrentEncoderConfig
from seqloom.nn.lexicon import Lexicon, LexiconOptions
from seqloom.nn.masks import make_dropout
from seqloom.nn.softmax import IGNORE_INDEX, at_least_float32

# tokens (B, S), mask (B, S), first (B, W) the position of each word's first token, words (B, W) the mask of words, tags
# (B, W). Models that read spelling also have characters (B, W, C), 0 at padding.
Batch = dict[str, Tensor]


@config
class TaggerConfig(LexiconOptions):
    kind: Literal["tagger"] = "tagger"
    encoder: EncoderConfig = RecurrentEncoderConfig()
    crf: bool = True  # predict the tags of a sentence jointly with a conditional random field
    constrain: bool = True  # for tags that mark spans, allow only valid sequences: no I-PER after O

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens; None means no limit."""
        return self.encoder.longest

    def build(self, vocabulary: int, tags: int, characters: int = 0) -> "SequenceTagger":
        return SequenceTagger(self, vocabulary, tags, characters)


class TaggerBase(nn.Module):
    """The base class of taggers, with an output layer and optionally a CRF.

    The loss ignores tags below 0, which represent tags that do not occur in train. With a CRF, the loss ignores
    sentences that contain such tags.
    """

    def build_output(self, input_size: int, tags: int, *, dropout: float, crf: bool, constrained: bool) -> None:
        """Create the output layer and the CRF. Call this method at the end of `__init__`."""
        self.dropout = make_dropout(dropout)
        self.output = nn.Linear(input_size, tags)
        self.chain = LinearChainCRF(tags, learned=crf)
        self.constrained = constrained
        nn.init.zeros_(self.output.bias)

    def constrain(self, names: Sequence[str], scheme: Scheme = "IOB2") -> None:
        """Set the names of the tags.

        For IOB tags, allow only valid sequences, unless `constrain` is false in the config.
        """
        if self.constrained and marks_spans(names):
            self.chain.constrain(names, scheme)

    def read(self, batch: Batch) -> Tensor:
        """Compute h (B, S, H) of the tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """Compute the emissions (B, W, K). Without a CRF, the emissions are logits."""
        h = self.read(batch).take_along_dim(batch["first"].unsqueeze(2), dim=1)  # (B, W, H)
        emissions: Tensor = self.output(self.dropout(h))
        return emissions

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean of −log p over the words that are not ignored, and the number of these words.

        The method does not synchronize the device.
        """
        log_probs, counted = self.log_likelihood(batch)
        count = counted.sum()
        return -log_probs.sum() / count.clamp(min=1), count

    def log_likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log p (B,) of the tags of each sentence and the number (B,) of its words that are not ignored."""
        emissions, tags, words = self(batch), batch["tags"], batch["words"]
        counted = words & (tags >= 0)
        if not self.chain.learned:
            targets = tags.masked_fill(~counted, IGNORE_INDEX).flatten()
            losses = F.cross_entropy(at_least_float32(emissions).flatten(0, 1), targets, reduction="none")
            return -losses.view_as(tags).sum(dim=1), counted.sum(dim=1)
        complete = (counted == words).all(dim=1)  # (B,)
        log_probs = self.chain.log_likelihood(emissions, tags.clamp(min=0), words)
        return log_probs.where(complete, 0), (words & complete.unsqueeze(1)).sum(dim=1)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """Return the most probable sequence of tags of each sentence (B, W), 0 at padding."""
        return self.chain.viterbi(self(batch), batch["words"])[0]

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """Return the marginal p (B, W, K) of every tag of every word, 0 at padding.

        After `constrain`, invalid sequences have probability 0, even without a CRF.
        """
        return self.chain.marginals(self(batch), batch["words"])

    @torch.no_grad()
    def predict_with_probabilities(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the results of `predict` and `probabilities` from a single forward pass."""
        emissions, words = self(batch), batch["words"]
        return self.chain.viterbi(emissions, words)[0], self.chain.marginals(emissions, words)


class SequenceTagger(TaggerBase):
    """A tagger of sentences. Padding of tokens and words comes last."""

    def __init__(self, config: TaggerConfig, vocabulary: int, tags: int, characters: int = 0) -> None:
        super().__init__()
        self.config = config
        self.lexicon = Lexicon(config, vocabulary, characters)
        self.encoder = config.encoder.build(self.lexicon.output_size)
        self.build_output(
            self.encoder.output_size, tags, dropout=config.dropout, crf=config.crf, constrained=config.constrain
        )

    def notes(self) -> list[str]:
        """Return notes for the user on behaviour that the recipe does not show."""
        return self.encoder.notes()

    def read(self, batch: Batch) -> Tensor:
        h: Tensor = self.encoder(self.read_vectors(batch), batch["mask"])
        return h

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """Return the attention weights (B, N, S, S) of each encoder layer, 0 at padding.

        The list is empty if the encoder has no attention.
        """
        return self.encoder.attentions(self.read_vectors(batch), batch["mask"])

    def read_vectors(self, batch: Batch) -> Tensor:
        """Compute the token vectors x (B, S, D).

        Only the first token of a word has its spelling features; the features of other tokens are 0.
        """
        words = self.lexicon.read_spelling(batch.get("characters"))  # (B, W, F)
        spelling = None
        if words is not None:
            positions = batch["first"].unsqueeze(2).expand_as(words)  # padding adds 0
            spelling = words.new_zeros(*batch["tokens"].shape, words.shape[2]).scatter_add(1, positions, words)
        x: Tensor = self.lexicon(batch["tokens"], spelling)
        return x
