"""Rescoring of n-best lists: a translator ranks the translations of another translator.

Sutskever et al. (2014) rescored the 1000-best lists of a phrase-based system with an LSTM that reads the source in
reverse order and has no attention. The score of a translation was the even average of the two log-probabilities, and
BLEU rose from 33.3 to 36.5. This script makes the same measurement with two trained runs: the baseline writes n-best
lists, and the second model rescores them.

    score(y) = w · log p_model(y | x) + (1 − w) · log p_baseline(y | x)

BLEU is measured for w = 0 (the baseline), 0.5 (as in the paper), 1, and the weight that is best on dev. The oracle
selects the translation with the highest sentence chrF. Each list size is the number of translations that are rescored.

    COMMON="data.fraction=0.3 tokenizer.size=3000 batch.tokens=1024 batch.dev_pairs=50 monitor=loss loss.consistency=0
        train.warmup=100"
    seqloom train translate-multi30k-rnn $COMMON model.cell=lstm model.hidden=192 model.bidirectional=false
        model.attention=null model.reverse=true model.residual=false model.combine=concat train.epochs=12
        train.evaluate_every=null --out runs/mt-lstm
    seqloom train translate-multi30k $COMMON model.d_model=128 model.d_ff=256 model.heads=4 model.encoder_layers=2
        model.decoder_layers=2 train.steps=600 train.lr=2e-3 train.evaluate_every=200 --out runs/mt-transformer
    python benchmarks/rescoring.py runs/mt-transformer runs/mt-lstm --sentences 300
"""

import argparse
from collections.abc import Mapping, Sequence

from seqloom.evaluate.translation import bleu
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

WEIGHTS = tuple(step / 10 for step in range(11))
EVEN = 0.5  # the weight in the paper
Lists = list[tuple[str, list[tuple[str, float]]]]  # sources with their translations and log-probabilities


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", help="a run of a translator, which writes the n-best lists")
    parser.add_argument("model", help="a run of a translator, which rescores the lists")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 20], help="sizes of the n-best lists")
    parser.add_argument("--sentences", type=int, default=None, help="sentences of dev and of test; all by default")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()

    baseline, model = (
        load(run, arguments.device, TranslatorPredictor) for run in (arguments.baseline, arguments.model)
    )
    corpus = baseline.task().corpus
    data = {split: corpus.split(split)[: arguments.sentences] for split in ("dev", "test")}
    references = {split: [pair.target for pair in pairs] for split, pairs in data.items()}
    language, largest = corpus.languages[1], max(arguments.sizes)
    sources = {split: [pair.source for pair in pairs] for split, pairs in data.items()}
    alone = {split: [each.text for each in model.translate(texts)] for split, texts in sources.items()}
    lists = {split: list_translations(baseline, texts, largest) for split, texts in sources.items()}

    def measure(texts: Mapping[str, Sequence[str]]) -> dict[str, float]:
        return {split: bleu(texts[split], references[split], language=language) for split in data}

    rows = {f"{model.name} alone": measure(alone)}
    for size in sorted(arguments.sizes):
        cut = {split: [(source, candidates[:size]) for source, candidates in lists[split]] for split in data}
        scores = {split: score_lists(model, cut[split], references[split], language) for split in data}
        best = max(WEIGHTS, key=lambda weight: (scores["dev"][weight], -abs(weight - EVEN)))
        for weight, name in ((0.0, "w = 0 (baseline)"), (EVEN, "w = 0.5"), (1.0, "w = 1"), (best, "best w on dev")):
            shown = f"{name}: {best:g}" if name.startswith("best") else name
            rows[f"{size}-best, {shown}"] = {split: scores[split][weight] for split in data}
        rows[f"{size}-best, oracle"] = measure({split: oracle(cut[split], references[split]) for split in data})
    counts = " and ".join(f"{len(pairs):,} pairs of {split}" for split, pairs in data.items())
    print(f"{baseline.name} rescored by {model.name}: BLEU on {counts}")
    print(f"{'':32}{'dev':>8}{'test':>8}")
    for name, row in rows.items():
        print(f"{name:32}{row['dev']:8.2f}{row['test']:8.2f}")


def list_translations(baseline: TranslatorPredictor, sources: Sequence[str], size: int) -> Lists:
    """Return the n-best list of each source with Σ log p, found by beam search without a length penalty."""
    translations = baseline.translate(sources, beam=size, n_best=size, length_penalty=0.0)
    return [(each.source, [(best.text, best.log_prob) for best in each.candidates]) for each in translations]


def score_lists(
    model: TranslatorPredictor, lists: Lists, references: Sequence[str], language: str
) -> dict[float, float]:
    """Return BLEU of the best translation of each list, for every weight of the model."""
    rescored = model.rescore(lists, weight=1.0, length_penalty=0.0)
    of_model = [{best.text: best.log_prob for best in each.candidates} for each in rescored]
    scores = {}
    for weight in WEIGHTS:
        chosen = [
            max(candidates, key=lambda pair: weight * by_text[pair[0]] + (1 - weight) * pair[1])[0]
            for (_, candidates), by_text in zip(lists, of_model, strict=True)
        ]
        scores[weight] = bleu(chosen, references, language=language)
    return scores


def oracle(lists: Lists, references: Sequence[str]) -> list[str]:
    """Return the translation of each list that is most similar to the reference by sentence chrF."""
    from sacrebleu import sentence_chrf

    return [
        max((text for text, _ in candidates), key=lambda text: sentence_chrf(text, [reference]).score)
        for (_, candidates), reference in zip(lists, references, strict=True)
    ]


if __name__ == "__main__":
    main()
