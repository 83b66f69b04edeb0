"""The training of Joey NMT with the same kind of model on the sentences in WORK, with a gate before each step.

The sentences consist of the tokens of seqloom, so the vocabulary of Joey NMT is the same except for its four special
tokens. Joey NMT creates its own batches.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gate import Done, Gate
from joeynmt import __version__, training


def configuration(plan: dict[str, Any], work: Path) -> dict[str, Any]:
    m = plan["model"]
    layer = {
        "type": "transformer",
        "num_heads": m["heads"],
        "hidden_size": m["d_model"],
        "ff_size": m["d_ff"],
        "dropout": m["dropout"],
        "layer_norm": "post",
        "embeddings": {"embedding_dim": m["d_model"], "scale": True, "dropout": m["dropout"]},
    }
    side = {"level": "word", "max_length": plan["max_length"], "voc_file": str(work / "vocabulary.txt")}
    return {
        "name": "peer",
        "joeynmt_version": "2.3.0",
        "model_dir": str(work / "joey"),
        "use_cuda": False,
        "random_seed": plan["seed"],
        "data": {
            "train": str(work / "train"),
            "dev": str(work / "dev"),
            "dataset_type": "plain",
            "src": {"lang": "source", **side},
            "trg": {"lang": "target", **side},
        },
        "testing": {},
        "training": {
            "optimizer": "adam",
            "adam_betas": plan["betas"],
            "learning_rate": plan["lr"],
            # The plateau schedule of Joey NMT uses an argument that torch has removed
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 1000,
            "clip_grad_norm": plan["clip_norm"],
            "label_smoothing": plan["label_smoothing"],
            "normalization": "tokens",
            "batch_size": plan["batch_tokens"],
            "batch_type": "token",
            "epochs": 1000,
            "logging_freq": 10,
            "validation_freq": 1_000_000,
        },
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": {"num_layers": m["encoder_layers"], **layer},
            "decoder": {"num_layers": m["decoder_layers"], **layer},
        },
    }


def main(work: Path) -> None:
    plan = json.loads((work / "plan.json").read_text())
    gate = Gate(plan["steps"])
    torch.set_num_threads(plan["threads"])
    (work / "joey").mkdir(exist_ok=True)
    plain = training.TrainManager._train_step

    def gated(self: Any, batch: Any) -> Any:
        size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        gate.say(package="joeynmt", version=__version__, parameters=size, torch=torch.__version__)
        gate.arrive()
        gate.count(int(batch.ntokens))
        return plain(self, batch)

    training.TrainManager._train_step = gated
    training.TrainManager._save_checkpoint = lambda *_: None
    training.train(rank=0, world_size=None, cfg=configuration(plan, work), skip_test=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Done:
        sys.exit()
