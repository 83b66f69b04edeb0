"""The effect of the beam size on translations, for one run, one split and several beam sizes.

For each beam size and length penalty, the table has BLEU and chrF; the mean Σ log p of the translations, which the
search maximizes for a penalty of 0; their mean length in tokens; the number of translations that differ from greedy
search; and the number of translations that are less probable than those of greedy search. A wider beam does not
guarantee a better result. A translation with the same text does not count as less probable: its Σ log p differs only by
rounding, because other batches sum in another order.

    python benchmarks/beam_width.py runs/quickstart-en-fr --split dev
"""

import argparse
import statistics
import time

from seqloom.evaluate.translation import score_translations
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

ROUNDING = 1e-3  # rounding error of a sum of float32 log-probabilities; real differences are larger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run directory of a translator")
    parser.add_argument("--split", default="dev")
    parser.add_argument(
        "--sentences", type=int, default=None, help="number of sentences, from the first; all by default"
    )
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 2, 3, 5, 10, 20, 50])
    parser.add_argument("--length-penalties", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--stopping", choices=["usual", "exact"], default="usual")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()

    translator = load(arguments.run, arguments.device, TranslatorPredictor)
    corpus = translator.task().corpus
    pairs = corpus.split(arguments.split)[: arguments.sentences]
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    print(f"{arguments.run}: {len(pairs):,} sentences of {arguments.split}, {arguments.stopping} stopping")
    print(
        f"{'α':>4} {'beam':>5} {'BLEU':>7} {'chrF':>7} {'Σ log p':>9} {'tokens':>7} {'other':>6} {'worse':>6} {'s':>7}"
    )
    greedy = list(translator.translate(sources, beam=1))
    for penalty in arguments.length_penalties:
        for beam in arguments.beams:
            start = time.perf_counter()
            options = {"beam": beam, "n_best": 1, "length_penalty": penalty, "stopping": arguments.stopping}
            translations = list(translator.translate(sources, **options))
            seconds = time.perf_counter() - start
            metrics = score_translations(
                [translation.text for translation in translations], references, language=corpus.target
            ).metrics
            other = sum(translation.text != first.text for translation, first in zip(translations, greedy, strict=True))
            worse = sum(
                translation.text != first.text and translation.log_prob < first.log_prob - ROUNDING
                for translation, first in zip(translations, greedy, strict=True)
            )
            log_prob = statistics.mean(translation.log_prob for translation in translations)
            length = statistics.mean(
                len(translation.candidates[0].tokens) + translation.candidates[0].finished
                for translation in translations
            )
            print(
                f"{penalty:>4g} {beam:>5} {metrics['bleu']:>7.2f} {metrics['chrf']:>7.2f} {log_prob:>9.3f} "
                f"{length:>7.2f} {other:>6} {worse:>6} {seconds:>7.1f}"
            )


if __name__ == "__main__":
    main()
