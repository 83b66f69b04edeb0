"""Capture the inputs and outputs of modules while a model runs.

    with capture(model) as captured:
        model(batch)
    captured.output(model.encoder_norm)               the output of the last call for the first row of the batch
    captured.steps("decoder.layers.0.cell")[3].after["h"]      (B, H): the state after the fourth step

During capture, every operation runs with its reference implementation; a recurrent layer, for example, loops over its
cell. Captured tensors are not detached: with gradients enabled, a captured state is the tensor that the next step uses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seqloom.core.operations import definitions_only
from seqloom.core.progress import check_cancelled
from seqloom.nn.attention import MultiHeadAttention
from seqloom.nn.cells import Cell, State
from seqloom.nn.transformer import TransformerBlock
from seqloom.runs.run import Run
from seqloom.text import Tokenizer


class TrainedModel(Protocol):
    """The interface of the trained models that `seqloom.load` returns."""

    @property
    def run(self) -> Run: ...

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def model(self) -> Any: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def device(self) -> torch.device: ...

    def task(self) -> Any: ...


Source = TrainedModel | nn.Module  # views that need no text also accept a bare model


class Call(NamedTuple):
    """One call of a module."""

    inputs: tuple[Any, ...]
    output: Any


class CellStep(NamedTuple):
    """One step of a cell."""

    x: Tensor  # (B, D)
    before: State  # each tensor has the shape (B, H)
    after: State


class Captured:
    """The calls of all captured modules, in call order."""

    def __init__(self, model: nn.Module) -> None:
        self.names = dict(model.named_modules())
        self._calls: dict[nn.Module, list[Call]] = {}

    def add(self, module: nn.Module, inputs: tuple[object, ...], options: dict[str, object], output: object) -> None:
        check_cancelled()
        self._calls.setdefault(module, []).append(Call((*inputs, *options.values()), output))

    def calls(self, module: nn.Module) -> list[Call]:
        return self._calls.get(module, [])

    def input(self, module: nn.Module) -> Tensor:
        """Return the first argument of the last call, for the first row of the batch."""
        return self.calls(module)[-1].inputs[0][0]

    def output(self, module: nn.Module) -> Tensor:
        """Return the result of the last call, or the first of several results, for the first row of the batch."""
        result = self.calls(module)[-1].output
        return result[0][0] if isinstance(result, tuple) else result[0]

    def steps(self, name: str) -> list[CellStep]:
        """Return the steps of the cell that has this module name."""
        return [CellStep(call.inputs[0], call.inputs[1], call.output) for call in self.calls(self.names[name])]

    def shortcuts(self, name: str) -> dict[str, Tensor]:
        """Return the residual or highway values around a cell, each (T, H), for the first row; see `nn.recurrent`."""
        stack, _, layer = name.removesuffix(".cell").rpartition("layers.")
        connection = self.names.get(f"{stack}around.{layer}")
        if connection is None or not self.calls(connection):
            return {}
        return {value_name: value[0] for value_name, value in self.calls(connection)[-1].output.items()}


@contextmanager
def capture(model: nn.Module, *types: type[nn.Module]) -> Iterator[Captured]:
    """Capture the calls of all modules of the given types, by default of every module."""
    captured = Captured(model)
    hooks: list[RemovableHandle] = []
    try:
        for module in model.modules():
            if isinstance(module, types or nn.Module):
                hooks.append(module.register_forward_hook(captured.add, with_kwargs=True))
        with definitions_only():
            yield captured
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Set a model to evaluation mode and restore its mode on exit. An object that is not a module is left unchanged."""
    if not isinstance(model, nn.Module):
        yield
        return
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def model_of(source: Source) -> Any:
    """Return the model of a `TrainedModel`; return a module unchanged."""
    return source if isinstance(source, nn.Module) else source.model


