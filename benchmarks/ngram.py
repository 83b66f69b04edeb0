"""Kneser–Ney n-grams on Penn Treebank and WikiText-2: time and memory of estimation, tokens scored per second, quality.

    python benchmarks/ngram.py --data DIRECTORY [--order 5] [--corpus ptb]

DIRECTORY (or SEQLOOM_DATA) contains ptb/ptb.{train,valid,test}.txt.gz and wikitext-2/{train,valid,test}.txt.gz. A line
is a document, and its end is predicted like a word. The vocabulary contains every word of the training text; `<unk>` in
the text is an ordinary word. Each corpus is measured in a separate process, because peak memory is counted per process.
"""

import argparse
import gzip
import os
import resource
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from peers.options import print_load

from seqloom.classical.ngram import NGram, NGramConfig
from seqloom.classical.ngram.kneser_ney import kneser_ney

CORPORA = {"ptb": "ptb/ptb.{}.txt.gz", "wikitext-2": "wikitext-2/{}.txt.gz"}
REPEATS = 5


def read(path: Path, words: dict[str, int], grow: bool = False) -> np.ndarray:
    """Return the ids of a text, with 0 after each line."""
    ids: list[int] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            for word in line.split():
                ids.append(words.setdefault(word, len(words)) if grow else words.get(word, 1))
            ids.append(0)
    return np.array(ids)


def score(model: NGram, stream: np.ndarray) -> tuple[float, float]:
    """Return the perplexity, and the tokens per second (median of several runs over the text)."""
    targets = torch.from_numpy(stream)[None]
    inputs = torch.cat([targets.new_zeros(1, 1), targets[:, :-1]], dim=1)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        log_probs, _ = model.score(inputs, targets, model.start())
        seconds.append(time.perf_counter() - begin)
    return float(torch.exp(-log_probs.mean())), len(stream) / float(np.median(seconds))


def step_rate(model: NGram, rows: int = 64, steps: int = 20) -> float:
    """Return the number of next-token distributions per second, computed as in generation."""
    tokens = torch.randint(1, model.vocabulary, (rows, steps), generator=torch.Generator().manual_seed(0))
    state = model.start(rows=rows)
    begin = time.perf_counter()
    for t in range(steps):
        state = model.step(tokens[:, t : t + 1], state).state
    return rows * steps / (time.perf_counter() - begin)


def measure(folder: Path, corpus: str, config: NGramConfig) -> None:
    words = {"</s>": 0, "<unk>": 1}
    train, dev, test = (
        read(folder / CORPORA[corpus].format(split), words, grow=split == "train")
        for split in ("train", "valid", "test")
    )
    begin = time.perf_counter()
    model = kneser_ney(train, config, len(words))
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30
    dev_perplexity, _ = score(model, dev)
    test_perplexity, rate = score(model, test)
    print(f"{corpus}: {config}, vocabulary {len(words):,}, {len(train):,} tokens")
    print("  n-grams         " + ", ".join(f"{count:,}" for count in model.size().values()))
    print(f"  estimated in    {seconds:.2f} s, peak memory of the process {peak:.2f} GiB")
    print(f"  scored          {rate:,.0f} tokens/s; {step_rate(model):,.0f} distributions/s")
    for split, perplexity, stream in (("dev", dev_perplexity, dev), ("test", test_perplexity, test)):
        print(f"  {split:<4} perplexity {perplexity:.2f} over {len(stream):,} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("SEQLOOM_DATA"), help="folder of corpora (or SEQLOOM_DATA)")
    parser.add_argument("--corpus", choices=list(CORPORA), action="append", help="a single corpus; default: all")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--min-count", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("the corpora are missing: pass --data DIRECTORY, or set SEQLOOM_DATA")
    config = NGramConfig(order=arguments.order, min_count=arguments.min_count)
    print_load(1)
    failed = False
    for corpus in arguments.corpus or CORPORA:
        process = get_context("spawn").Process(target=measure, args=(Path(arguments.data), corpus, config))
        process.start()
        process.join()
        failed |= process.exitcode != 0
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
