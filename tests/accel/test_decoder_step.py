"""A step in few passes is a step through the blocks; packed layers are the layers, and follow their weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from seqloom import accel
from seqloom.accel.decoding import decoder_gpu, decoder_step, packed
from seqloom.accel.decoding.decoder_step import is_usual_decoder
from seqloom.accel.decoding.packed import PackedWeights, made_of, packed_once
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


def made(config: StartTokenConfig) -> Transformer:
    torch.manual_seed(0)
    model = config.build(V).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def steps(model: Any, k: int = 3, count: int = 9) -> list[Tensor]:
    """Log-probabilities and attention of steps of k hypotheses, moved about between them."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, V, (4, 6), generator=generator)
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [0]])  # of the last source, nothing is real
    output = model.step(torch.zeros(4, 1, dtype=torch.long), model.start({"tokens": tokens, "mask": mask}))
    state = select(output.state, torch.arange(4).repeat_interleave(k), torch.arange(4))
    found = []
    for _ in range(count):
        output = model.step(torch.randint(1, V, (4 * k, 1), generator=generator), state)
        found += [output.log_probs, output.attention]
        moved = torch.arange(4).repeat_interleave(k) * k + torch.randint(k, (4 * k,), generator=generator)
        state = DecodeState(select(output.state, moved, torch.arange(4)).hidden, output.state.memory)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_in_few_passes_is_a_step_through_the_blocks(kind: str) -> None:
    model = made(KINDS[kind])
    with torch.no_grad():
        assert is_usual_decoder(model.decoder)
        quick = steps(model)
        with accel.disabled():
            slow = steps(model)
    for one, other in zip(quick, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        replace(PLAIN, positions=PositionsConfig(kind="rotary")),
        replace(PLAIN, kv_heads=1),
        replace(PLAIN, activation="swiglu"),
    ],
    ids=["rotary", "grouped", "gated"],
)
def test_what_is_not_of_the_usual_kind_goes_through_the_blocks(config: StartTokenConfig) -> None:
    with torch.no_grad():
        assert not is_usual_decoder(made(config).decoder)


def test_training_and_gradients_go_through_the_blocks() -> None:
    model = made(PLAIN)
    assert not is_usual_decoder(model.decoder)
    with torch.no_grad():
        assert not is_usual_decoder(model.train().decoder)


def test_other_weights_are_seen() -> None:
    model = made(PLAIN)
    with torch.no_grad():
        before = steps(model)[0]
        for parameter in model.decoder[1].parameters():
            parameter.mul_(1.5)
        model.output.bias.add_(torch.arange(V))
        after, fresh = steps(model)[0], made(PLAIN)
        fresh.load_state_dict(model.state_dict())
        assert not torch.allclose(before, after, atol=1e-3)
        torch.testing.assert_close(after, steps(fresh)[0])


def replaced_bias(model: Any) -> None:
    model.output.bias = nn.Parameter(torch.randn(V))


def replaced_weight(model: Any) -> None:
    layer = model.decoder[1].feed_forward.up
    layer.weight = nn.Parameter(torch.randn_like(layer.weight))


def replaced_blocks(model: Any) -> None:
    for _ in range(2):
        model.decoder[1] = model.config.block(cross_attention=True).eval()


def fewer_blocks(model: Any) -> None:
    del model.decoder[1:]


def more_blocks(model: Any) -> None:
    model.decoder.append(model.config.block(cross_attention=True).eval())


@torch.no_grad()
@pytest.mark.parametrize("change", [replaced_bias, replaced_weight, replaced_blocks, fewer_blocks, more_blocks])
def test_weights_that_are_others_are_seen(change: Callable[[Any], None]) -> None:
    config = replace(PLAIN, align_layer=1)
    model = made(config)
    for _ in range(2):
        steps(model, count=1)
        change(model)
        fresh = replace(config, decoder_layers=len(model.decoder)).build(V).eval()
        fresh.load_state_dict(model.state_dict())
        torch.testing.assert_close(steps(model, count=1)[0], steps(fresh, count=1)[0])


def test_no_other_weights_come_to_lie_where_those_lay() -> None:
    """Or else they would be taken for them."""
    layer = nn.Linear(64, 64)
    at, made = layer.weight.data_ptr(), made_of([layer], object)
    layer.weight.data = layer.weight.data * 2
    others = [torch.empty(64, 64) for _ in range(100)]
    assert at not in map(Tensor.data_ptr, others)
    assert made_of([layer], object) is not made


