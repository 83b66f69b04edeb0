"""CTranslate2 in a separate environment. This process loads seqloom weights, translates, and reports the time.

`ctranslate2_peer.py` starts the process and exchanges JSON lines with it. The weights are an .npz file with seqloom
names.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec

END = "</s>"
ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu-tanh": common_spec.Activation.GELUTanh,
    "silu": common_spec.Activation.SWISH,
}
Weights = dict[str, np.ndarray]


def spec_of(shape: dict[str, Any], weights: Weights) -> transformer_spec.TransformerSpec:
    """Return the CTranslate2 specification of a seqloom Transformer."""
    spec = transformer_spec.TransformerSpec.from_config(
        (shape["encoder_layers"], shape["decoder_layers"]),
        shape["heads"],
        pre_norm=shape["norm_first"],
        activation=ACTIVATIONS[shape["activation"]],
    )
    for side, name in ((spec.encoder, "source"), (spec.decoder, "target")):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = weights[f"{name}_embed"]
        side.scale_embeddings = shape["embed_scale"]
        side.position_encodings.encodings = weights["positions"]
    for side, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        if shape["norm_first"]:
            norm(side.layer_norm, weights, f"{name}_norm")
        for number, layer in enumerate(side.layer):
            block(layer, weights, f"{name}.{number}")
    spec.decoder.projection.weight, spec.decoder.projection.bias = weights["output.weight"], weights["output.bias"]
    words = [END, "<unk>", *(str(number) for number in range(2, len(weights["output.weight"])))]
    for register in (spec.register_source_vocabulary, spec.register_target_vocabulary):
        register(list(words))
    spec.config.eos_token = spec.config.decoder_start_token = spec.config.bos_token = END
    spec.config.unk_token = "<unk>"
    spec.config.add_source_eos = spec.config.add_source_bos = False
    return spec


def block(layer: Any, weights: Weights, name: str) -> None:
    attention(layer.self_attention, weights, f"{name}.mixer.attention", f"{name}.mixer_residual.norm", both=False)
    if name.startswith("decoder"):
        attention(layer.attention, weights, f"{name}.cross_attention", f"{name}.cross_residual.norm", both=True)
    norm(layer.ffn.layer_norm, weights, f"{name}.feed_forward_residual.norm")
    for theirs, ours in ((layer.ffn.linear_0, "up"), (layer.ffn.linear_1, "down")):
        linear(theirs, weights, f"{name}.feed_forward.{ours}")


def attention(spec: Any, weights: Weights, name: str, normed: str, both: bool) -> None:
    """Set an attention layer. `both` is true for cross-attention."""
    parts = {}
    for part in "qkv":
        parts[part] = common_spec.LinearSpec()
        linear(parts[part], weights, f"{name}.{part}")
    if both:
        spec.linear[0].weight, spec.linear[0].bias = parts["q"].weight, parts["q"].bias
        utils.fuse_linear(spec.linear[1], [parts["k"], parts["v"]])
    else:
        utils.fuse_linear(spec.linear[0], list(parts.values()))
    linear(spec.linear[-1], weights, f"{name}.out")
    norm(spec.layer_norm, weights, normed)


def linear(spec: Any, weights: Weights, name: str) -> None:
    spec.weight, spec.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]


def norm(spec: Any, weights: Weights, name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def translator(order: dict[str, Any]) -> ctranslate2.Translator:
    with np.load(order["weights"], allow_pickle=False) as stored:
        spec = spec_of(order["shape"], dict(stored))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        spec.validate()
        spec.save(str(model))
        return ctranslate2.Translator(
            str(model),
            device=order["device"],
            compute_type="float32",
            inter_threads=order["workers"],
            intra_threads=order["threads"],
        )


def translate(model: ctranslate2.Translator, order: dict[str, Any]) -> dict[str, Any]:
    sources = [[END if token == 0 else str(token) for token in row] for row in order["sources"]]
    start, worked = time.perf_counter(), time.process_time()
    results = model.translate_batch(
        sources,
        max_batch_size=order["batch"],
        beam_size=order["beam"],
        num_hypotheses=order["n_best"],
        length_penalty=order["length_penalty"],
        max_decoding_length=order["max_length"],
        min_decoding_length=order["min_length"],
    )
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    rows = [[[int(token) for token in entry if token != END] for entry in result.hypotheses] for result in results]
    return {"seconds": seconds, "worked": worked, "rows": rows}


def main() -> None:
    model = None
    print(json.dumps({"version": ctranslate2.__version__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "weights" in order:
            model = translator(order)
            answer: dict[str, Any] = {}
        else:
            assert model is not None
            answer = translate(model, order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
