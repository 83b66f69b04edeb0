"""Training steps on a GPU: the trainer of seqloom compared with a plain loop over the same model of Hugging Face.

The models have the same weights: BART (LayerNorm after each layer and after the embeddings, learned positions, GELU)
and GPT-2. Both programs read the same batches, compute in bf16 if the device supports it, clip the gradient norm and
use fused AdamW. The plain loop runs eagerly, with all batches on the device. seqloom creates its batches during
training, as in `seqloom train`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from peers.synthetic import pairs, recipe_of, stream
from peers.turns import Spread, ratios
from torch import Tensor

from seqloom import accel
from seqloom.core.tree import to_device
from seqloom.tasks import translate
from seqloom.train.events import Prepared
from seqloom.train.loop import make_step
from seqloom.train.state import TrainState
from seqloom.train.wrappers import accelerate, split_on_oom

PADDING = -100
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Work:
    """A row of the table: a task of seqloom, and the model of Hugging Face."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    rows: int = 0  # 0 selects real batches of the size in the recipe
    length: int = 0
    vocabulary: int = 0

    def task(self, device: str, fast: bool = True) -> Any:
        recipe = recipe_of(self.recipe, [*self.overrides, f"train.cuda_graphs={str(fast).lower()}"], device)
        if not self.rows:
            return translate.Task.prepare(recipe)
        if recipe.task == "translate":
            return pairs(recipe, self.rows, self.length, self.vocabulary)
        return stream(recipe, self.vocabulary)


def bart(width: int, heads: int, layers: int, inner: int) -> tuple[str, ...]:
    """Return the overrides that make a Transformer correspond to BART."""
    return (
        f"model.d_model={width}",
        f"model.heads={heads}",
        f"model.encoder_layers={layers}",
        f"model.decoder_layers={layers}",
        f"model.d_ff={inner}",
        "model.positions={kind: learned, max_length: 256}",
        "model.activation=gelu",
        "model.embed_norm=true",
        "model.embed_scale=false",
        "model.tied=all",
        "model.dropout=0.1",
        "loss.label_smoothing=0",
        "loss.consistency=0",
        "train.optimizer=adamw",
        "train.schedule=constant",
        "train.lr=5e-4",
        "train.warmup=0",
    )


def gpt(rows: int, length: int, width: int, heads: int, layers: int) -> tuple[str, ...]:
    """Return the overrides that make a GPT correspond to GPT-2."""
    return (
        f"batch.size={rows}",
        f"batch.length={length}",
        f"model.d_model={width}",
        f"model.heads={heads}",
        f"model.layers={layers}",
        f"model.positions={{kind: learned, max_length: {length}}}",
        "model.bias=true",
        "model.activation=gelu-tanh",
        "train.schedule=constant",
        "train.warmup=0",
    )


def works(small: bool, real: bool) -> list[Work]:
    """Return the rows of the table, or small rows that test the benchmark."""
    name, pair = "translate-multi30k", "encoder–decoder"
    if small:
        tiny = bart(32, 2, 2, 64)
        results = [
            Work(f"{pair} d 32, 2+2, 8×6", name, (*tiny, "batch.tokens=48"), 8, 6, 100),
            Work("GPT 2×32, 4×16", "gpt-shakespeare", gpt(4, 16, 32, 2, 2), 4, 16, 65),
        ]
        return results + (
            [
                Work(
                    f"{pair} d 32, Multi30k",
                    name,
                    (*tiny, "batch.tokens=512", "tokenizer.size=300", "data.fraction=0.02"),
                )
            ]
            if real
            else []
        )
    tiny, middle = (*bart(128, 4, 4, 256), "tokenizer.size=10000"), (*bart(512, 8, 6, 2048), "tokenizer.size=10000")
    results = [
        Work(f"{pair} d 128, 4+4, 256×24", name, (*tiny, "batch.tokens=6144"), 256, 24, 10_000),
        Work(f"{pair} d 128, 4+4, 1024×24", name, (*tiny, "batch.tokens=24576"), 1024, 24, 10_000),
        Work(f"{pair} d 512, 6+6, 256×24", name, (*middle, "batch.tokens=6144"), 256, 24, 10_000),
        Work("GPT 6×384, 64×256", "gpt-shakespeare", gpt(64, 256, 384, 6, 6), 64, 256, 65),
    ]
    if real:
        results += [
            Work(f"{pair} d 128, 4+4, Multi30k", name, (*tiny, "batch.tokens=6144")),
            Work(f"{pair} d 512, 6+6, Multi30k", name, (*middle, "batch.tokens=6144")),
        ]
    return results


