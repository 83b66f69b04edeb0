"""The training that seqloom and its peers share: one small Transformer, one corpus, and the same tokens.

The folder WORK contains the files that the processes read:

    plan.json        the sizes of the model and of the batches, and the settings of training
    run/             a run of seqloom that has not been trained
    batches.npz      the first batches of this run
    train.source …   the same sentences as lines of tokens, for peers that create their own batches; vocabulary.txt
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peers.environments import HUGGING_FACE, JOEY, Peer, prepare_environment
from peers.turns import Contender, Failed, Spread, ratios, table, take_turns
from torch import Tensor

from seqloom.data.batching import Ragged
from seqloom.recipes import read_recipe
from seqloom.training import begin

HERE = Path(__file__).resolve().parent
TINY = [
    "tokenizer.size=8000",
    "batch.tokens=4096",
    "model.d_model=128",
    "model.heads=4",
    "model.encoder_layers=4",
    "model.decoder_layers=4",
    "model.d_ff=512",
    "model.dropout=0.3",
    "model.tied=all",
    "model.norm_first=false",
    "loss.label_smoothing=0.1",
    "loss.consistency=0",
    "train.schedule=constant",
    "train.lr=5e-4",
    "train.warmup=0",
    "train.precision=fp32",
]


@dataclass(frozen=True)
class PeerTraining:
    title: str
    peer: Peer
    script: str
    arguments: tuple[str, ...] = ()  # arguments of the script after WORK


PEERS = {
    "huggingface": PeerTraining("Hugging Face Trainer, our batches", HUGGING_FACE, "train_huggingface.py"),
    "huggingface-own": PeerTraining("Hugging Face Trainer, its own", HUGGING_FACE, "train_huggingface.py", ("own",)),
    "joeynmt": PeerTraining("Joey NMT, its own", JOEY, "train_joeynmt.py"),
}


def write_work(work: Path, recipe_name: str, overrides: Sequence[str], steps: int, rounds: int, threads: int) -> Any:
    """Write WORK, and return the plan."""
    _, recipe = read_recipe(recipe_name, [*TINY, *overrides, "train.device=cpu"])
    training = begin(recipe, work / "run")
    task, m = training.task, recipe.model
    selected = (rounds + 1) * steps + 1
    plan = {
        "steps": steps,
        "most_steps": selected,
        "threads": threads,
        "seed": recipe.seed,
        "batch_tokens": recipe.batch.tokens,
        "max_length": recipe.batch.max_length,
        "pairs_per_step": round(len(task.batches.pairs) / task.steps_per_epoch()),
        "tokens_per_step": task.tokens_per_step(),
        "padding": task.batches.padding(),
        "corpus": task.corpus.description,
        "lr": recipe.train.lr,
        "betas": list(recipe.train.betas),
        "clip_norm": recipe.train.clip_norm,
        "warmup": recipe.train.warmup,
        "label_smoothing": recipe.loss.label_smoothing,
        "model": {
            "vocabulary": len(task.tokenizer),
            "d_model": m.d_model,
            "heads": m.heads,
            "d_ff": m.feed_forward_size,
            "encoder_layers": m.encoder_layers,
            "decoder_layers": m.decoder_layers,
            "dropout": m.dropout,
        },
    }
    arrays = {
        f"{name}-{step}": value.numpy()
        for step in range(selected)
        for name, value in task.batch(recipe.seed, step).items()
        if isinstance(value, Tensor)
    }
    np.savez(work / "batches.npz", **arrays)
    for split in ("train", "dev"):
        for side in ("source", "target"):
            (work / f"{split}.{side}").write_text(_lines(task.side_tokens(split, side)))
    (work / "vocabulary.txt").write_text("\n".join(_word(number) for number in range(1, len(task.tokenizer))))
    (work / "plan.json").write_text(json.dumps(plan, indent=2))
    return plan


def _word(token: int) -> str:
    return f"t{token}"


def _lines(side: Ragged) -> str:
    """Return the tokens of each text without END, because Joey NMT adds END."""
    ends = side.starts[1:] - 1
    rows = (side.ids[start:end] for start, end in zip(side.starts[:-1], ends, strict=True))
    return "".join(" ".join(map(_word, row.tolist())) + "\n" for row in rows)


def compare(work: Path, plan: Mapping[str, Any], names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure seqloom and its peers alternately. Return the results, and the reasons why peers failed."""
    commands = {"seqloom": [sys.executable, str(HERE / "train_seqloom.py"), str(work)]}
    missing: dict[str, str] = {}
    for peer_training in (PEERS[name] for name in names):
        try:
            commands[peer_training.title] = [
                str(prepare_environment(peer_training.peer)),
                str(HERE / peer_training.script),
                str(work),
                *peer_training.arguments,
            ]
        except Failed as reason:
            missing[peer_training.title] = str(reason)
    contenders: list[Contender] = []
    try:
        for name, command in commands.items():
            try:
                log = work / f"{name.replace(' ', '-').replace(',', '')}.log"
                contenders.append(Contender.start(name, command, log, plan["threads"]))
            except Failed as reason:
                missing[name] = str(reason)
        if "seqloom" in missing:
            raise Failed(missing["seqloom"])
        take_turns(contenders, rounds)
    finally:
        for contender in contenders:
            contender.stop()
    ours = next(entry.speeds for entry in contenders if entry.name == "seqloom")
    results = {
        entry.name: {**entry.facts, "tokens_per_second": entry.speeds, "ratio": vars(ratios(ours, entry.speeds))}
        for entry in contenders
    }
    return {"plan": dict(plan), "found": results, "missing": missing}


def format_result(result: Mapping[str, Any]) -> str:
    plan = result["plan"]
    m = plan["model"]
    head = (
        f"Training a Transformer: width {m['d_model']}, {m['encoder_layers']}+{m['decoder_layers']} layers, d_ff "
        f"{m['d_ff']}, vocabulary {m['vocabulary']:,}, dropout {m['dropout']}; {plan['corpus']}; batches of "
        f"{plan['batch_tokens']:,} tokens, {plan['tokens_per_step']:,.0f} of the target on average"
    )
    rows = [
        [
            f"{name} {entry['version']}",
            f"{entry['parameters']:,}",
            Spread.of(entry["tokens_per_second"]).format(),
            "" if name == "seqloom" else Spread(**entry["ratio"]).format(".2f"),
        ]
        for name, entry in result["found"].items()
    ]
    lines = [head, table(rows, ["", "parameters", "target tokens/s", "seqloom is × as fast"])]
    lines += [f"  {name}: {reason}" for name, reason in result["missing"].items()]
    return "\n".join(lines)
