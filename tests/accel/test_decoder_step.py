"""Fused decoder steps equal steps through the blocks, and packed layers follow changes of their weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from seqloom import accel
from seqloom.accel.decoding import decoder_gpu, decoder_step, packed
from seqloom.accel.decoding.decoder_step import is_supported_decoder
from seqloom.accel.decoding.packed import PackedWeights, cached_by_weights, packed_layer
from seqloom.core.protocols import DecodeState, select
from seqloom.exchange.start_tokens import StartTokenConfig
from seqloom.models.transformer import Transformer
from seqloom.nn.positions import PositionsConfig
from seqloom.train.state import count_step

V, PLAIN = 37, StartTokenConfig(d_model=24, heads=3, encoder_layers=1, decoder_layers=2, dropout=0.3)
KINDS = {
    "plain": PLAIN,
    "norm-first": replace(PLAIN, norm_first=True, activation="gelu"),
    "rms": replace(PLAIN, norm="rms", activation="gelu-tanh", bias=False),
    "bare": replace(PLAIN, norm="none", residual=False, scale=False),
    "begun": replace(PLAIN, source_bos=3, target_bos=4, bos=5, align_layer=1),
}


def build_model(config: StartTokenConfig) -> Transformer:
    torch.manual_seed(0)
    model = config.build(V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def run_steps(model: Any, k: int = 3, count: int = 9) -> list[Tensor]:
    """Return the log-probabilities and attention of steps with k hypotheses, reordered after every step."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, V, (4, 6), generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [0]])  # the last source is empty
    output = model.step(torch.zeros(4, 1, dtype=torch.long), model.start({"tokens": tokens, "mask": mask}))
    state = select(output.state, torch.arange(4).repeat_interleave(k), torch.arange(4))
    results = []
    for _ in range(count):
        output = model.step(torch.randint(1, V, (4 * k, 1), generator=generator), state)
        results += [output.log_probs, output.attention]
        rows = torch.arange(4).repeat_interleave(k) * k + torch.randint(k, (4 * k,), generator=generator)
        state = DecodeState(select(output.state, rows, torch.arange(4)).hidden, output.state.memory)
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_fused_step_matches_unfused_blocks(kind: str) -> None:
    model = build_model(KINDS[kind])
    with torch.no_grad():
        assert is_supported_decoder(model.decoder)
        fast = run_steps(model)
        with accel.disabled():
            plain = run_steps(model)
    for actual, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        replace(PLAIN, positions=PositionsConfig(kind="rotary")),
        replace(PLAIN, kv_heads=1),
        replace(PLAIN, activation="swiglu"),
    ],
    ids=["rotary", "grouped", "gated"],
)
def test_unsupported_decoders_use_unfused_blocks(config: StartTokenConfig) -> None:
    with torch.no_grad():
        assert not is_supported_decoder(build_model(config).decoder)


def test_training_uses_unfused_blocks() -> None:
    model = build_model(PLAIN)
    assert not is_supported_decoder(model.decoder)
    with torch.no_grad():
        assert not is_supported_decoder(model.train().decoder)


def test_changed_weights_are_detected() -> None:
    model = build_model(PLAIN)
    with torch.no_grad():
        before = run_steps(model)[0]
        for parameter in model.decoder[1].parameters():
            parameter.mul_(1.5)
        model.output.bias.add_(torch.arange(V))
        after, fresh = run_steps(model)[0], build_model(PLAIN)
        fresh.load_state_dict(model.state_dict())
        assert not torch.allclose(before, after, atol=1e-3)
        torch.testing.assert_close(after, run_steps(fresh)[0])


def replace_bias(model: Any) -> None:
    model.output.bias = nn.Parameter(torch.randn(V))


def replace_weight(model: Any) -> None:
    layer = model.decoder[1].feed_forward.up
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def replace_blocks(model: Any) -> None:
    for _ in range(2):
        model.decoder[1] = model.config.block(cross_attention=True).eval()


def remove_blocks(model: Any) -> None:
    del model.decoder[1:]


def add_block(model: Any) -> None:
    model.decoder.append(model.config.block(cross_attention=True).eval())


@torch.no_grad()
@pytest.mark.parametrize("change", [replace_bias, replace_weight, replace_blocks, remove_blocks, add_block])
def test_replaced_weights_are_detected(change: Callable[[Any], None]) -> None:
    config = replace(PLAIN, align_layer=1)
    model = build_model(config)
    for _ in range(2):
        run_steps(model, count=1)
        change(model)
        fresh = replace(config, decoder_layers=len(model.decoder)).build(V).eval()
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(run_steps(model, count=1)[0], run_steps(fresh, count=1)[0])


