"""Hidden Markov models compared with hmmlearn, by alternating measurements of the same work on one core.

    python benchmarks/hmm.py [--repeats 5] [--plain]

- an iteration of Baum–Welch over the letters of the Python documentation (one sequence, 2 states and one for END),
- the same over its words (16 + 1 states),
- an iteration over vectors that were drawn from a Gaussian model (4 states, full covariance, 4 variables),
- Viterbi and log p of the same sequences; and Viterbi of many short ones.

hmmlearn computes in log space or with scaling; both modes are measured. Times are medians of the repeats, with minimum
and maximum. The log-likelihoods of both libraries are also compared. `--plain` disables numba.
"""

import argparse
import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers.options import print_load

from seqloom import accel
from seqloom.accel.hmm import numba_inference
from seqloom.classical.hmm import HiddenMarkov, HMMConfig
from seqloom.classical.hmm.gaussian import GaussianHMM, GaussianHMMConfig
from seqloom.classical.hmm.inference import log_likelihood, viterbi
from seqloom.data.corpora import pydocs
from seqloom.tasks.hmm import Recipe, normalize_text
from seqloom.text import CharactersConfig, WordsConfig, encode_documents, train_tokenizer

WAYS = ("log", "scaling")


def time_repeats(repeats: int, work: Callable[[], Any]) -> list[float]:
    work()  # compilation and warm-up
    results = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        results.append(time.perf_counter() - begin)
    return results


def format_times(seconds: list[float]) -> str:
    middle = statistics.median(seconds) * 1000
    return f"{middle:9.2f} ms ({min(seconds) * 1000:.2f} to {max(seconds) * 1000:.2f})"


def report(name: str, ours: list[float], theirs: dict[str, list[float]]) -> None:
    print(f"  {name}")
    print(f"    seqloom           {format_times(ours)}")
    for way, seconds in theirs.items():
        ratio = statistics.median(seconds) / statistics.median(ours)
        print(f"    hmmlearn, {way:8}{format_times(seconds)}   {ratio:.1f}×")


def print_log_probs(ours: float, theirs: float) -> None:
    assert math.isclose(ours, theirs, rel_tol=1e-9), (ours, theirs)
    print(f"    log p of both     {ours:.6f}, {theirs:.6f}")


def streams() -> dict[str, tuple[torch.Tensor, int, int]]:
    """Return tokens, vocabulary size and states of each stream."""
    documents = pydocs.load(pydocs.Config()).split("train")
    recipe = Recipe(data=pydocs.Config(), tokenizer=CharactersConfig(), read="letters")
    texts = [normalize_text(document, recipe) for document in documents]
    letters = train_tokenizer(CharactersConfig(), texts)
    words = train_tokenizer(WordsConfig(min_count=2), texts)
    return {
        "letters": (encode_documents(letters, texts), len(letters), 2),
        "words": (encode_documents(words, texts), len(words), 16),
    }


def symbols(name: str, tokens: torch.Tensor, vocabulary: int, states: int, repeats: int) -> None:
    from hmmlearn.hmm import CategoricalHMM

    model = HiddenMarkov(HMMConfig(states=states), vocabulary).draw_start(tokens, 1, 0)
    print(f"{name}: {len(tokens):,} tokens, {vocabulary:,} symbols, {states} + 1 states")
    column = tokens.numpy()[:, None]

    def other(way: str) -> Any:
        hmm = CategoricalHMM(states + 1, n_iter=1, tol=-1, init_params="", params="ste", implementation=way)
        hmm.n_features = vocabulary
        hmm.startprob_, hmm.transmat_ = model.transition[-1].exp().numpy(), model.transition.exp().numpy()
        hmm.emissionprob_ = model.emission.exp().numpy()
        return hmm

    ours = time_repeats(repeats, lambda: model.improve(tokens))
    report(
        "an iteration of Baum–Welch", ours, {w: time_repeats(repeats, lambda w=w: other(w).fit(column)) for w in WAYS}
    )
    first, table, emitted = model.transition[-1], model.transition, lambda: model.emission_log_probs(tokens[None])
    ours = time_repeats(repeats, lambda: log_likelihood(first, table, emitted()))
    report("log p", ours, {w: time_repeats(repeats, lambda w=w: other(w).score(column)) for w in WAYS})
    ours = time_repeats(repeats, lambda: viterbi(first, table, emitted()))
    report("Viterbi", ours, {"log": time_repeats(repeats, lambda: other("log").decode(column))})
    print_log_probs(float(log_likelihood(first, table, emitted())), other("log").score(column))


