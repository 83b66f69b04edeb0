"""Small random BART and Marian models in directories of `transformers`, and their inputs."""

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from tests.text.small_pairs import ENGLISH, FRENCH
from tests.text.small_sentencepieces import files
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from seqloom.text import END

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
SPARE = 3  # number of embedding rows after those of the tokenizer
LONGEST = 40

# The models cover odd heads, tied weights, activations, start tokens, scaled embeddings, and one and three layers.
SHAPES: dict[str, dict[str, Any]] = {
    "bart-2-heads": {"forced": True},
    "bart-3-heads": {
        "d_model": 18,
        "heads": 3,
        "layers": (1, 2),
        "activation_function": "relu",
        "scale_embedding": True,
    },
    "bart-untied": {
        "d_model": 20,
        "heads": 5,
        "tie_word_embeddings": False,
        "activation_function": "gelu_new",
        "forced": True,
    },
    "bart-1-head": {
        "d_model": 9,
        "heads": 1,
        "layers": (3, 1),
        "ffn": 7,
        "activation_function": "silu",
        "forced": True,
    },
    "bart-begin": {"heads": 4, "decoder_start_token_id": 0, "pad_token_id": 1},
    "marian-2-heads": {"scale_embedding": True, "activation_function": "swish"},
    "marian-3-heads": {"d_model": 18, "heads": 3, "layers": (1, 2), "activation_function": "relu"},
    "marian-two-matrices": {"d_model": 20, "heads": 5, "share_encoder_decoder_embeddings": False},
    "marian-untied": {"d_model": 12, "heads": 1, "tie_word_embeddings": False, "ffn": 7, "scale_embedding": True},
    "marian-7-heads": {"d_model": 14, "heads": 7, "layers": (3, 1), "activation_function": "gelu_new"},
}


def bart_tokenizer(directory: Path) -> int:
    """Write a tokenizer.json that adds <s> and </s>. Return the size of its vocabulary."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([*ENGLISH, *FRENCH], trainer)
    made.add_special_tokens(["<mask>"])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    made.save(str(directory / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(about))
    return made.get_vocab_size()


def write(directory: Path, name: str) -> Any:
    """Write a directory with a random model. Return the model."""
    transformers: Any = importlib.import_module("transformers")

    shape = dict(SHAPES[name])
    directory.mkdir(exist_ok=True)
    heads, ffn, layers = shape.pop("heads", 2), shape.pop("ffn", 24), shape.pop("layers", (2, 2))
    forced = shape.pop("forced", False)
    if bart := name.startswith("bart"):
        rows = bart_tokenizer(directory) + SPARE
        own: dict[str, Any] = {}
    else:
        names = files(directory)
        rows = len(names) + SPARE
        own = {"pad_token_id": names["<pad>"], "decoder_start_token_id": names["<pad>"], "eos_token_id": names["</s>"]}
    both = {"attention_heads": heads, "ffn_dim": ffn}
    config = (transformers.BartConfig if bart else transformers.MarianConfig)(
        vocab_size=rows,
        max_position_embeddings=LONGEST,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in both.items()},
        **{"d_model": 16, **own, **shape},
    )
    torch.manual_seed(7)
    made = (transformers.BartForConditionalGeneration if bart else transformers.MarianMTModel)(config).eval()
    randomize(made)
    made.generation_config.forced_eos_token_id = None
    made.generation_config.num_beams, made.generation_config.length_penalty = 4, 0.8
    if forced:
        made.generation_config.forced_bos_token_id = 0
    if not bart:
        made.generation_config.bad_words_ids = [[names["<pad>"]]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.save_pretrained(directory)
    return made


@torch.no_grad()
def randomize(model: Any) -> None:
    """Enlarge the weights so that every part matters and some texts end."""
    for name, parameter in model.named_parameters():
        if "embed_positions" in name and "marian" in model.config.model_type:
            continue  # sinusoids
        nn.init.uniform_(parameter, *((0.5, 1.5) if "norm" in name and "weight" in name else (-0.5, 0.5)))
    model.final_logits_bias.uniform_(-0.5, 0.5)
    source, mask = sources(model)
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=targets(model)).logits
    end = model.config.eos_token_id
    model.final_logits_bias[:, end] += (logits.max(dim=-1).values - logits[..., end]).mean() + 0.25


def plain(model: Any) -> Tensor:
    """Return the ids of plain tokens."""
    config = model.config
    unwanted = {config.eos_token_id, config.pad_token_id, config.bos_token_id, config.decoder_start_token_id}
    return torch.tensor([id for id in range(config.vocab_size) if id not in unwanted])


def sources(model: Any) -> tuple[Tensor, Tensor]:
    """Return padded sources with special tokens, and the mask."""
    config, lengths = model.config, (7, 3, 5, 2)
    before = [config.bos_token_id] if config.model_type == "bart" else []
    draw, some = torch.Generator().manual_seed(2), plain(model)
    rows = [
        [*before, *some[torch.randint(len(some), (n,), generator=draw)].tolist(), config.eos_token_id] for n in lengths
    ]
    longest = max(map(len, rows))
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return torch.tensor([row + [config.pad_token_id] * (longest - len(row)) for row in rows]), mask


def before_targets(model: Any) -> list[int]:
    forced = model.generation_config.forced_bos_token_id
    return [model.config.decoder_start_token_id, *([] if forced is None else [forced])]


def targets(model: Any, length: int = 9) -> Tensor:
    """Return inputs of their decoder (4, T)."""
    some, before = plain(model), before_targets(model)
    drawn = some[torch.randint(len(some), (4, length), generator=torch.Generator().manual_seed(3))]
    return torch.cat([torch.tensor([before] * 4), drawn], dim=1)


def ours(tokenizer: Any, model: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Return the same inputs for the seqloom model, without the tokens that it adds."""
    source, mask = sources(model)
    drop = int(model.config.model_type == "bart")
    source, mask = source[:, drop:], mask[:, drop:].bool()
    read = targets(model)[:, len(before_targets(model)) :]
    mapped = torch.tensor([tokenizer.from_original_ids(row) for row in read.tolist()])
    inputs = torch.cat([torch.full((4, 1), END), mapped], dim=1)
    return {"tokens": torch.tensor([tokenizer.from_original_ids(row) for row in source.tolist()]), "mask": mask}, inputs
