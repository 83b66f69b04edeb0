"""The search for the texts of recordings: by the decoder, by CTC, or by both, with or without a language model.

attention   beam search with the decoder
ctc         prefix beam search
joint       beam search with the decoder; its hypotheses are ranked by (1 − λ) log p_attention + λ log p_ctc
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from seqloom.config import config
from seqloom.core.tree import Tree
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.decoding.ctc import ctc_search
from seqloom.decoding.fusion import FusedDecoder, FusedLanguageModel
from seqloom.decoding.rules import Hypothesis
from seqloom.evaluate.translation import describe_decoding
from seqloom.nn.ctc import ctc_log_likelihood
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.models.vectors_to_text import LossKind, VectorsToText, VectorsToTextConfig
else:
    VectorsToText = VectorsToTextConfig = LossKind = Any

SearchKind = Literal["attention", "ctc", "joint"]


@config
class TranscriptionSearchConfig(BeamConfig):
    # models with both losses: write texts by the decoder (attention), by CTC, or rank the texts of the decoder by both
    # (joint); model: as model.loss
    by: Literal["model", "attention", "ctc", "joint"] = "model"

    def kind(self, model: VectorsToTextConfig) -> SearchKind:
        """Return how a model writes texts."""
        return self.by if self.by != "model" and model.loss == "joint" else model.loss


@torch.no_grad()
def search(
    model: VectorsToText,
    batch: Tree,
    options: TranscriptionSearchConfig,
    tokenizer: Tokenizer,
    attention: bool = False,
    language_model: FusedLanguageModel | None = None,
) -> list[list[Hypothesis]]:
    """Return the best texts of a batch of vectors, best first."""
    h, mask = model.encode(batch)
    kind = options.kind(model.config)
    if kind == "ctc":
        return ctc_search(
            model.label_log_probs(h),
            mask,
            beam=options.beam,
            n_best=options.n_best,
            banned=tokenizer.banned,
            language_model=language_model,
        )
    assert model.seq2seq is not None, "the model has no decoder"
    source = model.decoder_source(h, mask)
    found = beam_search(
        model.seq2seq if language_model is None else FusedDecoder(model.seq2seq, language_model),
        source={"tokens": source["source"], "mask": mask},
        options=replace(options, n_best=options.beam) if kind == "joint" else options,
        end=tokenizer.end,
        banned=tokenizer.banned,
        attention=attention,
    )
    if kind == "attention":
        return found
    return [ranked[: options.n_best] for ranked in rank_by_both(model, found, h, mask)]


def rank_by_both(
    model: VectorsToText, found: list[list[Hypothesis]], h: Tensor, mask: Tensor
) -> list[list[Hypothesis]]:
    """Rank the hypotheses of each recording by (1 − λ) · score + λ · log p_ctc, divided by length as the score is."""
    rows = torch.tensor([row for row, each in enumerate(found) for _ in each], device=h.device)
    hypotheses = [hypothesis for each in found for hypothesis in each]
    longest = max([1, *(len(each.tokens) for each in hypotheses)])
    targets = torch.tensor([each.tokens + [0] * (longest - len(each.tokens)) for each in hypotheses], device=h.device)
    lengths = torch.tensor([len(each.tokens) for each in hypotheses], device=h.device)
    target_mask = torch.arange(longest, device=h.device) < lengths.unsqueeze(1)
    log_probs = model.label_log_probs(h)[rows]
    ctc = ctc_log_likelihood(log_probs, mask[rows], targets, target_mask).double().tolist()
    weight, ranked = model.config.ctc_weight, iter(zip(hypotheses, ctc, strict=True))
    results = []
    for each in found:
        scored = []
        for _ in each:
            hypothesis, log_prob = next(ranked)
            divisor = hypothesis.log_prob / hypothesis.score if hypothesis.score else 1.0
            total = (1 - weight) * hypothesis.score + (weight * log_prob / divisor if weight else 0.0)
            scored.append(replace(hypothesis, score=total))
        results.append(sorted(scored, key=lambda hypothesis: -hypothesis.score))
    return results


def describe_search(options: TranscriptionSearchConfig, model: VectorsToTextConfig) -> str:
    """Describe the search of a report."""
    kind = options.kind(model)
    if kind == "ctc":
        return "CTC, greedy search" if options.beam == 1 else f"CTC, prefix beam search, {options.beam} prefixes"
    ranked = ", ranked with CTC" if kind == "joint" and options.beam > 1 else ""
    return describe_decoding(cast(BeamConfig, options)) + ranked