def test_addresses_of_cached_weights_are_not_reused() -> None:
    """A reused address would look like unchanged weights."""
    layer = nn.Linear(64, 64)
    address, cached = layer.weight.data_ptr(), cached_by_weights([layer], object)
    layer.weight.data = layer.weight.data * 2
    others = [torch.empty(64, 64) for _ in range(100)]
    assert address not in map(Tensor.data_ptr, others)
    assert cached_by_weights([layer], object) is not cached


@torch.no_grad()
def test_parametrized_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each access to `q.weight` returns a new tensor."""

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model, reference = build_model(PLAIN), build_model(PLAIN)
    calls: list[Any] = []
    monkeypatch.setattr(decoder_step.DecoderStep, "__init__", count_calls(decoder_step.DecoderStep.__init__, calls))
    q, reference_q = (cast(Any, each_model.decoder[0].self_attention).q for each_model in (model, reference))
    parametrize.register_parametrization(q, "weight", Doubled())
    reference_q.weight.mul_(2)
    q.parametrizations.weight.original.copy_(reference_q.weight / 2)
    results = run_steps(model)
    assert len(calls) == 1
    torch.testing.assert_close(results[0], run_steps(reference)[0])
    q.parametrizations.weight.original.mul_(3)
    reference_q.weight.mul_(3)
    torch.testing.assert_close(run_steps(model)[0], run_steps(reference)[0])


def count_calls(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def wrapper(*arguments: Any) -> Any:
        calls.append(arguments)
        return function(*arguments)

    return wrapper


def test_model_built_in_inference_mode_gives_the_same_results() -> None:
    with torch.inference_mode():
        model = build_model(PLAIN)
        results = run_steps(model, count=2)
    fresh = build_model(PLAIN)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(results[0], run_steps(fresh, count=2)[0])


@pytest.mark.parametrize("fused", [True, False])
def test_optimizer_step_is_detected(fused: bool) -> None:
    """Fused optimizers of torch do not update the version counters of weights."""
    model, fresh = build_model(PLAIN), build_model(PLAIN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    if fused:
        optimizer.register_step_post_hook(count_step)  # as `TrainState` does
    with torch.no_grad():
        before = run_steps(model)[0]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad():
        fresh.load_state_dict(model.state_dict())
        after = run_steps(model)[0]
        assert not torch.allclose(before, after, atol=1e-3)
        torch.testing.assert_close(after, run_steps(fresh)[0])


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu-tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("min_products", [0, packed.MIN_ONEDNN_PRODUCTS])
def test_packed_layer_matches_linear_layer(
    activation: str, bias: bool, min_products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MIN_ONEDNN_PRODUCTS", min_products)
    torch.manual_seed(0)
    layer, x, addend = nn.Linear(19, 33, bias=bias), torch.randn(7, 19), torch.randn(7, 33)
    activate = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh")}.get(
        activation, nn.Identity()
    )
    with torch.no_grad():
        expected = activate(layer(x))
        torch.testing.assert_close(PackedWeights.of(layer, activation)(x), expected)
        if activation == "none":
            torch.testing.assert_close(PackedWeights.of(layer)(x, addend), expected + addend)
        double = PackedWeights.of(layer.double(), activation)
        assert double.packed is None  # oneDNN packs only float32
        torch.testing.assert_close(double(x.double()), expected.double(), rtol=1e-4, atol=1e-5)


def test_layer_is_packed_once_per_weights() -> None:
    layer = nn.Linear(5, 4)
    packed = packed_layer(layer)
    assert packed_layer(layer) is packed
    with torch.no_grad():
        layer.bias.add_(1)
    assert packed_layer(layer) is not packed
    layer.weight = nn.Parameter(torch.zeros(4, 5))
    with torch.no_grad():
        torch.testing.assert_close(packed_layer(layer)(torch.ones(1, 5)), layer(torch.ones(1, 5)))


@pytest.mark.parametrize("rows", [1, 300])
def test_best_tokens_match_top_k(rows: int) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 9001), torch.randn(rows, 8)
    with torch.no_grad():
        packed = packed_layer(layer)
        log_probs = packed.log_softmax(x)
        torch.testing.assert_close(log_probs, layer(x).log_softmax(-1))
        values, ids = packed.best_tokens(x, 4)
        torch.testing.assert_close(log_probs.gather(1, ids), values, rtol=0, atol=2e-6)
        assert torch.equal(ids, log_probs.topk(4).indices.sort().values)
        assert torch.equal(packed.rank_tokens(x, 4)[1].sort(dim=1).values, ids)


def test_sum_of_split_tf32_parts_is_exact() -> None:
    weight = torch.randn(100, 100) * 10.0 ** torch.randint(-20, 20, (100, 100))
    high, low = decoder_gpu.split_tf32(weight)
    assert torch.equal(high + low, weight)
    assert bool(((high.view(torch.int32) & 0x1FFF) == 0).all())  # values have at most 11 bits
    assert bool((low.abs() <= weight.abs() * 2.0**-11).all())
