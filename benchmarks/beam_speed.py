"""Beam search beside `generate` of Hugging Face's transformers: one Transformer, the same weights, the same sentences.

A Transformer of ours is given to `MarianMTModel` weight by weight (to Pegasus, if its norms stand before its layers).
Both translate sentences of Multi30k's dev split, sorted by length and so many at a time, in turns in one process.
Reported are medians over rounds with their ranges, and how many translations are the same, token for token. Two cases:

    fixed     weights as they are drawn, and every sentence is made to be so many tokens long: both do the same steps
    trained   weights after some training, so that sentences end where they end, at 60 tokens at the latest

In both, all hypotheses of the beam are wanted: then both stop by the same rule and find the same. The last column is of
ours when it has only the best one to find, which is what `seqloom translate` asks for: it may stop sooner.

    python benchmarks/beam_speed.py                       trains a tiny Transformer first, for some minutes
    python benchmarks/beam_speed.py runs/translate-multi30k                              with the weights of a run
"""

import argparse
import itertools
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from hugging_face import same_parameters
from torch import Tensor

from seqloom import api
from seqloom.decoding.beam import BeamConfig, beam_search
from seqloom.models.transformer import Transformer
from seqloom.train.fit import Trainer

RECIPE = "translate-multi30k"
TINY = [
    "tokenizer.size=8000",
    "batch.tokens=4096",
    "model.width=128",
    "model.feed_forward=512",
    "model.dropout=0.1",
    "loss.consistency=0",
    "train.schedule=constant",
    "train.warmup=200",
    "train.device=cpu",
    "train.precision=fp32",
]
LONGEST = 60
Batch = dict[str, Tensor]


def theirs(ours: Transformer) -> Any:
    """The same model, in transformers."""
    config = ours.config
    if config.tied != "all" or config.positions.kind != "sinusoidal" or config.norm != "layer" or config.embed_norm:
        raise SystemExit("Marian needs model.tied=all, sinusoidal positions, and LayerNorm in the blocks alone.")
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("ffn_dim", config.inner), ("attention_heads", config.heads))
    }
    kind = "Pegasus" if config.norm_first else "Marian"
    made = getattr(transformers, "PegasusForConditionalGeneration" if config.norm_first else "MarianMTModel")(
        getattr(transformers, f"{kind}Config")(
            vocab_size=ours.output.out_features,
            d_model=config.width,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            activation_function=config.activation,
            scale_embedding=config.embed_scale,
            eos_token_id=0,
            pad_token_id=0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            **sides,
        )
    )
    with torch.no_grad():
        for own, other in same_parameters(ours, made):
            other.copy_(own)
        for side in (made.model.encoder, made.model.decoder):  # in our order of sines and cosines
            table = side.embed_positions.weight
            table.copy_(ours.source_embed.positions(torch.arange(len(table))))
    return made.eval()


def search(model: Transformer, batch: Batch, beam: int, n_best: int, fixed: int | None) -> list[list[list[int]]]:
    lengths = {"max_length": fixed or LONGEST, "min_length": fixed or 0}
    options = BeamConfig(beam=beam, n_best=n_best, **lengths)
    found = beam_search(model, source=batch, options=options, end=0)
    return [[one.tokens for one in row] for row in found]


@torch.no_grad()
def generate(model: Any, batch: Batch, beam: int, fixed: int | None) -> list[list[list[int]]]:
    found = model.generate(
        input_ids=batch["tokens"],
        attention_mask=batch["mask"].long(),
        num_beams=beam,
        num_return_sequences=beam,
        length_penalty=1.0,
        early_stopping=False,
        do_sample=False,
        max_new_tokens=fixed or LONGEST,
        min_new_tokens=fixed,
    )
    rows = [row[1 : row.index(0, 1) if 0 in row[1:] else None] for row in found.tolist()]  # between two ENDs
    return [rows[first : first + beam] for first in range(0, len(rows), beam)]