@torch.no_grad()
def test_weights_from_a_function_of_others_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`q.weight` is another tensor whenever it is asked for."""

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    model, twin = made(PLAIN), made(PLAIN)
    making: list[Any] = []
    monkeypatch.setattr(decoder_step.DecoderStep, "__init__", counted(decoder_step.DecoderStep.__init__, making))
    q, twin_q = (cast(Any, one.decoder[0].self_attention).q for one in (model, twin))
    parametrize.register_parametrization(q, "weight", Twice())
    twin_q.weight.mul_(2)
    q.parametrizations.weight.original.copy_(twin_q.weight / 2)
    found = steps(model)
    assert len(making) == 1
    torch.testing.assert_close(found[0], steps(twin)[0])
    q.parametrizations.weight.original.mul_(3)
    twin_q.weight.mul_(3)
    torch.testing.assert_close(steps(model)[0], steps(twin)[0])


def counted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def counting(*given: Any) -> Any:
        calls.append(given)
        return function(*given)

    return counting


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = made(PLAIN)
        found = steps(model, count=2)
    fresh = made(PLAIN)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(found[0], steps(fresh, count=2)[0])


@pytest.mark.parametrize("fused", [True, False])
def test_what_an_optimizer_changed_is_seen(fused: bool) -> None:
    """torch's fused optimizers leave no trace in the versions of weights."""
    model, fresh = made(PLAIN), made(PLAIN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    if fused:
        optimizer.register_step_post_hook(count_step)  # as `TrainState` does
    with torch.no_grad():
        before = steps(model)[0]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with torch.no_grad():
        fresh.load_state_dict(model.state_dict())
        after = steps(model)[0]
        assert not torch.allclose(before, after, atol=1e-3)
        torch.testing.assert_close(after, steps(fresh)[0])


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu-tanh"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("worth", [0, packed.WORTH])
def test_packed_layers_are_the_layers(activation: str, bias: bool, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "WORTH", worth)
    torch.manual_seed(0)
    layer, x, plus = nn.Linear(19, 33, bias=bias), torch.randn(7, 19), torch.randn(7, 33)
    apply = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu-tanh": nn.GELU(approximate="tanh")}.get(
        activation, nn.Identity()
    )
    with torch.no_grad():
        wanted = apply(layer(x))
        torch.testing.assert_close(PackedWeights.of(layer, activation)(x), wanted)
        if activation == "none":
            torch.testing.assert_close(PackedWeights.of(layer)(x, plus), wanted + plus)
        double = PackedWeights.of(layer.double(), activation)
        assert double.laid is None  # nothing to gain
        torch.testing.assert_close(double(x.double()), wanted.double(), rtol=1e-4, atol=1e-5)


def test_a_layer_is_packed_once() -> None:
    layer = nn.Linear(5, 4)
    packed = packed_once(layer)
    assert packed_once(layer) is packed
    with torch.no_grad():
        layer.bias.add_(1)
    assert packed_once(layer) is not packed
    layer.weight = nn.Parameter(torch.zeros(4, 5))
    with torch.no_grad():
        torch.testing.assert_close(packed_once(layer)(torch.ones(1, 5)), layer(torch.ones(1, 5)))


@pytest.mark.parametrize("rows", [1, 300])
def test_the_best_are_those_of_all(rows: int) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 9001), torch.randn(rows, 8)
    with torch.no_grad():
        packed = packed_once(layer)
        whole = packed.log_softmax(x)
        torch.testing.assert_close(whole, layer(x).log_softmax(-1))
        values, ids = packed.best(x, 4)
        torch.testing.assert_close(whole.gather(1, ids), values, rtol=0, atol=2e-6)
        assert torch.equal(ids, whole.topk(4).indices.sort().values)
        assert torch.equal(packed.ranked(x, 4)[1].sort(dim=1).values, ids)


def test_the_parts_for_a_gpu_are_the_weights() -> None:
    weight = torch.randn(100, 100) * 10.0 ** torch.randint(-20, 20, (100, 100))
    large, small = decoder_gpu.parts(weight)
    assert torch.equal(large + small, weight)
    assert bool(((large.view(torch.int32) & 0x1FFF) == 0).all())  # 11 bits
    assert bool((small.abs() <= weight.abs() * 2.0**-11).all())
