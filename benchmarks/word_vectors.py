"""Word vectors compared with gensim: words per second, and quality with equal settings (C22).

Both libraries read the same words of the same text. Their rounds alternate, so that other load affects both. Reading,
counting and compilation are not timed. `words/s` counts every word of the text, including words that subsampling omits.

    python benchmarks/word_vectors.py speed --corpus wikitext2 --workers 2 --rounds 5
    python benchmarks/word_vectors.py quality --corpus wikitext2 --epochs 5 --seeds 1 2 3
    python benchmarks/word_vectors.py speed --corpus wikitext2 --device cuda --rounds 5   # gensim on the CPU
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from peers.options import print_load

from seqloom.classical.word_vectors.negative_sampling import Text
from seqloom.classical.word_vectors.trainer import WordVectorTrainer
from seqloom.data.word_vectors import read_word_sets
from seqloom.evaluate.word_space import WordSpace
from seqloom.recipes import read_recipe
from seqloom.tasks.word_vectors import Task, judge, space_of


def prepare(arguments: argparse.Namespace) -> tuple[Any, Task]:
    words = [
        f"data.corpus={arguments.corpus}",
        *(
            f"model.{key}={getattr(arguments, key)}"
            for key in ("objective", "width", "window", "negatives", "subsample")
        ),
        f"train.epochs={arguments.epochs}",
        f"train.workers={arguments.workers}",
        f"train.device={arguments.device}",
        f"train.batch={arguments.batch}",
    ]
    recipe = read_recipe("word2vec-wikitext2", words)[1]
    return recipe, Task.prepare(recipe)


def sentences(task: Task) -> list[list[str]]:
    """Return the words of a task as sentences for gensim."""
    text: Text = task.text("train")
    names = np.array([task.tokenizer.token(id) for id in range(len(task.tokenizer))], dtype=object)
    ends = (text.documents[1:] != text.documents[:-1]).nonzero().squeeze(1) + 1
    return [list(names[part]) for part in np.split(text.words.numpy(), ends.numpy())]


def ours(task: Task, recipe: Any, seed: int) -> tuple[float, WordSpace]:
    """Return the duration of training in seconds, and the vectors."""
    model = task.model().draw(seed, task.counts())
    trainer = WordVectorTrainer(model, task.text("train"), recipe.train, seed=seed)
    blocks = trainer.sampler.blocks
    start = time.perf_counter()
    for epoch in range(recipe.train.epochs):
        trainer.run(range(epoch * blocks, (epoch + 1) * blocks))
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, space_of(model.to("cpu"), task.tokenizer)


def theirs(texts: list[list[str]], recipe: Any, workers: int, seed: int) -> tuple[float, WordSpace]:
    from gensim.models import Word2Vec

    chosen = recipe.model
    peer = Word2Vec(
        vector_size=chosen.width,
        window=chosen.window,
        negative=chosen.negatives,
        sample=chosen.subsample,
        sg=int(chosen.objective == "skipgram"),
        min_count=1,
        workers=workers,
        seed=seed,
    )
    peer.build_vocab(texts)
    start = time.perf_counter()
    peer.train(texts, total_examples=peer.corpus_count, epochs=recipe.train.epochs)
    return time.perf_counter() - start, WordSpace(peer.wv.index_to_key, peer.wv.vectors, lowercase=True)


def speed(arguments: argparse.Namespace) -> None:
    recipe, task = prepare(arguments)
    texts = sentences(task)
    words = sum(map(len, texts)) * recipe.train.epochs
    runs: dict[str, Callable[[], tuple[float, WordSpace]]] = {
        "seqloom": lambda: ours(task, recipe, 1),
        "gensim": lambda: theirs(texts, recipe, arguments.workers, 1),
    }
    runs["seqloom"]()  # compilation
    results: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            results[name].append(words / run()[0])
    print(
        f"{recipe.model.objective}, {words:,} words, {arguments.workers} workers, {task.scale()[1]}, "
        f"{arguments.rounds} rounds"
    )
    for name, values in results.items():
        print(f"  {name:8} {statistics.median(values):12,.0f} words/s  ({min(values):,.0f} to {max(values):,.0f})")
    ratios = [entry / other for entry, other in zip(results["seqloom"], results["gensim"], strict=True)]
    print(f"  ratio    {statistics.median(ratios):12.2f}          ({min(ratios):.2f} to {max(ratios):.2f})")


def quality(arguments: argparse.Namespace) -> None:
    recipe, task = prepare(arguments)
    texts, sets = sentences(task), read_word_sets()
    for name, trained in (
        ("seqloom", _each(arguments.seeds, lambda seed: ours(task, recipe, seed))),
        ("gensim", _each(arguments.seeds, lambda seed: theirs(texts, recipe, arguments.workers, seed))),
    ):
        figures: dict[str, list[float]] = {}
        for space in trained:
            for key, entry in judge(space, sets).items():
                figures.setdefault(f"{key} ({entry.coverage:.1%} asked)", []).append(100 * (entry.value or 0))
        print(f"{name}, {recipe.model.objective}, {recipe.train.epochs} epochs, seeds {arguments.seeds}")
        for key, values in figures.items():
            print(
                f"  {key:38} {statistics.mean(values):6.2f} ± {statistics.stdev(values) if len(values) > 1 else 0:.2f}"
            )


def _each(seeds: list[int], train: Callable[[int], tuple[float, WordSpace]]) -> Iterator[WordSpace]:
    yield from (train(seed)[1] for seed in seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "quality"])
    parser.add_argument("--corpus", default="wikitext2")
    parser.add_argument("--objective", choices=["skipgram", "cbow"], default="skipgram")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--negatives", type=int, default=5)
    parser.add_argument("--subsample", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=4096, help="on a GPU: predictions per batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    print_load(arguments.workers)
    {"speed": speed, "quality": quality}[arguments.what](arguments)


if __name__ == "__main__":
    main()
