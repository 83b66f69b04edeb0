"""If a recipe uses the name of a setting in another toolkit, the error suggests the recipe key."""

import pytest

from seqloom.config.messages import SYNONYMS, key_paths
from seqloom.core.errors import UsageError
from seqloom.recipes import read_recipe
from seqloom.tasks import names, task_info


@pytest.mark.parametrize(
    ("recipe", "key", "suggestion"),
    [
        ("lm-char-lstm", "batch_size", "batch.size"),
        ("lm-char-lstm", "train.batch_size", "batch.size"),
        ("lm-char-lstm", "batch.train_batch_size", "batch.size"),
        ("translate-multi30k", "batch_size", "batch.tokens"),
        ("lm-char-lstm", "learning_rate", "train.lr"),
        ("lm-char-lstm", "model.learning_rate", "train.lr"),
        ("lm-char-lstm", "train.learning-rate", "train.lr"),
        ("lm-char-lstm", "model.hidden_size", "model.hidden"),
        ("gpt-pydocs", "hidden_size", "model.d_model"),
        ("gpt-pydocs", "model.hidden", "model.d_model"),
        ("lm-char-lstm", "model.d_model", "model.hidden"),
        ("lm-char-lstm", "units", "model.hidden"),
        ("gpt-pydocs", "n_layers", "model.layers"),
        ("translate-multi30k", "num_hidden_layers", "model.encoder_layers or model.decoder_layers"),
        ("classify-sst2-bilstm", "model.num_layers", "model.encoder.layers"),
        ("classify-sst2-transformer", "num_layers", "model.encoder.layers"),
        ("gpt-pydocs", "train.num_attention_heads", "model.heads"),
        ("gpt-pydocs", "model.dropout_rate", "model.dropout"),
        ("lm-char-lstm", "max_steps", "train.steps"),
        ("lm-char-lstm", "train.num_epochs", "train.epochs"),
        ("lm-char-lstm", "gradient_clip_val", "train.clip_norm"),
        ("lm-char-lstm", "train.gradient_accumulation_steps", "train.accumulate_steps"),
        ("lm-char-lstm", "train.warmup_steps", "train.warmup"),
        ("lm-char-lstm", "bptt", "batch.length"),
        ("translate-multi30k", "max_seq_length", "batch.max_length"),
        ("translate-multi30k", "model.vocab_size", "tokenizer.size"),
        ("translate-multi30k", "num_beams", "decode.beam"),
        ("gpt-pydocs", "dim_feedforward", "model.d_ff"),
        ("lm-char-lstm", "model.embedding_dim", "model.embedding"),
        ("gpt-pydocs", "embed_dim", "model.d_model"),
        ("word2vec-pydocs", "embedding_dim", "model.vector_size"),
    ],
)
def test_error_for_a_synonym_suggests_the_recipe_key(recipe: str, key: str, suggestion: str) -> None:
    with pytest.raises(UsageError) as error:
        read_recipe(recipe, [f"{key}=3"])
    _, line = str(error.value).splitlines()
    assert line.strip().startswith(f"{key}: ") and line.endswith(f"; did you mean {suggestion}?")


def test_keys_that_do_not_exist_are_not_suggested() -> None:
    with pytest.raises(UsageError, match=r"heads: no such key; (?!did you mean model)"):
        read_recipe("lm-char-lstm", ["train.num_heads=3"])


def test_every_synonym_names_existing_keys() -> None:
    paths = {path for name in names() for path in key_paths(task_info(name).recipe)}
    assert {target for group in SYNONYMS for target in group.split()} <= paths
