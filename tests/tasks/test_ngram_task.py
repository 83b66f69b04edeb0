"""The loss of the n-gram task equals that of the log, and Kneser–Ney smoothing computed with dictionaries."""

import math
from collections import Counter, defaultdict

import pytest

from seqloom.core.errors import DataError
from seqloom.predict.loader import load
from seqloom.train.events import Evaluated, Finished
from seqloom.training import begin, resume

TRAIN = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "on the mat the cat sat", "the end"]
DEV = ["the cat sat on a log", "a dög and the cat"]


class SlowKneserNey:
    """p(w|h) = (c(hw) − D(c(hw)))/Σ c(hv) + γ(h)·p(w|h'), c adjusted below the highest order; 1/V at the bottom."""

    def __init__(self, documents, order, vocabulary):
        self.order, self.vocabulary = order, vocabulary
        raw: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order + 1)]
        for document in documents:
            tokens = ["<s>", *document, "</s>"]
            for k in range(1, order + 1):
                raw[k].update(tuple(tokens[i : i + k]) for i in range(len(tokens) - k + 1))
        self.counts: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order + 1)]
        self.counts[order] = Counter({gram: n for gram, n in raw[order].items() if gram != ("<s>",)})
        for k in range(1, order):
            for gram in raw[k]:
                if gram[0] == "<s>":
                    if k > 1:
                        self.counts[k][gram] = raw[k][gram]
                else:
                    self.counts[k][gram] = len({longer[0] for longer in raw[k + 1] if longer[1:] == gram})
        self.discounts = [self._discounts(counts) for counts in self.counts]
        self.following: list[defaultdict[tuple[str, ...], list[int]]] = [defaultdict(list) for _ in range(order + 1)]
        for k in range(1, order + 1):
            for gram, count in self.counts[k].items():
                self.following[k][gram[:-1]].append(count)

    @staticmethod
    def _discounts(counts):
        n = [sum(count == j for count in counts.values()) for j in range(5)]
        if 0 not in n[1:]:
            y = n[1] / (n[1] + 2 * n[2])
            discounts = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
            if all(0 < d <= j for j, d in enumerate(discounts, start=1)):
                return discounts
        return [0.5, 1.0, 1.5]

    def prob(self, history, word):
        p = 1 / self.vocabulary
        for k in range(1, min(self.order, len(history) + 1) + 1):
            context = tuple(history[len(history) - k + 1 :])
            counts = self.following[k][context]
            if not counts:
                break
            count, d = self.counts[k][(*context, word)], self.discounts[k]
            spared = sum(d[min(c, 3) - 1] for c in counts)
            discounted = max(count - (d[min(count, 3) - 1] if count else 0), 0)
            p = discounted / sum(counts) + spared / sum(counts) * p
        return p


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_evaluation_log_and_manual_computation_agree(recipe, tmp_path, order):
    training = begin(recipe(f"model.order={order}", task="ngram"), tmp_path / "run")
    events = list(training.events())
    (evaluated,) = [event for event in events if isinstance(event, Evaluated)]

    alphabet = set("".join(TRAIN))
    slow = SlowKneserNey(TRAIN, order, len(alphabet) + 2)
    total, count = 0.0, 0
    for document in DEV:
        tokens = [letter if letter in alphabet else "<unk>" for letter in document] + ["</s>"]
        for position, token in enumerate(tokens):
            total -= math.log(slow.prob(["<s>", *tokens[:position]][-(order - 1) :] if order > 1 else [], token))
            count += 1
    logged = next(entry for entry in training.run.log() if entry["event"] == "evaluated")["metrics"]
    metrics = load(tmp_path / "run", device="cpu").evaluate("dev")
    assert metrics == logged == dict(evaluated.metrics)
    assert metrics["loss"] == pytest.approx(total / count, rel=1e-9)
    assert metrics["word_perplexity"] == pytest.approx(math.exp(total / 13), rel=1e-9)
    assert isinstance(events[-1], Finished)


def test_text_shorter_than_order_is_rejected_before_run_is_created(recipe, tmp_path):
    (tmp_path / "train.txt").write_text("ab\nc\n")
    with pytest.raises(DataError, match="order 5") as caught:
        begin(recipe("model.order=5", task="ngram"), tmp_path / "run")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run").exists()


def test_resuming_after_counting_only_evaluates(recipe, tmp_path):
    training = begin(recipe(task="ngram"), tmp_path / "run")
    for event in training.events():
        if type(event).__name__ == "Saved":
            break
    events = list(resume(tmp_path / "run").events())
    assert [type(event).__name__ for event in events] == ["Started", "Evaluated", "Finished"]
