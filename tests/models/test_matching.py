"""Models of pairs, choices and answers: equations, invariance to padding and order, and training."""

from typing import Any

import numpy as np
import pytest
import torch

from seqloom.core.memory import measure_peak
from seqloom.core.tokens import Specials
from seqloom.data.collate import RowBatches
from seqloom.data.text_inputs import RowReader, TextFrame
from seqloom.models.backbones import backbone_class
from seqloom.models.bert import BERTConfig
from seqloom.models.fine_tuned import (
    FineTunedAnswerConfig,
    FineTunedChoiceConfig,
    FineTunedPairConfig,
    mean_and_deviation,
)
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig
from seqloom.text import WordsConfig, train_tokenizer

TOKENIZER = train_tokenizer(WordsConfig(), ["a b c d e f g h"])
V = len(TOKENIZER)
SHAPE: dict[str, Any] = {"d_model": 12, "heads": 2, "layers": 2, "dropout": 0.0}
BACKBONES: dict[str, Any] = {
    "bert": BERTConfig(norm_first=True, init=0.1, **SHAPE),
    "gpt": GPTConfig(**SHAPE),
    "recurrent-lm": RecurrentLMConfig(cell="gru", hidden=12),
}
PAIRS = [("a b", "c"), ("c", "a b"), ("d e f", "d"), ("a", "g h a b")]
CHOICES = [("a b", ["c", "d e"]), ("c", ["a", "b", "f g h"]), ("d", ["e f", "g"])]


def reader(backbone: Any) -> RowReader:
    return RowReader(TOKENIZER, TextFrame(Specials.after(V), backbone_class(backbone).form), None)


def pairs(backbone: Any, both: bool = False, **values: Any) -> RowBatches:
    return RowBatches([reader(backbone).pair(*pair, both) for pair in PAIRS], tokens=1, values=values)


def choices(backbone: Any) -> RowBatches:
    return RowBatches([reader(backbone).choice(*choice) for choice in CHOICES], tokens=1, values={"answers": [1, 2, 0]})


def questions(backbone: Any) -> RowBatches:
    asked = [("a", "b c d e"), ("b c", "f g"), ("h", "a b c d e f")]
    windows = [w for n, (q, c) in enumerate(asked) for w in reader(backbone).windows(n, q, c, 64, None)]
    spans = [(1, 2), None, (0, 0)]
    starts, ends = zip(*(w.targets(spans[w.number]) for w in windows), strict=True)
    values = {"starts": starts, "ends": ends, "cls_positions": [w.row.cls_position for w in windows]}
    return RowBatches([w.rows() for w in windows], tokens=1, values=values)


def full_batch(batches: RowBatches) -> dict[str, torch.Tensor]:
    tree: dict[str, torch.Tensor] = batches.collate(np.arange(len(batches)))
    return tree


def double(model: Any) -> Any:
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Any:
    return BACKBONES[request.param]


# --- equations ----------------------------------------------------------------------------------------------------


def test_pair_vector_is_the_sum_of_its_rows(backbone: Any) -> None:
    model = double(FineTunedPairConfig(backbone=backbone).build(V, labels=3))
    batch = full_batch(pairs(backbone, both=True))
    rows = [
        {name: batch[name][:, r : r + 1] for name in ("tokens", "mask", "segments")}
        for r in range(batch["mask"].shape[1])
    ]
    bias = model.output.bias
    assert torch.allclose(model(batch), sum(model(row) - bias for row in rows) + bias, atol=1e-10)
    assert torch.allclose(model.probabilities(batch).sum(dim=1), torch.ones(4, dtype=torch.float64))


def test_both_orders_make_the_pair_symmetric(backbone: Any) -> None:
    model = double(FineTunedPairConfig(backbone=backbone).build(V, labels=2))
    both, single = model(full_batch(pairs(backbone, both=True))), model(full_batch(pairs(backbone)))
    assert torch.allclose(both[0], both[1], atol=1e-10)
    # Negative control: with a single order, the results differ
    assert not torch.allclose(single[0], single[1], atol=1e-3)


