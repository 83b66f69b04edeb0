"""The classifier with every encoder and pooling: padding, order, losses, training and influence."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import build, to_mapping
from seqloom.core.errors import UsageError
from seqloom.models.classifier import ClassifierConfig, TextClassifier, label_loss

V, L, C = 12, 3, 7
RECURRENT = {"kind": "recurrent", "hidden": 12}
KINDS: dict[str, dict[str, Any]] = {
    "one-hot": {"encoder": {"kind": "bag", "weights": "one-hot"}},
    "counts": {"encoder": {"kind": "bag", "weights": "counts"}},
    "tf-idf": {"encoder": {"kind": "bag", "weights": "tf-idf"}},
    "mean": {"encoder": {"kind": "bag", "weights": "mean"}, "characters": {"kind": "rnn", "hidden": 4}},
    "recurrent-last": {"encoder": RECURRENT, "pooling": "last"},
    "recurrent-one-way": {"encoder": {**RECURRENT, "bidirectional": False}, "pooling": "last"},
    "recurrent-attention": {"encoder": {**RECURRENT, "cell": "gru", "layers": 2}, "pooling": "attention"},
    "convolution-max": {
        "encoder": {"kind": "convolution", "widths": [2, 3], "filters": 8},
        "pooling": "max",
        "characters": {"kind": "cnn", "filters": 6},
    },
    "transformer-mean": {"encoder": {"kind": "transformer", "d_model": 16, "heads": 2, "dropout": 0.0}},
}
LENGTHS = (5, 2, 0, 4)


def config_of(**options: Any) -> ClassifierConfig:
    return build(ClassifierConfig, {"embedding": 16, **options})


def classifier(**options: Any) -> TextClassifier:
    torch.manual_seed(0)
    return config_of(**options).build(V, L, C if options.get("characters") else 0).double().eval()


@pytest.fixture(params=KINDS)
def model(request) -> TextClassifier:
    return classifier(**KINDS[request.param])


def texts(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return {
        "tokens": torch.randint(V, mask.shape),
        "mask": mask,
        "labels": torch.tensor([position % L for position in range(len(lengths))]),
        "characters": torch.randint(1, C, (*mask.shape, 4)) * mask.unsqueeze(2),
    }


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_single_text_gives_the_same_result_as_in_a_padded_batch(model) -> None:
    batch = texts()
    logits = model(batch)
    assert logits.shape == (len(LENGTHS), L)
    for row, length in enumerate(LENGTHS):
        part = {name: value[row : row + 1] for name, value in batch.items()}
        alone = {name: value[:, : max(1, length)] if value.dim() > 1 else value for name, value in part.items()}
        torch.testing.assert_close(model(alone)[0], logits[row], atol=1e-10, rtol=0)
    wider = {**batch, "tokens": F.pad(batch["tokens"], (0, 3), value=5), "mask": F.pad(batch["mask"], (0, 3))}
    wider["characters"] = F.pad(batch["characters"], (0, 2, 0, 3))
    torch.testing.assert_close(model(wider), logits, atol=1e-10, rtol=0)


def test_padding_has_no_gradient_and_empty_text_yields_the_bias(model) -> None:
    batch = texts()
    batch["tokens"] = (
        batch["tokens"].masked_fill(~batch["mask"], 11).masked_fill(batch["mask"] & (batch["tokens"] == 11), 3)
    )
    logits = model(batch)
    torch.testing.assert_close(logits[2], model.output.bias)
    logits.square().sum().backward()
    gradient = model.lexicon.embed.weight.grad
    assert gradient is not None and not gradient[11].any() and gradient[batch["tokens"][0]].any(dim=1).all()


def test_only_a_bag_ignores_word_order() -> None:
    """ "Market falls into bear territory" and "bear falls into market territory" differ only in word order."""
    ids = {word: position for position, word in enumerate(["market", "falls", "into", "bear", "territory"])}
    two = ["market falls into bear territory", "bear falls into market territory"]
    batch = {"tokens": torch.tensor([[ids[word] for word in text.split()] for text in two])}
    batch["mask"] = torch.ones_like(batch["tokens"], dtype=torch.bool)
    for name, options in KINDS.items():
        if "characters" in options:
            continue
        try:
            first, second = classifier(**options)(batch)
        except pytest.skip.Exception:
            continue
        assert torch.allclose(first, second, atol=1e-12) == (options["encoder"]["kind"] == "bag"), name


def test_spelling_is_read_if_configured() -> None:
    for characters in ({"kind": "cnn"}, {"kind": "rnn"}):
        model, batch = classifier(characters=characters), texts()
        other = {**batch, "characters": batch["characters"].roll(1, dims=2) * batch["mask"].unsqueeze(2)}
        assert not torch.allclose(model(batch), model(other))
        with pytest.raises(ValueError, match="needs a batch with the characters of each word"):
            model({name: value for name, value in batch.items() if name != "characters"})
    with pytest.raises(ValueError, match="number of characters must be"):
        config_of(characters={"kind": "cnn"}).build(V, L)


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_loss_matches_torch_and_ignores_unseen_labels(model, weighted, smoothing) -> None:
    batch, weights = texts(), torch.tensor([0.5, 2.0, 3.0]).double() if weighted else None
    batch["labels"][1] = -1
    value, count = model.loss(batch, weights, smoothing)
    known = [0, 2, 3]
    expected = F.cross_entropy(model(batch)[known], batch["labels"][known], weights, label_smoothing=smoothing)
    torch.testing.assert_close(value, expected, atol=1e-10, rtol=0)
    assert count.item() == 3
    value, count = model.loss({**batch, "labels": torch.full((4,), -1)}, weights, smoothing)
    assert value.item() == 0 and count.item() == 0


def test_probabilities_match_the_loss(model) -> None:
    batch = texts()
    p = model.probabilities(batch)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(LENGTHS)).double())
    nats = -p.gather(1, batch["labels"].unsqueeze(1)).log().mean()
    torch.testing.assert_close(model.loss(batch)[0], nats, atol=1e-10, rtol=0)


def test_loss_has_at_least_single_precision(model) -> None:
    model, batch = model.float().train(), texts()
    expected = model.loss(batch)[0]
    with torch.autocast("cpu", torch.bfloat16):
        value, _ = model.loss(batch, torch.ones(L), 0.1)
        assert value.dtype == torch.float32 == model.probabilities(batch).dtype
        value = model.loss(batch)[0]
    value.backward()
    torch.testing.assert_close(value, expected, atol=0.05, rtol=0)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.bfloat16().loss(batch)[0].dtype == torch.float32 == model.probabilities(batch).dtype


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_needs_no_device_synchronization(model, smoothing) -> None:
    """Tensors on the meta device have no values, so that any synchronization raises an error, also in backward."""
    meta_model = model.float().train().to("meta")
    batch = {name: value.to("meta") for name, value in texts().items()}
    value, count = meta_model.loss(batch, torch.ones(L, device="meta"), smoothing)
    value.backward()
    assert value.shape == count.shape == ()
    with pytest.raises(RuntimeError):  # negative control
        value.item()


# --- training ---------------------------------------------------------------------------------------------------------


def label_puzzle(order: bool) -> dict[str, Tensor]:
    """Return texts. The label is the word that a text contains or, with `order`, the order of its words."""
    torch.manual_seed(3)
    tokens, labels = torch.randint(4, V, (18, 6)), torch.arange(18) % L
    for row, label in enumerate(labels.tolist()):
        a, b = sorted(torch.randperm(6)[:2].tolist())
        words = [(1, 2), (2, 1), (1, 1)][label] if order else (label + 1, label + 1)
        tokens[row, a], tokens[row, b] = words
    characters = tokens.unsqueeze(2).expand(-1, -1, 3) % (C - 1) + 1
    return {
        "tokens": tokens,
        "mask": torch.ones_like(tokens, dtype=torch.bool),
        "labels": labels,
        "characters": characters,
    }


def test_small_dataset_is_memorized(model) -> None:
    batch = label_puzzle(order=model.bag is None)
    model.float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        value, _ = model.loss(batch)
        value.backward()
        optimizer.step()
        if value.item() < 0.02:
            break
    model.eval()
    assert torch.equal(model(batch).argmax(dim=1), batch["labels"])
    assert model.loss(batch)[0].item() < 0.1


def test_every_parameter_has_a_gradient(model) -> None:
    model.loss(texts())[0].backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert [name for name in still if ".cell.bias" not in name] == []


# --- influence --------------------------------------------------------------------------------------------------------


def test_attention_weights_are_returned_if_present(model) -> None:
    batch = texts()
    weights = model.attention(batch)
    if model.config.pooling != "attention":
        assert weights is None
        return
    assert weights is not None and not weights[~batch["mask"]].any()
    torch.testing.assert_close(weights.sum(dim=1), batch["mask"].any(dim=1).double())


def test_influence_is_gradient_times_input(model) -> None:
    """The logits of a bag are sums over words, so x ∂logit/∂x is exactly the contribution of each word."""
    batch = texts()
    labels = torch.tensor([0, 2, 1, 1])
    result, default = model.influence(batch, labels), model.influence(batch)
    assert result.shape == batch["mask"].shape and not result[~batch["mask"]].any()
    torch.testing.assert_close(default, model.influence(batch, model(batch).argmax(dim=1)))
    if model.bag is not None:
        logits = model(batch).gather(1, labels.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(result.sum(dim=1) + model.output.bias[labels], logits, atol=1e-10, rtol=0)
    with torch.no_grad():
        assert torch.equal(model.influence(batch, labels), result)
    assert all(parameter.grad is None for parameter in model.parameters())


# --- tf–idf, vectors, settings ----------------------------------------------------------------------------------------


def test_tf_idf_uses_document_counts() -> None:
    model, batch = classifier(encoder={"kind": "bag", "weights": "tf-idf"}), texts()
    before = model(batch)
    model.set_documents(torch.arange(V), 20)
    assert not torch.allclose(model(batch), before)
    again = classifier(encoder={"kind": "bag", "weights": "tf-idf"})
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(batch), model(batch))
    classifier().set_documents(torch.arange(V), 20)  # other encoders ignore this call


@pytest.mark.parametrize("frozen", [False, True])
def test_word_vectors_initialize_the_embeddings(frozen) -> None:
    model = classifier(vectors={"file": "x.txt", "frozen": frozen})
    rows, result = torch.randn(V, 16), torch.arange(V) % 2 == 0
    before = model.lexicon.embed.weight.detach().clone()
    model.lexicon.set_vectors(rows, result)
    weight = model.lexicon.embed.weight
    assert torch.equal(weight[result], rows[result].double()) and torch.equal(weight[~result], before[~result])
    model.loss(texts())[0].backward()
    assert weight.requires_grad != frozen and (weight.grad is None) == frozen
    with pytest.raises(ValueError, match=r"\(12, 16\); got \(12, 5\)"):
        model.lexicon.set_vectors(rows[:, :5], result)


def test_dropout_is_active_only_in_training() -> None:
    for options in ({"dropout": 0.5}, {"embedding_dropout": 0.5}):
        model, batch = classifier(**options), texts()
        assert torch.equal(model(batch), model(batch))
        model.train()
        assert not torch.equal(model(batch), model(batch))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"embedding": 0, "dropout": 1.0}, "embedding: must be at least 1"),
        ({"embedding": 0, "dropout": 1.0}, "dropout: must be less than 1"),
        ({"encoder": {"kind": "bag"}, "pooling": "max", "embedding_dropout": -1.0}, "an encoder other than bag"),
        (
            {"encoder": {"kind": "bag"}, "pooling": "max", "embedding_dropout": -1.0},
            "embedding_dropout: must be at least 0",
        ),
        ({"encoder": {"kind": "bags"}}, "did you mean bag"),
        ({"encoder": {"kind": "recurrent", "hiden": 3}}, r"encoder\.hiden.*hidden"),
        ({"characters": {"kind": "cnn", "hidden": 3}}, r"characters\.hidden"),
        ({"pooling": "average"}, "pooling"),
        ({"vectors": {}}, r"vectors\.file"),
    ],
)
def test_invalid_settings_are_rejected(options, words) -> None:
    with pytest.raises(UsageError, match=words):
        config_of(**options)


def test_every_config_survives_a_recipe_round_trip() -> None:
    for options in KINDS.values():
        try:
            config = config_of(**options)
        except pytest.skip.Exception:
            continue
        assert build(ClassifierConfig, to_mapping(config)) == config
        assert config.longest is None


def test_model_can_be_built_on_the_meta_device(model) -> None:
    with torch.device("meta"):
        built: nn.Module = model.config.build(V, L, C)
    count = [sum(p.numel() for p in other.parameters()) for other in (built, model)]
    assert count[0] == count[1]


# --- multi-label ------------------------------------------------------------------------------------------------------


def test_multi_label_loss_is_binary_cross_entropy() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 0, 1], [0, 0, 0], [-100] * 3, [1, 1, 1], [0, 1, 0]], dtype=torch.int8)
    weights, epsilon = torch.tensor([2.0, 1.0, 0.25], dtype=torch.float64), 0.2
    value, count = label_loss(logits, labels, weights, epsilon)
    total = torch.zeros((), dtype=torch.float64)
    for row in (0, 1, 3, 4):  # the third is padding
        for k in range(3):
            y, p = (1 - epsilon) * float(labels[row, k]) + epsilon / 2, logits[row, k].sigmoid()
            total = total - (weights[k] * y * p.log() + (1 - y) * (1 - p).log()) / 3
    assert count == 4 and value.item() == pytest.approx(total.item() / 4, abs=1e-12)
    (gradient,) = torch.autograd.grad(value, logits)
    assert (gradient[2] == 0).all() and (gradient[[0, 1, 3, 4]] != 0).all()
    plain, _ = label_loss(logits[:2], labels[:2])
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits[:2], labels[:2].double())
    assert plain.item() == pytest.approx(expected.item(), abs=1e-12)


def test_multi_label_probabilities_are_independent() -> None:
    """The probabilities are sigmoids of the logits divided by the temperature. A single-label model uses a softmax."""
    torch.manual_seed(0)
    batch = {"tokens": torch.tensor([[3, 4, 0]]), "mask": torch.ones(1, 3, dtype=torch.bool)}
    for several in (0, 1):
        model = ClassifierConfig(embedding=4).build(6, labels=3, multi_label=several).eval()
        model.temperature = 2.0
        logits = model(batch) / 2
        expected = logits.sigmoid() if several else logits.softmax(dim=1)
        assert torch.allclose(model.probabilities(batch), expected)
        assert torch.allclose(model.log_probs(batch), expected.log(), atol=1e-6)
