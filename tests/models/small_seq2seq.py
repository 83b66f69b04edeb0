"""Small encoder–decoders and batches for the tests of this directory."""

from typing import Any

import torch
import torch.nn.functional as F

from seqloom.models.recurrent_seq2seq import AttentionConfig, RecurrentSeq2SeqConfig

V, H = 11, 6
SOURCES, TARGETS = (5, 2, 4), (3, 4, 1)  # number of real tokens in each row


def exactly(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=0)


def model(seed=0, attention=(), **options):
    """Build a model. `attention` contains options of AttentionConfig; None means no attention."""
    torch.manual_seed(seed)
    attention = None if attention is None else AttentionConfig(**dict(attention))
    seq2seq = RecurrentSeq2SeqConfig(**{"hidden": H, "embedding": 4, "attention": attention, **options}).build(V)
    for parameter in seq2seq.parameters():  # larger than the initial values, so that every part has an effect
        torch.nn.init.uniform_(parameter, -0.6, 0.6)
    return seq2seq.double().eval()


def padded(lengths, width=None):
    """Return tokens (B, width) with END at the end of each row and random padding, and their mask."""
    mask = torch.arange(width or max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    tokens = torch.randint(1, V, mask.shape)
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = 0
    return tokens, mask


def some_batch(sources=SOURCES, targets=TARGETS, **widths):
    source, source_mask = padded(sources, widths.get("source"))
    tokens, mask = padded(targets, widths.get("target"))
    inputs = F.pad(tokens, (1, -1))
    return {"source": source, "source_mask": source_mask, "inputs": inputs, "targets": tokens, "target_mask": mask}


def source_of(batch):
    return {"tokens": batch["source"], "mask": batch["source_mask"]}


def log_probs(seq2seq, batch):
    return seq2seq(batch["source"], batch["source_mask"], batch["inputs"]).log_softmax(dim=-1)


# Models that together cover every path through the decoder.
REPRESENTATIVE: dict[str, dict[str, Any]] = {
    "start": {"attention": None},
    "every": {"attention": None, "context": "every", "reverse": True},
    "luong": {"attention": {"order": "luong"}},
    "location-aware": {"attention": {"score": "additive", "location_filters": 3, "location_width": 5}},
    "luong-feeding": {"attention": {"input_feeding": True, "coverage": True, "score": "dot"}, "cell": "lstm"},
    "bahdanau": {"attention": {"order": "bahdanau", "score": "additive"}, "decoder_layers": 2},
    "bahdanau-covered": {"attention": {"order": "bahdanau", "score": "additive", "coverage": True}, "context": "every"},
}