def test_scores_start_at_the_mean_and_are_standardized(backbone: Any) -> None:
    scores = [0.0, 2.0, 3.0, 5.0]
    model = double(FineTunedPairConfig(backbone=backbone).build(V, scores=1))
    model.set_score_scale(*mean_and_deviation(scores))
    assert (float(model.center), float(model.scale)) == pytest.approx((2.5, np.std(scores)))
    batch = full_batch(pairs(backbone, scores=scores))
    result = model(batch)
    assert result.shape == (4,)
    c = model.pool_rows(model.read(batch), batch).sum(dim=1)
    expected = 2.5 + np.std(scores) * model.output(c).squeeze(1)
    assert torch.allclose(result, expected, atol=1e-6)
    value, count = model.loss(batch)
    assert count == 4
    assert value.item() == pytest.approx(((result - batch["scores"]) ** 2).mean().item() / np.var(scores), rel=1e-5)
    with torch.no_grad():
        model.output.weight.zero_(), model.output.bias.zero_()
    assert model(batch).tolist() == pytest.approx([2.5] * 4)
    assert model.loss(batch)[0].item() == pytest.approx(1.0, rel=1e-5)  # the variance divided by itself


def test_equal_scores_have_scale_one() -> None:
    assert mean_and_deviation([3.0, 3.0]) == (3.0, 1.0)


def test_probability_of_a_choice_is_a_softmax_over_its_options(backbone: Any) -> None:
    model = double(FineTunedChoiceConfig(backbone=backbone).build(V))
    batch = full_batch(choices(backbone))
    logits, p = model(batch), model.probabilities(batch)
    assert logits.shape == (3, 3) and torch.isinf(logits[0, 2]) and torch.isinf(logits[2, 2])
    assert torch.allclose(p.sum(dim=1), torch.ones(3, dtype=torch.float64)) and p[0, 2] == 0
    value, count = model.loss(batch)
    right = p[torch.arange(3), torch.tensor([1, 2, 0])].log().mean()
    assert count == 3 and value.item() == pytest.approx(-right.item(), abs=1e-9)
    alone = choices(backbone)
    for position in range(3):  # the loss does not depend on the other examples
        example = alone.collate(np.array([position]))
        assert torch.allclose(model(example)[0], logits[position], atol=1e-9)


def test_probability_of_an_answer_is_a_softmax_over_context_and_cls(backbone: Any) -> None:
    model = double(FineTunedAnswerConfig(backbone=backbone).build(V))
    batch = full_batch(questions(backbone))
    first, last = model(batch)
    positions = batch["answerable"].flatten(0, 1)
    for result in (first, last):
        assert torch.equal(torch.isfinite(result), positions)
        assert torch.allclose(result.exp().sum(dim=1), torch.ones(3, dtype=torch.float64))
    outputs = [first[n, batch["starts"][n]] + last[n, batch["ends"][n]] for n in range(3)]
    value, count = model.loss(batch)
    assert count == 3 and value.item() == pytest.approx(-sum(outputs).item() / 6, abs=1e-9)


def test_best_spans_match_exhaustive_search(backbone: Any) -> None:
    model = double(FineTunedAnswerConfig(backbone=backbone).build(V))
    batch = full_batch(questions(backbone))
    first, last = model(batch)
    result = model.best_spans(batch, max_length=2, count=4)
    for n in range(3):
        summary = int(batch["cls_positions"][n])
        positions = [j for j in batch["answerable"][n, 0].nonzero().flatten().tolist() if j != summary]
        by_hand = sorted(
            (((first[n, i] + last[n, j]).item(), i, j) for i in positions for j in positions if i <= j < i + 2),
            reverse=True,
        )[:4]
        rows = zip(result.log_probs[n].tolist(), result.first[n].tolist(), result.last[n].tolist(), strict=True)
        finite = [row for row in rows if row[0] > -np.inf]
        assert [row[1:] for row in finite] == [row[1:] for row in by_hand]
        assert [row[0] for row in finite] == pytest.approx([row[0] for row in by_hand])
        assert float(result.absent[n]) == pytest.approx((first[n, summary] + last[n, summary]).item())
    assert result.losses is not None
    assert float(result.losses.mean()) == pytest.approx(model.loss(batch)[0].item(), abs=1e-9)


@pytest.mark.parametrize("longest", [1, 3, 99])
def test_spans_respect_the_maximum_length(longest: int) -> None:
    model, batch = (
        double(FineTunedAnswerConfig(backbone=BACKBONES["bert"]).build(V)),
        full_batch(questions(BACKBONES["bert"])),
    )
    result = model.best_spans(batch, longest, count=1000)
    context = batch["answerable"].sum(dim=(1, 2)) - 1  # number of positions without [CLS]
    real = result.log_probs > -np.inf
    for n, size in enumerate(context.tolist()):
        lengths = result.last[n][real[n]] - result.first[n][real[n]] + 1
        assert len(lengths) == sum(max(size - length + 1, 0) for length in range(1, longest + 1))
        assert int(lengths.max()) == min(longest, size) and int(lengths.min()) == 1


