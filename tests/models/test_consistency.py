"""Two readings of every pair, or text, under two dropouts, which shall agree."""

import pytest
import torch
import torch.nn.functional as F
from tests.models.small_seq2seq import some_batch
from tests.models.small_transformer import transformer

from seqloom.models.classifier import ClassifierConfig
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig

MODELS = {
    "transformer": lambda dropout: transformer(dropout=dropout),
    "recurrent": lambda dropout: RecurrentSeq2SeqConfig(hidden=8, dropout=dropout).build(11).double(),
    "whole sentences": lambda dropout: (
        RecurrentSeq2SeqConfig(hidden=8, dropout=dropout, variational=True).build(11).double()
    ),
}


@pytest.fixture(params=MODELS)
def make(request):
    torch.manual_seed(0)
    return MODELS[request.param]


def logits_of_two_readings(model, batch):
    """What `loss` saw, made again with the same draws: (2, real targets, V)."""
    seen = []
    keep = model.output.register_forward_hook(lambda _, __, made: seen.append(made))
    torch.manual_seed(5)
    model.loss(batch, consistency=1.0)
    keep.remove()
    return seen[0].detach().view(2, -1, seen[0].shape[-1])


def test_the_loss_is_the_mean_of_both_and_what_they_disagree(make):
    model, batch = make(0.3).train(), some_batch()
    targets = batch["targets"][batch["target_mask"]]
    first, second = logits_of_two_readings(model, batch)
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    apart = F.kl_div(p, q, log_target=True, reduction="sum") + F.kl_div(q, p, log_target=True, reduction="sum")
    both = (F.cross_entropy(first, targets) + F.cross_entropy(second, targets)) / 2
    torch.manual_seed(5)
    value, count = model.loss(batch, consistency=2.0)
    assert count == len(targets)
    assert apart > 1e-3  # the two dropouts differ
    torch.testing.assert_close(value, both + 2.0 / 4 * apart / len(targets))


def test_both_readings_are_made_of_one_set_of_logits(make):
    model, batch, seen = make(0.3).train(), some_batch(), []
    model.output.register_forward_hook(lambda _, __, made: seen.append(len(made)))
    model.loss(batch, 0.1, consistency=1.0)
    assert seen == [2 * int(batch["target_mask"].sum())]


def test_without_dropout_two_readings_are_one(make):
    model, batch = make(0.0).train(), some_batch()
    torch.testing.assert_close(model.loss(batch, 0.1, consistency=5.0)[0], model.loss(batch, 0.1)[0])


def test_in_evaluation_every_pair_is_read_once(make):
    model, batch = make(0.3).eval(), some_batch()
    assert torch.equal(model.loss(batch, consistency=5.0)[0], model.loss(batch)[0])


def classifier_and_texts(dropout):
    """A classifier of three labels and five texts, of which one has a label that training never saw."""
    torch.manual_seed(0)
    model = ClassifierConfig(embedding=6, dropout=dropout).build(11, 3).double()
    tokens = torch.randint(11, (5, 4))
    mask = torch.arange(4) < torch.tensor([4, 3, 4, 2, 4]).unsqueeze(1)
    return model, {"tokens": tokens, "mask": mask, "labels": torch.tensor([0, 2, -1, 1, 2]), "read": 17}


def test_two_readings_of_a_text_agree_too():
    model, batch = classifier_and_texts(0.3)
    model.train()
    seen = []
    keep = model.output.register_forward_hook(lambda _, __, made: seen.append(made))
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


def test_a_text_is_read_once_in_evaluation_and_twice_is_once_without_dropout():
    model, batch = classifier_and_texts(0.3)
    assert torch.equal(model.eval().loss(batch, consistency=5.0)[0], model.loss(batch)[0])
    model, batch = classifier_and_texts(0.0)
    torch.testing.assert_close(model.train().loss(batch, consistency=5.0)[0], model.loss(batch)[0])