def batches(sources: list[list[int]], size: int) -> list[Batch]:
    made = []
    for first in range(0, len(sources), size):
        rows = sources[first : first + size]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        made.append({"tokens": tokens, "mask": torch.arange(longest) < torch.tensor([[len(row)] for row in rows])})
    return made


def train(task: Any, recipe: Any, steps: int) -> Transformer:
    trainer = Trainer(task, recipe.train, recipe.seed)
    for _ in range(steps):
        trainer.update()
    return trainer.model.eval()


def compare(name: str, model: Transformer, sources: list[list[int]], fixed: int | None, wanted: Any) -> None:
    """Time the three in turns, and print."""
    other = theirs(model)
    settings = list(itertools.product(wanted.batches, wanted.beams))
    prepared = {size: batches(sources, size) for size in wanted.batches}
    for size, beam in settings:
        ways = {
            "generate": lambda batch, beam=beam: generate(other, batch, beam, fixed),
            "ours": lambda batch, beam=beam: search(model, batch, beam, beam, fixed),
            "best": lambda batch, beam=beam: search(model, batch, beam, 1, fixed),
        }
        found = {way: ways[way](prepared[size][0]) for way in ways}  # once to warm up
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(wanted.rounds):
            for way in list(ways) if number % 2 == 0 else reversed(ways):
                began = time.perf_counter()
                found[way] = [row for batch in prepared[size] for row in ways[way](batch)]
                speeds[way].append(len(sources) / (time.perf_counter() - began))
        same = [a[0] == b[0] for a, b in zip(found["ours"], found["generate"], strict=True)]
        length = statistics.mean(len(row[0]) for row in found["ours"])
        median = {way: statistics.median(values) for way, values in speeds.items()}
        print(
            f"{name:8} {size:>5} {beam:>4} {length:>7.1f}"
            + "".join(
                f"{f'{median[way]:,.1f} ({min(all_):,.1f}–{max(all_):,.1f})':>24}" for way, all_ in speeds.items()
            )
            + f"{median['ours'] / median['generate']:>7.2f}×{statistics.mean(same):>8.1%}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="a run directory of a Transformer; left out, one is trained for a while")
    parser.add_argument("--steps", type=int, default=600, help="of that training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=256, help="of the dev split")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--fixed", type=int, default=24, help="tokens of each sentence where none ends by itself")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    if arguments.run:
        translator = api.load(arguments.run, "cpu", api.Translator)
        task, trained = translator.task(), translator.model
        fresh = trained.config.build(len(task.tokenizer)).eval()
    else:
        _, recipe = api.read_recipe(RECIPE, TINY)
        with tempfile.TemporaryDirectory() as folder:
            task = api.begin(recipe, Path(folder) / "run").task
        fresh, trained = task.model().eval(), train(task, recipe, arguments.steps)
    pairs = task.corpus.split("dev")[: arguments.sentences]
    sources = sorted(([*task.tokenizer.encode(pair.source), task.tokenizer.end] for pair in pairs), key=len)
    config = trained.config
    print(
        f"Transformer {config.encoder_layers}+{config.decoder_layers} layers, width {config.width}, feed-forward "
        f"{config.inner}, {config.heads} heads, vocabulary {len(task.tokenizer):,}; {len(sources)} sentences of dev, "
        f"{statistics.mean(map(len, sources)):.1f} tokens each; {arguments.rounds} rounds\n"
        f"{torch.get_num_threads()} CPU threads, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{platform.machine()}; sentences per second, median (range)"
    )
    print(
        f"{'':8} {'batch':>5} {'beam':>4} {'tokens':>7}{'generate':>24}{'seqloom':>24}{'seqloom, best only':>24}"
        f"{'ratio':>8}{'same':>8}"
    )
    compare("fixed", fresh, sources, arguments.fixed, arguments)
    compare("trained", trained, sources, None, arguments)


if __name__ == "__main__":
    main()