class Ours:
    def __init__(self, work: Work, device: str, fast: bool = True) -> None:
        self.task = work.task(device, fast)
        accel.install()
        self.state = TrainState(self.task, self.task.recipe.train, 1)
        self.step = accelerate(split_on_oom, self.state)  # without memory measurement
        self.parameters = self.state.parameter_count()
        self.prepared = 0.0  # duration of compilation and graph capture in seconds

    def run(self, steps: int) -> int:
        """Run optimizer steps and wait for the device."""
        before = self.state.tally.tokens
        for _ in range(steps):
            self.prepared += make_step(self.state, self.step).preparation_seconds
        self.state.settle()
        return self.state.tally.tokens - before


class Theirs:
    """A plain training loop."""

    def __init__(self, ours: Ours, device: str) -> None:
        recipe, self.device = ours.task.recipe, device
        torch.manual_seed(1)
        model = (
            _bart(recipe, len(ours.task.tokenizer))
            if recipe.task == "translate"
            else _gpt2(recipe, len(ours.task.tokenizer))
        )
        self.model = model.to(device).train()
        self.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, fused=True)
        self.batches = [self._batch(ours.task.batch(1, step)) for step in range(ours.task.steps_per_epoch())]
        self.place = 0

    def _batch(self, batch: Any) -> tuple[Batch, int]:
        if "source" not in batch:
            created, tokens = {"input_ids": batch["inputs"], "labels": batch["targets"]}, batch["targets"].numel()
        else:
            labels = batch["targets"].masked_fill(~batch["target_mask"], PADDING)
            created = {
                "input_ids": batch["source"],
                "attention_mask": batch["source_mask"].long(),
                "decoder_input_ids": batch["inputs"],
                "labels": labels,
            }
            tokens = int(batch["target_mask"].sum())
        return to_device(created, torch.device(self.device)), tokens

    def run(self, steps: int) -> int:
        tokens = 0
        for _ in range(steps):
            batch, count = self.batches[self.place % len(self.batches)]
            self.place += 1
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            tokens += count
        loss.item()  # synchronizes the device
        return tokens


def _bart(recipe: Any, vocabulary: int) -> Any:
    m = recipe.model
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("ffn_dim", m.feed_forward_size), ("attention_heads", m.heads))
    }
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=vocabulary,
            d_model=m.d_model,
            encoder_layers=m.encoder_layers,
            decoder_layers=m.decoder_layers,
            max_position_embeddings=256,
            dropout=m.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            eos_token_id=0,
            pad_token_id=0,
            bos_token_id=0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            use_cache=False,
            **sides,
        )
    )


def _gpt2(recipe: Any, vocabulary: int) -> Any:
    m = recipe.model
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary,
            n_positions=recipe.batch.length,
            n_embd=m.d_model,
            n_layer=m.layers,
            n_head=m.heads,
            resid_pdrop=m.dropout,
            embd_pdrop=m.dropout,
            attn_pdrop=m.attention_dropout,
            loss_type="ForMaskedLM",  # the labels are already shifted
            use_cache=False,
        )
    )


def measure(
    work: Work, device: str, rounds: int, steps: int, make_programs: Callable[[Ours], dict[str, Any]]
) -> dict[str, Any]:
    """Measure all implementations alternately. Return the tokens per second of every round."""
    ours = Ours(work, device)
    every = {"seqloom": ours, **make_programs(ours)}
    for way in every.values():
        way.run(max(steps, min(ours.task.steps_per_epoch(), 10 * steps)) if way is ours else 3)
    speeds: dict[str, list[float]] = {name: [] for name in every}
    for number in range(rounds):
        for name, way in list(every.items())[:: 1 if number % 2 == 0 else -1]:
            start = time.perf_counter()
            tokens = way.run(steps)
            speeds[name].append(tokens / (time.perf_counter() - start))
    return {
        "work": work.name,
        "tokens_per_step": ours.state.tally.tokens / ours.state.tally.step,
        "parameters": {name: way.parameters for name, way in every.items()},
        "prepared_seconds": ours.prepared,
        "notes": [note for event in ours.state.events if isinstance(event, Prepared) for note in event.notes],
        "tokens_per_second": speeds,
        "ratio": {
            name: vars(ratios(speeds["seqloom"], results)) for name, results in speeds.items() if name != "seqloom"
        },
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Format the results of a row."""
    yield (
        f"{found['work']}: {found['tokens_per_step']:,.0f} target tokens per step; compiled and captured in "
        f"{found['prepared_seconds']:.1f} s"
    )
    for name, speeds in found["tokens_per_second"].items():
        spread = Spread.of(speeds)
        milliseconds = 1000 * found["tokens_per_step"] / spread.median
        ratio = found["ratio"].get(name)
        times = f"   seqloom is {Spread(**ratio).format('.2f')} × as fast" if ratio else ""
        size = f"{found['parameters'][name]:,} parameters"
        yield f"  {name:26} {milliseconds:8.2f} ms  {spread.format()} tokens/s, {size}{times}"
    yield from (f"  note: {note}" for note in found["notes"])
