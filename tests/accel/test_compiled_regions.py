"""Compiled regions: equality with eager mode, and number of compilations."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from seqloom.accel.training.compiled_regions import RegionCompiler
from seqloom.config import build
from seqloom.core.operations import compile_regions, compiled_region
from seqloom.models.gpt import GPTConfig
from seqloom.models.transformer import TransformerConfig

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler raises this warning
COMPILER = RegionCompiler(dynamic=True, backend="aot_eager")  # traces like inductor, computes eagerly


def pairs(batch: int, source: int, target: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch)
    tokens = torch.randint(1, 40, (batch, source + 2 * target), generator=generator)
    lengths = torch.arange(batch).unsqueeze(1)
    return {
        "source": tokens[:, :source],
        "source_mask": torch.arange(source) < source - lengths,
        "inputs": tokens[:, source : source + target],
        "targets": tokens[:, source + target :],
        "target_mask": torch.arange(target) < target - lengths,
    }


def gradients(model, value):
    return torch.autograd.grad(value, list(model.parameters()))


def test_stack_is_compiled_once_for_all_blocks_and_shapes():
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = TransformerConfig(d_model=16, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0).build(40)
    for shape in ((3, 18, 20), (4, 21, 19), (2, 30, 33)):
        batch = pairs(*shape)
        plain = model.loss(batch, 0.1)[0]
        with compile_regions(COMPILER):
            compiled = model.loss(batch, 0.1)[0]
        torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-5)
        for actual, expected in zip(gradients(model, compiled), gradients(model, plain), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert 0 < counters["stats"]["unique_graphs"] <= 3  # encoder block, decoder block and, on a GPU, loss
    assert not counters["graph_break"]


def test_compiled_gpt_matches_eager_gpt():
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    options = {
        "d_model": 16,
        "heads": 2,
        "layers": 4,
        "dropout": 0.0,
        "positions": {"kind": "learned", "max_length": 40},
    }
    model = build(GPTConfig, options).build(40)
    tokens = torch.randint(1, 40, (3, 33))
    plain = model.loss(tokens[:, :-1], tokens[:, 1:])[0]
    with compile_regions(RegionCompiler(backend="aot_eager")):
        compiled = model.loss(tokens[:, :-1], tokens[:, 1:])[0]
    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-5)
    assert 0 < counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_compilation_is_skipped_without_a_compiler():
    torch._dynamo.reset()
    counters.clear()
    seen = []

    @compiled_region
    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    with compile_regions(None):
        assert twice(torch.ones(3)).tolist() == [2, 2, 2]
    assert seen == [False]
    assert not counters["stats"]
