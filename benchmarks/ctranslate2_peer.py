"""CTranslate2 with the weights of a seqloom model, in a separate environment."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.environments import CTRANSLATE2, prepare_environment
from peers.turns import Failed

from seqloom.models.transformer import Transformer

POSITIONS = 512  # number of positions, which exceeds the length of all sentences
SHAPE = ("encoder_layers", "decoder_layers", "heads", "norm_first", "activation", "embed_scale")


class CTranslate2:
    """A process with a seqloom Transformer.

    `workers` translate batches in parallel, each worker with `threads` threads.
    """

    def __init__(self, model: Transformer, threads: int = 2, workers: int = 1, device: str = "cpu") -> None:
        server = str(Path(__file__).parent / "peers" / "ctranslate2_server.py")
        self._process = subprocess.Popen(
            [str(prepare_environment(CTRANSLATE2, torch=False)), server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version: str = self._answer()["version"]
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "weights.npz")
            np.savez(file, **weights_of(model))
            shape = {name: getattr(model.config, name) for name in SHAPE}
            self._ask(weights=file, shape=shape, threads=threads, workers=workers, device=device)

    def translate(self, sources: list[list[int]], **options: Any) -> tuple[list[list[list[int]]], float]:
        """Return the hypotheses of each source without END, and the duration in seconds."""
        answer = self._ask(sources=sources, **options)
        return answer["rows"], answer["seconds"]

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Failed("CTranslate2 stopped")
        answer: dict[str, Any] = json.loads(line)
        return answer


def weights_of(model: Transformer) -> dict[str, np.ndarray]:
    """Return the seqloom weights by name, with the position tables of both sides."""
    config = model.config
    if config.norm != "layer" or config.positions.kind != "sinusoidal" or config.embed_norm or config.kv_heads:
        raise Failed("CTranslate2 needs a model with LayerNorm, sinusoidal positions and a key for every head")
    weights = {name: value.numpy(force=True) for name, value in model.named_parameters()}
    for side in ("source", "target"):
        weights[f"{side}_embed"] = getattr(model, f"{side}_embed").embed.weight.numpy(force=True)
    weights["output.weight"] = model.output.weight.numpy(force=True)
    table = model.source_embed.positions(torch.arange(POSITIONS, device=model.output.weight.device))
    return weights | {"positions": table.float().numpy(force=True)}