def cells_of(model: object) -> dict[str, Cell]:
    """Return the cells that read the text, by module name, without the cells of the character encoder."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return {name: part for name, part in named if isinstance(part, Cell) and "spelling" not in name.split(".")}


# --- Transformers -----------------------------------------------------------------------------------------------------


class AttentionValues(NamedTuple):
    """All heads of one attention layer for one text. Scores, weights and weighted sums are recomputed explicitly."""

    q: Tensor  # (N, T, d)
    k: Tensor  # (N, S, d)
    v: Tensor  # (N, S, d)
    scores: Tensor  # q·k times the scale (N, T, S); −∞ at masked positions
    weights: Tensor  # softmax of the scores (N, T, S)
    mixtures: Tensor  # Σ_j α_j v_j (N, T, d)
    captured_mixtures: Tensor  # the weighted sums computed by the model
    output: Tensor  # [head_1; …; head_N] W^O (T, D)


class BlockValues(NamedTuple):
    """One Transformer block applied to one text."""

    before: Tensor  # (T, D)
    self_attention: AttentionValues | None  # None if the block mixes positions without attention
    cross_attention: AttentionValues | None
    after_self: Tensor | None  # after self-attention (T, D)
    after_cross: Tensor | None
    before_feed_forward: Tensor
    features: Tensor  # hidden layer of the feed-forward network (T, d_ff)
    feed_forward_output: Tensor
    after: Tensor


def blocks_of(part: nn.Module) -> list[TransformerBlock]:
    """Return the Transformer blocks of a module, lowest first."""
    return [module for module in part.modules() if isinstance(module, TransformerBlock)]


def block_values(captured: Captured, block: TransformerBlock, *, norm_first: bool, residual: bool) -> BlockValues:
    """Return the values of a block whose captured call returned the attention weights."""
    call = captured.calls(block)[-1]
    weights = [tensor[0] for tensor in _tensors(call.output) if tensor.dim() == 4]
    attentions = [module for module in block.modules() if isinstance(module, MultiHeadAttention)]
    values = [attention_values(captured, module, alpha) for module, alpha in zip(attentions, weights, strict=True)]
    feed_forward = block.feed_forward
    inputs = [captured.input(module.q) for module in attentions] + [captured.input(feed_forward)]
    x, afters = captured.input(block), []
    for attention, next_input in zip(values, inputs[1:], strict=True):
        total = x + attention.output if residual else attention.output
        x = total if norm_first else next_input
        afters.append(x)
    after, feed_forward_output = captured.output(block), captured.output(feed_forward)
    if not attentions:
        x = after - feed_forward_output if norm_first and residual else captured.input(feed_forward)
    return BlockValues(
        before=captured.input(block),
        self_attention=values[0] if values else None,
        cross_attention=values[1] if len(values) > 1 else None,
        after_self=afters[0] if afters else None,
        after_cross=afters[1] if len(afters) > 1 else None,
        before_feed_forward=x,
        features=captured.input(feed_forward.down),
        feed_forward_output=feed_forward_output,
        after=after,
    )


def attention_values(captured: Captured, attention: MultiHeadAttention, weights: Tensor) -> AttentionValues:
    """Return the values of an attention layer; zeros in the model's `weights` (N, T, S) mark masked positions."""
    q = attention.queries(captured.input(attention.q)[None])[0]
    group = attention.heads // attention.kv_heads
    keys_values = attention.keys_values(captured.input(attention.k)[None])
    k, v = (each[0].repeat_interleave(group, dim=0) for each in keys_values)
    scores = (q @ k.transpose(1, 2) * attention.scale).masked_fill(weights == 0, -torch.inf)
    recomputed_weights = torch.softmax(scores, dim=-1)
    joined = captured.input(attention.out)
    return AttentionValues(
        q=q,
        k=k,
        v=v,
        scores=scores,
        weights=recomputed_weights,
        mixtures=recomputed_weights @ v,
        captured_mixtures=joined.unflatten(1, (attention.heads, -1)).transpose(0, 1),
        output=captured.output(attention.out),
    )


def _tensors(tree: object) -> Iterator[Tensor]:
    """Yield the tensors in a nested result in their order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | tuple | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(part)
