"""Beam search compared with CTranslate2 and `generate` of transformers, with the same weights and sentences.

The weights of the seqloom Transformer are copied to CTranslate2 (in a separate environment, see
`peers/environments.py`) and to `MarianMTModel` (Pegasus for pre-norm). All programs translate the same batches of
tokens alternately. The report has sentences per second (medians over rounds with their ranges), the ratios of each
round, and the fraction of translations that equal those of seqloom. Tokenization is not timed. There are two cases:

    fixed     random weights, and all translations have the same length, so that all programs perform the same steps
    trained   the weights of a run; a translation ends at END, at most after 60 tokens. With length penalty 0, the
              stopping rules of the three programs all find the best hypothesis of the beam

A recurrent translator with attention is also measured; the other programs do not support it. On a GPU, the steps of
seqloom are CUDA graphs. The first search of a shape captures these graphs and is reported separately.

    python benchmarks/beam_speed.py                                       fixed, widths 128, 256 and 512
    python benchmarks/beam_speed.py --runs runs/translate-cldr-transformer --fixed 0          trained
    python benchmarks/beam_speed.py --device cuda --widths 128 512
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from peers.options import Parser, count, count_or_none, print_load, result_file, run_main
from peers.turns import Failed, Spread, ratios, table, write_result
from torch import Tensor

from seqloom import accel
from seqloom.decoding.beam import BeamConfig, beam_search, map_batches
from seqloom.decoding.rules import Hypothesis
from seqloom.models.recurrent_seq2seq import RecurrentSeq2SeqConfig
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.predict.loader import load
from seqloom.predict.translate import TranslatorPredictor

MAX_LENGTH = 60
SMALL = ["--widths", "32", "--hidden", "16", "--sentences", "4", "--batch", "2", "--fixed", "5"]  # settings of --smoke
VOCABULARY = 10_000
Rows = list[list[int]]
Batch = dict[str, Tensor]
Search = Callable[[], tuple[Rows, float]]  # the best translation of each source, and the duration in seconds


def random_transformer(width: int, seed: int = 1) -> Transformer:
    """Return a Transformer with random weights: 4 + 4 layers, or 6 + 6 layers from width 512."""
    torch.manual_seed(seed)
    layers = 6 if width >= 512 else 4
    config = TransformerConfig(
        d_model=width, heads=max(4, width // 64), encoder_layers=layers, decoder_layers=layers, tied="all"
    )
    return config.build(VOCABULARY).eval()


def random_recurrent(hidden: int, seed: int = 1) -> Any:
    """Return a model with a bidirectional LSTM encoder and an LSTM decoder with Luong attention."""
    torch.manual_seed(seed)
    return RecurrentSeq2SeqConfig(cell="lstm", hidden=hidden).build(VOCABULARY).eval()


def sentences(count: int, tokens: int, seed: int = 1) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return [[*row, 0] for row in torch.randint(1, VOCABULARY, (count, tokens - 1), generator=generator).tolist()]


def batches(sources: Rows, size: int, device: str = "cpu") -> list[Batch]:
    prepared = []
    for first in range(0, len(sources), size):
        rows = sources[first : first + size]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.arange(longest) < torch.tensor([[len(row)] for row in rows])
        prepared.append({"tokens": tokens.to(device), "mask": mask.to(device)})
    return prepared


def time_search(device: str, search: Callable[[], Rows]) -> tuple[Rows, float]:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    results = search()
    return results, time.perf_counter() - start


def ours(model: Any, sources: Rows, options: Any, fixed: int, graphs: bool = True) -> Search:
    search_options = BeamConfig(
        beam=options.beam, max_length=fixed or MAX_LENGTH, min_length=fixed, length_penalty=1.0 if fixed else 0.0
    )
    prepared = batches(sources, options.batch, options.device)

    def one(batch: Batch) -> list[list[Hypothesis]]:
        search = beam_search if graphs else beam_search.definition
        return search(model, source=batch, options=search_options, end=0)

    def search() -> Rows:
        return [
            row[0].tokens for results in map_batches(one, prepared, torch.device(options.device)) for row in results
        ]

    return lambda: time_search(options.device, search)


def hugging_face(model: Transformer, sources: Rows, options: Any, fixed: int) -> Search:
    from hugging_face import theirs

    other = theirs(model).to(options.device)
    prepared = batches(sources, options.batch, options.device)

    @torch.no_grad()
    def search() -> Rows:
        return [row for batch in prepared for row in generate(other, batch, options.beam, fixed)]

    return lambda: time_search(options.device, search)


def generate(model: Any, batch: Batch, beam: int, fixed: int) -> Rows:
    results = model.generate(
        input_ids=batch["tokens"],
        attention_mask=batch["mask"].long(),
        num_beams=beam,
        length_penalty=1.0 if fixed else 0.0,
        early_stopping=False,
        do_sample=False,
        max_new_tokens=fixed or MAX_LENGTH,
        min_new_tokens=fixed or None,
    )
    # The tokens between two ENDs
    return [row[1 : row.index(0, 1) if 0 in row[1:] else None] for row in results.tolist()]


def ctranslate2(model: Transformer, sources: Rows, options: Any, fixed: int) -> Search:
    """Use the faster of two modes with several cores: one batch with all threads, or one batch per core."""
    from ctranslate2_peer import CTranslate2

    order = {
        "batch": options.batch,
        "beam": options.beam,
        "n_best": 1,
        "length_penalty": 1.0 if fixed else 0.0,
        "max_length": fixed or MAX_LENGTH,
        "min_length": fixed or 1,
    }
    programs = [CTranslate2(model, options.threads, 1, options.device)]
    if options.threads > 1 and len(sources) > options.batch:
        programs.append(CTranslate2(model, 1, options.threads, options.device))

    def search(program: Any) -> tuple[Rows, float]:
        rows, seconds = program.translate(sources, **order)
        return [row[0] for row in rows], seconds

    for program in programs:
        search(program)
    fastest = min(programs, key=lambda program: min(search(program)[1] for _ in range(2)))
    for program in programs:
        if program is not fastest:
            program.close()
    return lambda: search(fastest)


PEERS = {"CTranslate2": ctranslate2, "Hugging Face": hugging_face}


def compare(name: str, model: Any, sources: Rows, fixed: int, options: Any) -> dict[str, Any]:
    """Measure all programs alternately. Return speeds, ratios, and the fraction of equal translations."""
    accel.install()
    model = model.to(options.device)
    programs: dict[str, Search] = {"seqloom": ours(model, sources, options, fixed)}
    if options.device == "cuda":
        programs["seqloom, without CUDA graphs"] = ours(model, sources, options, fixed, graphs=False)
    left_out = {}
    for peer in options.peers if isinstance(model, Transformer) else ():
        try:
            programs[peer] = PEERS[peer](model, sources, options, fixed)
        except (Failed, ImportError) as error:
            left_out[peer] = str(error)
    first = {program: search()[1] for program, search in programs.items()}
    results: dict[str, Rows] = {}
    speeds: dict[str, list[float]] = {program: [] for program in programs}
    for number in range(options.rounds):
        for program in list(programs) if number % 2 == 0 else reversed(programs):
            results[program], seconds = programs[program]()
            speeds[program].append(len(sources) / seconds)
    others = [program for program in programs if program != "seqloom"]
    return {
        "name": name,
        "sentences": len(sources),
        "batch": options.batch,
        "beam": options.beam,
        "tokens": statistics.mean(map(len, results["seqloom"])),
        "first_search_seconds": first["seqloom"],
        "speeds": {program: vars(Spread.of(values)) for program, values in speeds.items()},
        "ratios": {program: vars(ratios(speeds["seqloom"], speeds[program])) for program in others},
        "same": {
            program: statistics.mean(a == b for a, b in zip(results["seqloom"], results[program], strict=True))
            for program in others
        },
        "left_out": left_out,
    }


def format_results(results: Sequence[dict[str, Any]]) -> str:
    rows = []
    for result in results:
        for program, speed in result["speeds"].items():
            ratio = f"{Spread(**result['ratios'][program]).format('.2f')}" if program in result["ratios"] else ""
            same = f"{result['same'][program]:.1%}" if program in result["same"] else ""
            rows.append([result["name"], program, Spread(**speed).format(), ratio, same])
        rows += [[result["name"], program, why, "", ""] for program, why in result["left_out"].items()]
    return table(rows, ["", "", "sentences/s", "seqloom is × as fast", "same"])


def open_runs(options: Any) -> list[tuple[str, Transformer, Rows]]:
    """Yield the name, the model and the sources of each selected run."""
    results = []
    for folder in options.runs:
        translator = load(folder, options.device, TranslatorPredictor)
        task = translator.task()
        pairs = task.corpus.split("dev")[: options.sentences]
        sources = sorted(([*task.tokenizer.encode(pair.source), task.tokenizer.end] for pair in pairs), key=len)
        results.append((Path(folder).name, translator.model, sources))
    return results


def decoding(options: Any) -> dict[str, Any]:
    """Run all selected comparisons. Print and return the results."""
    torch.set_num_threads(options.threads)
    runs, results = open_runs(options), []
    if options.fixed:
        sources = sentences(options.sentences, options.fixed)
        results += [
            compare(f"Transformer {width}", random_transformer(width), sources, options.fixed, options)
            for width in options.widths
        ]
        results += [
            compare(f"LSTM {size}", random_recurrent(size), sources, options.fixed, options) for size in options.hidden
        ]
    results += [compare(name, model, sources, 0, options) for name, model, sources in runs]
    print(format_results(results), flush=True)
    return {"results": results}


def arguments(parser: argparse.ArgumentParser) -> None:
    fixed = "fixed: tokens of each translation (24); 0 to omit this case"
    parser.add_argument("--runs", nargs="*", default=[], metavar="RUN", help="trained: run directories of translators")
    parser.add_argument("--fixed", type=count_or_none, default=24, help=fixed)
    parser.add_argument(
        "--widths", type=count, nargs="*", default=[128, 256, 512], help="fixed: widths of Transformers"
    )
    parser.add_argument("--hidden", type=count, nargs="*", default=[256], help="fixed: widths of recurrent translators")
    parser.add_argument("--sentences", type=count, default=256, help="number of sentences (256)")
    parser.add_argument("--batch", type=count, default=128, help="batch size (128)")
    parser.add_argument("--beam", type=count, default=5, help="beam size (5)")
    parser.add_argument("--rounds", type=count, default=5, help="rounds (5)")
    parser.add_argument("--threads", type=count, default=2, help="CPU threads (2)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="device (cpu)")
    named = f"{', '.join(PEERS)}; default: all; --peers without names: none"
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), metavar="PEER", help=named)
    parser.add_argument("--json", type=result_file, metavar="FILE", help="write all results to this JSON file")


def main() -> None:
    parser = Parser(__doc__)
    arguments(parser)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: there is no GPU")
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads of a CPU"
    print(
        f"{where}, torch {torch.__version__}, {platform.machine()}, {time.strftime('%Y-%m-%d')}: {options.sentences} "
        f"sentences, {options.batch} at a time, beam {options.beam}, fp32; {options.rounds} rounds",
        flush=True,
    )
    print_load(options.threads if options.device == "cpu" else 1)
    print(flush=True)
    write_result(options.json, decoding(options))


if __name__ == "__main__":
    run_main(main)
