"""Tagger: many words in, one of K tags for each.

    x_j = [E w_j; spelling]     h_1 … h_S = encoder(x_1 … x_S)     e_w = W h_{first(w)} + b

Where words are cut into several tokens, a word is read off at its first one, which also carries its
spelling. With a CRF (`seqloom.nn.crf`) the tags of a sentence are judged together; without, p(y_w)
= softmax(e_w), each by itself.
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

# tokens (B, S), mask (B, S), first (B, W) the place of each word's first token, words (B, W) their mask, tags (B, W),
# and where spelling is read, characters (B, W, C), 0 where there is none
Batch = dict[str, Tensor]


@config
class TaggerConfig(LexiconOptions):
    kind: Literal["tagger"] = "tagger"
    encoder: EncoderConfig = RecurrentEncoderConfig()
    crf: bool = True  # judge the tags of a sentence together
    constrain: bool = True  # where tags mark spans, only sequences that are valid: no I-PER after O

    @property
    def longest(self) -> int | None:
        """The most tokens it can read; None for any number."""
        return self.encoder.longest

    def build(self, vocabulary: int, tags: int, characters: int = 0) -> "Tagger":
        return Tagger(self, vocabulary, tags, characters)


class Tagging(nn.Module):
    """The base of taggers: the vectors of words to tags, judged together where there is a CRF.

    Tags below 0 never occurred in training. They have no loss; with a CRF their sentences have
    none.
    """

    def top(self, width: int, tags: int, *, dropout: float, crf: bool, constrained: bool) -> None:
        """What stands above the vectors of words, `width` wide; made last."""
        self.dropout = make_dropout(dropout)
        self.output = nn.Linear(width, tags)
        self.chain = LinearChainCRF(tags, learned=crf)
        self.constrained = constrained
        nn.init.zeros_(self.output.bias)

    def constrain(self, names: Sequence[str], scheme: Scheme = "IOB2") -> None:
        """The names of the tags. Where they mark spans, and the recipe does not object, only valid sequences count."""
        if self.constrained and marks_spans(names):
            self.chain.constrain(names, scheme)

    def read(self, batch: Batch) -> Tensor:
        """h (B, S, H) of the tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """Emissions (B, W, K); without a CRF they are logits."""
        h = self.read(batch).take_along_dim(batch["first"].unsqueeze(2), dim=1)  # (B, W, H)
        emissions: Tensor = self.output(self.dropout(h))
        return emissions

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean of −log p over the words whose tag is known, and how many they are; never waits for a GPU."""
        log_probs, counted = self.log_likelihood(batch)
        count = counted.sum()
        return -log_probs.sum() / count.clamp(min=1), count

    def log_likelihood(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """log p (B,) of the tags of each sentence, and how many of its words are counted (B,)."""
        emissions, tags, words = self(batch), batch["tags"], batch["words"]
        known = words & (tags >= 0)
        if not self.chain.learned:
            targets = tags.masked_fill(~known, IGNORE_INDEX).flatten()
            losses = F.cross_entropy(at_least_float32(emissions).flatten(0, 1), targets, reduction="none")
            return -losses.view_as(tags).sum(dim=1), known.sum(dim=1)
        whole = (known == words).all(dim=1)  # (B,)
        found = self.chain.log_likelihood(emissions, tags.clamp(min=0), words)
        return found.where(whole, 0), (words & whole.unsqueeze(1)).sum(dim=1)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """The best tags of each sentence (B, W), all together; 0 at padding."""
        return self.chain.viterbi(self(batch), batch["words"])[0]

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """p (B, W, K) of every tag of every word, whatever the tags of the others; 0 at padding.

        Sequences that are not valid have no part in it, where `constrain` has been told of them;
        without a CRF too.
        """
        return self.chain.marginals(self(batch), batch["words"])

    @torch.no_grad()
    def answer(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What `predict` and `probabilities` say, of one reading."""
        emissions, words = self(batch), batch["words"]
        return self.chain.viterbi(emissions, words)[0], self.chain.marginals(emissions, words)


class Tagger(Tagging):
    """Reads a sentence and says what each of its words is. Tokens and words stand first and padding last."""

    def __init__(self, config: TaggerConfig, vocabulary: int, tags: int, characters: int = 0) -> None:
        super().__init__()
        self.config = config
        self.lexicon = Lexicon(config, vocabulary, characters)
        self.encoder = config.encoder.build(self.lexicon.output_size)
        self.top(self.encoder.output_size, tags, dropout=config.dropout, crf=config.crf, constrained=config.constrain)

    def notes(self) -> list[str]:
        """What the model does beyond what its recipe says, in words for whoever trains it."""
        return self.encoder.notes()

    def read(self, batch: Batch) -> Tensor:
        h: Tensor = self.encoder(self.read_vectors(batch), batch["mask"])
        return h

    @torch.no_grad()
    def attentions(self, batch: Batch) -> list[Tensor]:
        """The attention weights of each layer of the encoder (B, N, S, S), 0 at padding; empty without attention."""
        return self.encoder.attentions(self.read_vectors(batch), batch["mask"])

    def read_vectors(self, batch: Batch) -> Tensor:
        """x (B, S, D). Each word's spelling is read at its first token, zeros at the others."""
        words = self.lexicon.read_spelling(batch.get("characters"))  # (B, W, F)
        spelling = None
        if words is not None:
            positions = batch["first"].unsqueeze(2).expand_as(words)  # padding adds zeros
            spelling = words.new_zeros(*batch["tokens"].shape, words.shape[2]).scatter_add(1, positions, words)
        x: Tensor = self.lexicon(batch["tokens"], spelling)
        return x