def vectors(repeats: int, steps: int = 20_000, variables: int = 4, states: int = 4) -> None:
    from hmmlearn.hmm import GaussianHMM as Other

    random = np.random.default_rng(0)
    kind = np.repeat(random.integers(states, size=steps // 20), 20)
    values = random.normal(size=(states, variables))[kind] * 3 + random.normal(size=(steps, variables))
    series = [torch.from_numpy(values)]
    model = GaussianHMM(GaussianHMMConfig(states=states, smoothing=0, min_variance=0), variables)
    model = model.draw_start(series, 1, 0)
    print(f"vectors: {steps:,} of {variables} variables, {states} states, full covariances")

    def other(way: str) -> Any:
        hmm = Other(states, "full", min_covar=0, n_iter=1, tol=-1, init_params="", covars_prior=0, implementation=way)
        hmm.startprob_, hmm.transmat_ = model.initial.exp().numpy(), model.transition.exp().numpy()
        hmm.means_, hmm.covars_ = model.means.numpy(), model.covariances.numpy()
        return hmm

    ours = time_repeats(repeats, lambda: model.improve(series))
    report(
        "an iteration of Baum–Welch", ours, {w: time_repeats(repeats, lambda w=w: other(w).fit(values)) for w in WAYS}
    )
    ours = time_repeats(repeats, lambda: model.likeliest_states(series[0]))
    report("Viterbi", ours, {"log": time_repeats(repeats, lambda: other("log").decode(values))})
    print_log_probs(float(model.score(series[0][None]).sum()), other("log").score(values))


def sentences(repeats: int, count: int = 2000, length: int = 20, states: int = 17, vocabulary: int = 5000) -> None:
    """Measure short sequences. They are batched in seqloom, and processed one after the other in hmmlearn."""
    from hmmlearn.hmm import CategoricalHMM

    random = np.random.default_rng(0)
    other = CategoricalHMM(states, init_params="")
    other.startprob_ = random.dirichlet(np.ones(states))
    other.transmat_, other.emissionprob_ = (random.dirichlet(np.ones(n), states) for n in (states, vocabulary))
    tokens = random.integers(vocabulary, size=(count, length))
    initial, table = (torch.from_numpy(np.log(probabilities)) for probabilities in (other.startprob_, other.transmat_))
    emission = torch.from_numpy(np.log(other.emissionprob_).T.copy())
    print(f"sentences: {count:,} of {length} words, {states} states")
    ours = time_repeats(repeats, lambda: viterbi(initial, table, emission[torch.from_numpy(tokens)]))
    column, lengths = tokens.reshape(-1, 1), [length] * count
    report("Viterbi", ours, {"log": time_repeats(repeats, lambda: other.decode(column, lengths))})
    log_prob = viterbi(initial, table, emission[torch.from_numpy(tokens)])[1].sum()
    print_log_probs(float(log_prob), other.decode(column, lengths)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="without numba")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.plain:
        numba_inference.has_numba = lambda: False  # type: ignore[assignment]
    accel.install()
    print(f"hmmlearn {importlib.metadata.version('hmmlearn')}, torch {torch.__version__}, one core")
    print_load(1)
    for name, options in streams().items():
        symbols(name, *options, arguments.repeats)
    vectors(arguments.repeats)
    sentences(arguments.repeats)


if __name__ == "__main__":
    main()
