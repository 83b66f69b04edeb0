"""Families: kinds of models in Hugging Face directories.

`weight_table` is one table for import and export. `read_config` must read every key that affects results. One error
reports all keys that are neither read nor known to have no effect.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from seqloom.config import ABSENT
from seqloom.core import Json, JsonObject
from seqloom.core.errors import CheckpointError
from seqloom.core.tokens import CLASSIFY_TEXT, MASK_TEXT, SEPARATE_TEXT
from seqloom.core.words import format_count, format_value
from seqloom.exchange.directory import TOKENIZER, Directory
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.exchange.weights import WeightEntry
from seqloom.text import Imported, Tokenizer
from seqloom.text.base import ForeignTokenizer
from seqloom.text.imported import check_file

SPECIAL_NAMES = (CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT)
# Keys of config.json without an effect on the outputs of a model, grouped by reason.
_IGNORED_KEYS = {
    "metadata": """
        architectures _name_or_path transformers_version model_type finetuning_task tokenizer_class
        transformers.js_config""",
    "weights are always read as float32": "dtype torch_dtype",
    "format of outputs": """
        return_dict use_return_dict output_attentions output_hidden_states use_cache torchscript""",
    "implementation": """
        gradient_checkpointing chunk_size_feed_forward use_bfloat16 tf_legacy_loss _attn_implementation
        _attn_implementation_autoset attn_implementation pretraining_tp""",
    "keys of generation, which has separate options": """
        do_sample temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty max_length min_length
        max_new_tokens length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
        num_return_sequences early_stopping output_scores return_dict_in_generate remove_invalid_values
        exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id
        task_specific_params prefix""",
    "classification head, which is not imported": "id2label label2id num_labels _num_labels problem_type",
    "initialization": "initializer_range initializer_factor init_std",
}
IGNORED_KEYS = {key: reason for reason, keys in _IGNORED_KEYS.items() for key in keys.split()}
# Required values in config.json.
FIXED: JsonObject = {"pruned_heads": {}, "tie_encoder_decoder": False, "cross_attention_hidden_size": None}

MAX_SIZE, MAX_LAYERS = 1 << 24, 1000  # limits; larger numbers are mistakes, or attacks that exhaust memory
ACTIVATIONS = {  # name in transformers → name in seqloom; of several names for one activation, the first is exported
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
C = TypeVar("C")  # the model config of seqloom


@dataclass(frozen=True)
class Ids:
    """The token ids of a directory: `order[i]` is the id, in the directory, of the token with the seqloom id i.

    The first `vocabulary` ids belong to the tokenizer.
    """

    order: Sequence[int]
    vocabulary: int
    padding: int | None = None  # the id in the directory, if the tokenizer has padding

    @classmethod
    def of(cls, tokenizer: Tokenizer, extra: int = 0) -> "Ids":
        """Return the order of an imported tokenizer, or the identity with `extra` special rows at the end."""
        order: Sequence[int] = range(len(tokenizer) + extra)
        if isinstance(tokenizer, ForeignTokenizer):
            order = tokenizer.order
        return cls(order, len(tokenizer), None if tokenizer.padding is None else order[tokenizer.padding])

    @property
    def rows(self) -> int:
        return len(self.order)

    def to_ours(self, theirs: int) -> int:
        return self.order.index(theirs)


class Config:
    """A config.json that is being read. Each method marks the keys that it reads and collects problems."""

    def __init__(self, mapping: Mapping[str, Json], where: str) -> None:
        self.mapping, self.where = mapping, where
        self.problems: list[str] = []
        self._read_keys: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`, which must be the default of transformers."""
        self._read_keys.add(key)
        return self.mapping.get(key, default)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Read an integer."""
        value, most = self.get(key, default), MAX_LAYERS if "layer" in key else MAX_SIZE
        if type(value) is int and least <= value <= most:
            return value
        rule = f"at most {most}" if type(value) is int and value > most else f"at least {least}"
        self.problem(key, f"must be an integer of {rule}", value if key in self.mapping else ABSENT)
        return least

    def end_token(self, rows: int, default: int) -> int:
        """Read `eos_token_id`, which must be a single token."""
        key = "eos_token_id"
        value = self.get(key, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is int and 0 <= value < rows:
            return value
        if isinstance(value, list):
            self.problem(key, "must be a single token: edit config.json to keep the token that ends your texts", value)
        elif not any(problem.startswith("vocab_size ") for problem in self.problems):
            self.problem(key, f"must be a single token id below vocab_size, {rows}", value)
        return 0

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if type(value) in (int, float):
            return float(value)
        self.problem(key, "must be a number", value)
        return default

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if type(value) is bool:
            return value
        self.problem(key, "must be true or false", value)
        return default

    def one_of(self, key: str, values: Mapping[str, Json], default: str) -> Any:
        """Read a string and return its value in `values`."""
        value = self.get(key, default)
        if isinstance(value, str) and value in values:
            return values[value]
        self.problem(key, f"must be {' or '.join(values)}", value)
        return values[default]

    def activation(self, key: str, default: str) -> str:
        """Read the name of an activation function and return its name in seqloom."""
        name: str = self.one_of(key, ACTIVATIONS, default)
        return name

    def token(self, key: str, ids: Ids, theirs: object) -> int | None:
        """Return the seqloom id of the token that is the value of a key, or None if the value is None."""
        if type(theirs) is int and 0 <= theirs < ids.rows:
            return ids.to_ours(theirs)
        if theirs is not None:
            self.problem(key, f"must be a token id below {ids.rows}", theirs)
        return None

    def require(self, key: str, *values: Any, default: Any = ABSENT) -> None:
        """Check that a key has one of `values`. A missing key has the value `default`, or the first of `values`."""
        value = self.get(key, values[0] if default is ABSENT else default)
        if not any(value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in values):
            self.problem(key, f"must be {' or '.join(map(format_value, values))}", value)

    def ignore(self, *keys: str) -> None:
        """Mark keys that have no effect on outputs as read."""
        self._read_keys.update(keys)

    def problem(self, key: str, rule: str, value: Any) -> None:
        self.problems.append(f"{key} {rule}; it is {'missing' if value is ABSENT else format_value(value)}")

    def check(self) -> None:
        """Raise an error for all problems and unread keys."""
        for key, value in FIXED.items():
            self.require(key, value)
        unknown = [key for key in self.mapping if key not in self._read_keys and key not in IGNORED_KEYS]
        self.problems += [f"{key} is unknown; it is {format_value(self.mapping[key])}" for key in unknown]
        self.raise_problems()

    def raise_problems(self) -> None:
        """Raise an error if there are problems."""
        lines = list(dict.fromkeys(self.problems))
        if lines:
            head = f"{self.where} is not supported by seqloom ({format_count(len(lines), 'problem')}):"
            raise CheckpointError("\n  ".join([head, *lines]))


@dataclass(frozen=True)
class ConfigSetting:
    """A key of a seqloom model config and the corresponding key of config.json."""

    ours: str
    theirs: str
    read: Callable[[Config, str, Any], Any]  # the method of Config that reads it
    default: Any  # the default of transformers; also exported if the seqloom value is None
    attribute: str | None = None  # the exported attribute of the seqloom config, if its name is not `ours`

    def write(self, model: object) -> object:
        """Return the value to write to config.json."""
        value = getattr(model, self.attribute or self.ours)
        if self.read is Config.activation:
            return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == value)
        return self.default if value is None else value


class Family(ABC, Generic[C]):
    """A kind of model in `transformers` and in seqloom."""

    name: ClassVar[str]  # name in messages
    model_types: ClassVar[tuple[str, ...]]  # values of model_type in config.json; the first is exported
    kind: ClassVar[str]  # kind of the seqloom model
    task: ClassVar[str]  # task of imported runs
    architecture: ClassVar[str]  # class of transformers that loads exported models
    prefix: ClassVar[str] = ""  # prefix of the tensor names in `transformers`; a backbone is saved without it
    ignored_tensors: ClassVar[tuple[str, ...]] = ()  # patterns of tensors that are not weights, such as masks
    unused_tensors: ClassVar[tuple[str, ...]] = ()  # patterns of tensors of other heads, which are not imported
    extra: ClassVar[int] = 0  # number of rows of the seqloom embedding after those of the tokenizer
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # optional parts: description, and tensor names in seqloom

    settings: ClassVar[tuple[ConfigSetting, ...]] = ()
    fixed: ClassVar[JsonObject] = {}  # required values of the seqloom config
    required: ClassVar[JsonObject] = {}  # required values of config.json
    ignored_keys: ClassVar[str] = ""  # keys of config.json without an effect on outputs
    positions: ClassVar[str]  # kind of positions in seqloom
    grouped: ClassVar[bool] = False  # whether grouped key–value heads and gated activations are allowed

    def read_config(self, config: Config, ids: Ids) -> JsonObject:
        """Return the section `model` of a recipe. Problems are collected in `config`, which is checked afterwards."""
        for key, value in self.required.items():
            config.require(key, value)
        config.ignore(*self.ignored_keys.split())
        settings = {entry.ours: entry.read(config, entry.theirs, entry.default) for entry in self.settings}
        return {"kind": self.kind, **self.fixed, **settings}

    def write_config(self, model: C, ids: Ids) -> JsonObject:
        """Return config.json for a model config, without `model_type` and `architectures`."""
        return {entry.theirs: entry.write(model) for entry in self.settings}

    def architecture_without(self, initialized: Collection[str]) -> str:
        """Return the `transformers` class to export to if the tensors `initialized` are left out."""
        return self.architecture

    def missing(self, initialized: Collection[str], every: Collection[str]) -> list[str]:
        """Describe the parts of the model that contain the tensors `initialized`; `every` lists all tensors."""
        descriptions, described = [], set()
        for part, names in self.parts.items():
            tensors = {name for name in every if name in names or name.rpartition(".")[0] in names}
            if some := tensors.intersection(initialized):
                descriptions.append(part if some == tensors else f"a part of {part} ({', '.join(sorted(some))})")
                described |= some
        return descriptions + sorted(set(initialized) - described)

    @abstractmethod
    def special_ids(self, config: Config, file: Mapping[str, Json]) -> tuple[int, list[int]]:
        """Return the ids of END and, if present, of [CLS], [SEP] and [MASK] in the tokenizer.json `file`."""

    def obstacles(self, model: Any) -> Iterator[str]:
        """Yield the reasons why this family cannot represent a model config."""
        for name, value in self.fixed.items():
            if getattr(model, name) != value:
                yield f"model.{name} must be {format_value(value)}; it is {format_value(getattr(model, name))}"
        if model.positions.kind != self.positions:
            yield f"model.positions.kind must be {self.positions}; it is {model.positions.kind}"
        if not self.grouped and model.kv_heads not in (None, model.heads):
            yield f"model.kv_heads must equal heads; it is {model.kv_heads}"
        if not self.grouped and model.activation not in ACTIVATIONS.values():
            yield f"model.activation must have no gate; it is {model.activation}"

    @abstractmethod
    def weight_table(self, model: C, ids: Ids) -> list[WeightEntry]:
        """Return the entries of all tensors of a model with this config."""

    def rows(self, config: Config) -> int:
        """Return the number of token embeddings."""
        return config.integer("vocab_size")

    def read_tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        """Read the tokenizer.json of a directory, with ids in the order of seqloom."""
        file, rows = directory.json(TOKENIZER), self.rows(config)
        if file is None:
            raise CheckpointError(
                f"{directory.path} has no {TOKENIZER}. Create it with transformers: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
            )
        try:
            check_file(file)
            end, last = self.special_ids(config, file)
            return Imported.from_content({"file": file, "end": end, "last": last, "rows": rows})
        except ValueError as error:
            raise CheckpointError(f"{directory.path / TOKENIZER} does not match the model: {error}.") from error

    def recipe_keys(self, model: C) -> JsonObject:
        """Return further keys for the recipe of an imported run; `model` is the model config."""
        return {}

    def decoding(self, directory: Directory) -> JsonObject:
        """Return the section `decode` for the recipe of an imported run, if any."""
        return {}

    def tokenizer_files(self, tokenizer: Tokenizer, model: C) -> JsonObject:
        """Return the files of an exported tokenizer."""
        return tokenizer_files(tokenizer, SPECIAL_NAMES[: self.extra])

    def extra_files(self, model: C, ids: Ids) -> JsonObject:
        """Return further files of an exported directory."""
        return {}


def token_id(file: Mapping[str, Json], name: str) -> int | None:
    """Return the id of a token or special token in a tokenizer.json, or None if the token is missing."""
    for entry in file.get("added_tokens") or ():
        if entry.get("content") == name:
            return int(entry["id"])
    vocabulary = file["model"].get("vocab")
    if isinstance(vocabulary, Mapping):
        index = vocabulary.get(name)
        return index if isinstance(index, int) else None
    pieces = vocabulary if isinstance(vocabulary, list) else []  # a list has pairs of piece and score
    return next((id for id, piece in enumerate(pieces) if isinstance(piece, list) and piece[:1] == [name]), None)
