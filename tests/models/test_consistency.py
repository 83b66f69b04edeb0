"""The consistency loss: two forward passes with different dropout masks should give similar predictions."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.models.small_seq2seq import some_batch
from tests.models.small_transformer import transformer

from seqloom.models.bert import BERTConfig
from seqloom.models.classifier import ClassifierConfig
from seqloom.models.fine_tuned import FineTunedClassifierConfig, FineTunedPairConfig
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig

MODELS = {
    "transformer": lambda dropout: transformer(dropout=dropout),
    "recurrent": lambda dropout: RecurrentSeq2SeqConfig(hidden=8, dropout=dropout).build(11).double(),
    "variational dropout": lambda dropout: (
        RecurrentSeq2SeqConfig(hidden=8, dropout=dropout, variational_dropout=True).build(11).double()
    ),
}


@pytest.fixture(params=MODELS)
def make(request):
    torch.manual_seed(0)
    return MODELS[request.param]


def logits_of_two_passes(model, batch):
    """Return the logits of `loss` (2, real targets, V), which are computed again with the same random numbers."""
    seen = []
    keep = model.output.register_forward_hook(lambda _, __, output: seen.append(output))
    torch.manual_seed(5)
    model.loss(batch, consistency=1.0)
    keep.remove()
    return seen[0].detach().view(2, -1, seen[0].shape[-1])


def test_loss_is_the_mean_plus_the_divergence(make):
    model, batch = make(0.3).train(), some_batch()
    targets = batch["targets"][batch["target_mask"]]
    first, second = logits_of_two_passes(model, batch)
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    apart = F.kl_div(p, q, log_target=True, reduction="sum") + F.kl_div(q, p, log_target=True, reduction="sum")
    both = (F.cross_entropy(first, targets) + F.cross_entropy(second, targets)) / 2
    torch.manual_seed(5)
    value, count = model.loss(batch, consistency=2.0)
    assert count == len(targets)
    assert apart > 1e-3  # the two dropout masks differ
    torch.testing.assert_close(value, both + 2.0 / 4 * apart / len(targets))


def test_both_passes_share_one_forward_call(make):
    model, batch, seen = make(0.3).train(), some_batch(), []
    model.output.register_forward_hook(lambda _, __, output: seen.append(len(output)))
    model.loss(batch, 0.1, consistency=1.0)
    assert seen == [2 * int(batch["target_mask"].sum())]


def test_consistency_loss_has_no_effect_without_dropout(make):
    model, batch = make(0.0).train(), some_batch()
    torch.testing.assert_close(model.loss(batch, 0.1, consistency=5.0)[0], model.loss(batch, 0.1)[0])


def test_evaluation_reads_every_pair_once(make):
    model, batch = make(0.3).eval(), some_batch()
    assert torch.equal(model.loss(batch, consistency=5.0)[0], model.loss(batch)[0])


TOKENS = torch.randint(11, (5, 2, 4), generator=torch.Generator().manual_seed(3))
LENGTHS = torch.tensor([[4, 3], [3, 4], [4, 2], [2, 4], [4, 4]])
SHAPE: dict[str, Any] = {"d_model": 8, "heads": 2, "layers": 1}


def texts(rows=()):
    """Return five texts, or pairs with two rows each. One label does not occur in train."""
    mask = torch.arange(4) < LENGTHS.unsqueeze(2)
    batch = {"tokens": TOKENS[:, *rows], "mask": mask[:, *rows], "segments": torch.zeros_like(TOKENS)[:, *rows]}
    return {**batch, "labels": torch.tensor([0, 2, -1, 1, 2]), "read": 17}


def classifier(dropout):
    return ClassifierConfig(embedding=6, dropout=dropout).build(11, 3), texts((0,))


def fine_tuned_classifier(dropout):
    backbone = BERTConfig(dropout=dropout, **SHAPE)
    return FineTunedClassifierConfig(backbone=backbone, dropout=dropout).build(11, 3), texts((0,))


def fine_tuned_pair(dropout):
    return FineTunedPairConfig(backbone=GPTConfig(dropout=dropout, **SHAPE), dropout=dropout).build(11, 3), texts()


@pytest.fixture(params=[classifier, fine_tuned_classifier, fine_tuned_pair], ids=lambda make: make.__name__)
def make_classifier(request):
    """Return a function that builds a model with three labels and its batch."""

    def build_classifier(dropout):
        torch.manual_seed(0)
        model, batch = request.param(dropout)
        return model.double(), batch

    return build_classifier


def test_label_loss_is_the_mean_plus_the_divergence(make_classifier):
    model, batch = make_classifier(0.3)
    model.train()
    seen = []
    keep = model.output.register_forward_hook(lambda _, __, output: seen.append(output))
    torch.manual_seed(5)
    value, count = model.loss(batch, consistency=2.0)
    keep.remove()
    known = batch["labels"] >= 0
    first, second = (part[known] for part in seen[0].detach().chunk(2))
    p, q, labels = first.log_softmax(-1), second.log_softmax(-1), batch["labels"][known]
    apart = F.kl_div(p, q, log_target=True, reduction="sum") + F.kl_div(q, p, log_target=True, reduction="sum")
    both = (F.cross_entropy(first, labels) + F.cross_entropy(second, labels)) / 2
    assert count == 4
    assert apart > 1e-3
    torch.testing.assert_close(value, both + 2.0 / 4 * apart / 4)


def test_classifier_consistency_needs_training_and_dropout(make_classifier):
    model, batch = make_classifier(0.3)
    assert torch.equal(model.eval().loss(batch, consistency=5.0)[0], model.loss(batch)[0])
    model, batch = make_classifier(0.0)
    torch.testing.assert_close(model.train().loss(batch, consistency=5.0)[0], model.loss(batch)[0])


def test_language_model_loss_covers_both_passes():
    torch.manual_seed(0)
    model = FineTunedPairConfig(backbone=GPTConfig(dropout=0.0, **SHAPE), dropout=0.0).build(11, 3, outputs=11).double()
    batch = texts()
    alone, both = (model.train().loss(batch, consistency=alpha, language_model=0.5)[0] for alpha in (0.0, 3.0))
    torch.testing.assert_close(both, alone)
