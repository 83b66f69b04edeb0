"""A Hugging Face `Trainer` that trains the same model on the batches in WORK, with a gate before each step.

The model is `MarianMTModel`: LayerNorm after each layer, sinusoidal positions, and one embedding matrix for source,
target and output. Its weights correspond to those of the seqloom Transformer. The batches are those of seqloom, so that
both programs read the same tokens with the same padding. With `own` as a second argument, the Trainer creates its
default batches. They have the same mean number of pairs, in random order, padded to the longest pair.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gate import Done, Gate
from torch.utils.data import Dataset, SequentialSampler

PADDING = -100  # label of positions that are ignored


class Batches(Dataset):
    """A dataset whose items are batches."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self._arrays = {name: torch.from_numpy(arrays[name]).long() for name in arrays.files}
        self._count = sum(name.startswith("source-") for name in self._arrays)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        results = {
            name: self._arrays[f"{name}-{number}"]
            for name in ("source", "source_mask", "inputs", "targets", "target_mask")
        }
        return {
            "input_ids": results["source"],
            "attention_mask": results["source_mask"],
            "decoder_input_ids": results["inputs"],
            "labels": results["targets"].masked_fill(results["target_mask"] == 0, PADDING),
        }


class Sentences(Dataset):
    """A dataset of pairs, which contain the tokens of source and target, each with END."""

    def __init__(self, work: Path) -> None:
        sides = ((work / f"train.{side}").read_text().splitlines() for side in ("source", "target"))
        self._pairs = [
            tuple([*(int(word[1:]) for word in line.split()), 0] for line in pair) for pair in zip(*sides, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, number: int) -> tuple[list[int], ...]:
        return self._pairs[number]


def pad_pairs(pairs: list[tuple[list[int], ...]]) -> dict[str, torch.Tensor]:
    """Pad pairs like the data collator of transformers."""
    source, target = (
        torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(pair[side]) for pair in pairs], batch_first=True, padding_value=filler
        )
        for side, filler in ((0, -1), (1, PADDING))
    )
    inputs = torch.nn.functional.pad(target[:, :-1], (1, 0)).clamp(min=0)
    return {
        "input_ids": source.clamp(min=0),
        "attention_mask": (source >= 0).long(),
        "decoder_input_ids": inputs,
        "labels": target,
    }


class CountingTrainer(transformers.Trainer):
    """A Trainer that reports its tokens to the gate. Batches that are given are read in order."""

    gate: Gate

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        self.gate.count(int((inputs["labels"] != PADDING).sum()))
        return super().compute_loss(model, inputs, *rest, **more)

    def _get_train_sampler(self, *rest: Any) -> Any:
        ready_made = isinstance(self.train_dataset, Batches)
        return SequentialSampler(self.train_dataset) if ready_made else super()._get_train_sampler(*rest)


class GateCallback(transformers.TrainerCallback):
    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.gate.arrive()


def model_of(plan: dict[str, Any]) -> Any:
    m = plan["model"]
    sides = {
        f"{side}_{key}": m[name]
        for side in ("encoder", "decoder")
        for key, name in (("ffn_dim", "d_ff"), ("attention_heads", "heads"))
    }
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=m["vocabulary"],
            d_model=m["d_model"],
            encoder_layers=m["encoder_layers"],
            decoder_layers=m["decoder_layers"],
            activation_function="relu",
            dropout=m["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            eos_token_id=0,
            pad_token_id=0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            use_cache=False,
            **sides,
        )
    )


def main(work: Path, own: bool) -> None:
    plan = json.loads((work / "plan.json").read_text())
    gate = Gate(plan["steps"])
    torch.set_num_threads(plan["threads"])
    transformers.logging.set_verbosity_error()
    torch.manual_seed(plan["seed"])
    model = model_of(plan)
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gate.say(package="transformers", version=transformers.__version__, parameters=size, torch=torch.__version__)
    arguments = transformers.TrainingArguments(
        output_dir=str(work / "huggingface"),
        per_device_train_batch_size=plan["pairs_per_step"] if own else 1,  # an item is a batch
        max_steps=plan["most_steps"],
        learning_rate=plan["lr"],
        adam_beta1=plan["betas"][0],
        adam_beta2=plan["betas"][1],
        warmup_steps=plan["warmup"],
        max_grad_norm=plan["clip_norm"],
        label_smoothing_factor=plan["label_smoothing"],
        optim="adamw_torch_fused",
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = CountingTrainer(
        model=model,
        args=arguments,
        train_dataset=Sentences(work) if own else Batches(work / "batches.npz"),
        data_collator=pad_pairs if own else lambda rows: rows[0],
        callbacks=[GateCallback(gate)],
    )
    trainer.gate = gate
    trainer.train()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), own=sys.argv[2:] == ["own"])
    except Done:
        sys.exit()