def test_span_search_memory_is_linear_in_the_row_length() -> None:
    """The search stores S × max_length spans and not S × S spans."""
    backbone, words = BACKBONES["recurrent-lm"], " ".join(["a b c d"] * 500)
    (window,) = reader(backbone).windows(0, "a", words, 64, None)
    batch = full_batch(RowBatches([window.rows()], tokens=1, values={"cls_positions": [window.row.cls_position]}))
    model = FineTunedAnswerConfig(backbone=backbone).build(V).eval()
    with measure_peak(torch.device("cpu"), ()) as peak:
        model.best_spans(batch, max_length=4)
    assert peak.bytes < 2_000_000  # 2,000 × 2,000 numbers would need 16 MB


# --- invariances --------------------------------------------------------------------------------------------------


PLAIN: dict[str, Any] = {"dropout": 0.0}
MODELS: dict[str, tuple[Any, Any]] = {
    "pair": (
        lambda b: FineTunedPairConfig(backbone=b, **PLAIN).build(V, labels=2),
        lambda b: pairs(b, labels=[0, 1, 1, 0]),
    ),
    "score": (
        lambda b: FineTunedPairConfig(backbone=b, **PLAIN).build(V, scores=1),
        lambda b: pairs(b, True, scores=[0.0, 0.0, 2.0, 3.0]),
    ),
    "choice": (lambda b: FineTunedChoiceConfig(backbone=b, **PLAIN).build(V), choices),
    "answer": (lambda b: FineTunedAnswerConfig(backbone=b, **PLAIN).build(V), questions),
}


@pytest.mark.parametrize("kind", MODELS)
def test_empty_rows_and_padding_have_no_effect(backbone: Any, kind: str) -> None:
    build, make = MODELS[kind]
    model, batches = double(build(backbone)), make(backbone)
    plain = full_batch(batches)
    N, width = len(batches), int(batches.lengths.max())
    wide = batches.collate(np.arange(N), (N + 2, width + 3, 0))
    first, second = model.loss(plain), model.loss(wide)
    assert int(first[1]) == int(second[1]) == N
    assert first[0].item() == pytest.approx(second[0].item(), abs=1e-9)
    gradients = []
    for value, _ in (first, second):
        model.zero_grad()
        value.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-8) for a, b in zip(*gradients, strict=True))
    assert all(torch.isfinite(g).all() for g in gradients[1])


@pytest.mark.parametrize("kind", MODELS)
def test_few_examples_are_memorized(backbone: Any, kind: str) -> None:
    build, make = MODELS[kind]
    torch.manual_seed(0)
    model, batch = build(backbone), full_batch(make(backbone))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.015)
    for _ in range(80):
        loss = model.loss(batch)[0]
        if loss.item() < 0.05:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    assert model.loss(batch)[0].item() < 0.15


@pytest.mark.parametrize("kind", MODELS)
def test_layer_groups_contain_every_parameter_once(backbone: Any, kind: str) -> None:
    model = MODELS[kind][0](backbone)
    groups = model.layer_groups()
    held = [id(parameter) for group in groups for parameter in group]
    assert sorted(held) == sorted(map(id, model.parameters()))
    assert {id(model.output.weight), id(model.output.bias)} <= {id(p) for p in groups[-1]}


def test_next_token_prediction_is_supported() -> None:
    backbone = BACKBONES["gpt"]
    model = double(FineTunedChoiceConfig(backbone=backbone).build(V, outputs=V))
    batch = full_batch(choices(backbone))
    plain, both = (model.loss(batch, language_model=fraction)[0].item() for fraction in (0.0, 0.5))
    tokens, mask = (batch[name].flatten(0, 1) for name in ("tokens", "mask"))
    language_model_loss = model.backbone.next_token_loss(model.read(batch), tokens, mask)
    assert both == pytest.approx(plain + 0.5 * language_model_loss.item(), abs=1e-9)


def test_invalid_dropout_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"dropout must be less than 1; got 1\.0"):
        FineTunedAnswerConfig(dropout=1.0)
    assert FineTunedPairConfig(backbone=BERTConfig(**SHAPE)).longest == BERTConfig(**SHAPE).longest
