"""A family: how one kind of model stands in a Hugging Face directory.

Its `names` are one table for both directions. Its `read_config` must ask for every key that means
something: a key that nobody asked for, and that is not known to mean nothing, is refused by name,
all of them at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from seqloom.config import ABSENT
from seqloom.core.errors import CheckpointError
from seqloom.core.tokens import CLASSIFY_TEXT, MASK_TEXT, SEPARATE_TEXT
from seqloom.core.words import format_count, format_value
from seqloom.exchange.directory import TOKENIZER, Directory, Json
from seqloom.exchange.tokenizer_files import tokenizer_files
from seqloom.exchange.weights import WeightEntry
from seqloom.text import Imported, Tokenizer
from seqloom.text.base import ForeignTokenizer
from seqloom.text.imported import check_file

SPECIAL_NAMES = (CLASSIFY_TEXT, SEPARATE_TEXT, MASK_TEXT)
# Keys of any config.json that change no number a model computes, by why that is so.
_ASIDE = {
    "who wrote it, and for what": """
        architectures _name_or_path transformers_version model_type finetuning_task tokenizer_class
        transformers.js_config""",
    "weights are read as float32, whatever they were": "dtype torch_dtype",
    "how results are handed over": """
        return_dict use_return_dict output_attentions output_hidden_states use_cache torchscript""",
    "how it is computed, not what": """
        gradient_checkpointing chunk_size_feed_forward use_bfloat16 tf_legacy_loss _attn_implementation
        _attn_implementation_autoset attn_implementation pretraining_tp""",
    "how to generate, which the options of a command say": """
        do_sample temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty max_length min_length
        max_new_tokens length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
        num_return_sequences early_stopping output_scores return_dict_in_generate remove_invalid_values
        exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id forced_eos_token_id
        task_specific_params prefix""",
    "of a classifier's head, which is not read": "id2label label2id num_labels _num_labels problem_type",
    "how weights were drawn": "initializer_range initializer_factor init_std",
}
ASIDE = {key: why for why, keys in _ASIDE.items() for key in keys.split()}
# Keys of any config.json that must be this.
FIXED: Json = {"pruned_heads": {}, "tie_encoder_decoder": False, "cross_attention_hidden_size": None}

MOST, MOST_LAYERS = 1 << 24, 1000  # a number beyond is a mistake, or meant to fill the memory
ACTIVATIONS = {  # theirs → ours; of several names, the first is written
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
C = TypeVar("C")  # our config of a model


@dataclass(frozen=True)
class Ids:
    """Their ids and ours: `order[i]` is theirs of our row i. The first `vocabulary` are tokens of the tokenizer."""

    order: Sequence[int]
    vocabulary: int
    padding: int | None = None  # theirs, where the tokenizer has one

    @classmethod
    def of(cls, tokenizer: Tokenizer, extra: int = 0) -> "Ids":
        """Of an imported tokenizer as it says; of another as they are, with `extra` special rows after them."""
        order: Sequence[int] = range(len(tokenizer) + extra)
        if isinstance(tokenizer, ForeignTokenizer):
            order = tokenizer.order
        return cls(order, len(tokenizer), None if tokenizer.padding is None else order[tokenizer.padding])

    @property
    def rows(self) -> int:
        return len(self.order)

    def ours(self, theirs: int) -> int:
        return self.order.index(theirs)


class Config:
    """A config.json while it is read. Each question marks its key as understood and notes what is wrong with it."""

    def __init__(self, mapping: Mapping[str, Any], where: str) -> None:
        self.mapping, self.where = mapping, where
        self.problems: list[str] = []
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`, which must be what transformers takes where the key is missing."""
        self._asked.add(key)
        return self.mapping.get(key, default)

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        found, most = self.get(key, default), MOST_LAYERS if "layer" in key else MOST
        if type(found) is int and least <= found <= most:
            return found
        rule = f"at most {most}" if type(found) is int and found > most else f"at least {least}"
        self.problem(key, f"must be a whole number of {rule}", found if key in self.mapping else ABSENT)
        return least

    def end(self, rows: int, default: int) -> int:
        """The one token that ends a text, `eos_token_id`."""
        key = "eos_token_id"
        found = self.get(key, default)
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if type(found) is int and 0 <= found < rows:
            return found
        if isinstance(found, list):
            self.problem(key, "must be one token: set it in config.json to the one that your texts end with", found)
        elif not any(problem.startswith("vocab_size ") for problem in self.problems):
            self.problem(key, f"must be one token below vocab_size, {rows}", found)
        return 0

    def real(self, key: str, default: float) -> float:
        found = self.get(key, default)
        if type(found) in (int, float):
            return float(found)
        self.problem(key, "must be a number", found)
        return default

    def flag(self, key: str, default: bool) -> bool:
        found = self.get(key, default)
        if type(found) is bool:
            return found
        self.problem(key, "must be true or false", found)
        return default

    def one_of(self, key: str, values: Mapping[str, Any], default: str) -> Any:
        """What a word means here."""
        found = self.get(key, default)
        if isinstance(found, str) and found in values:
            return values[found]
        self.problem(key, f"must be {' or '.join(values)}", found)
        return values[default]

    def activation(self, key: str, default: str) -> str:
        """Our name of an activation."""
        name: str = self.one_of(key, ACTIVATIONS, default)
        return name

    def token(self, key: str, ids: Ids, theirs: object) -> int | None:
        """Our id of the token that is the value of a key; None for None."""
        if type(theirs) is int and 0 <= theirs < ids.rows:
            return ids.ours(theirs)
        if theirs is not None:
            self.problem(key, f"must be one of {ids.rows} tokens", theirs)
        return None

    def must(self, key: str, *values: Any, default: Any = ABSENT) -> None:
        """The one value, or the few, that there is a place for; `default` where that is another than the first."""
        found = self.get(key, values[0] if default is ABSENT else default)
        if not any(found == value and isinstance(found, bool) == isinstance(value, bool) for value in values):
            self.problem(key, f"must be {' or '.join(map(format_value, values))}", found)

    def aside(self, *keys: str) -> None:
        """Keys that change no number the model computes."""
        self._asked.update(keys)

    def problem(self, key: str, rule: str, found: Any) -> None:
        self.problems.append(f"{key} {rule}; it is {'missing' if found is ABSENT else format_value(found)}")

    def check(self) -> None:
        """Refuse what was found wrong, and every key that nobody asked for."""
        for key, value in FIXED.items():
            self.must(key, value)
        unknown = [key for key in self.mapping if key not in self._asked and key not in ASIDE]
        self.problems += [f"{key} is not known here; it is {format_value(self.mapping[key])}" for key in unknown]
        self.refuse()

    def refuse(self) -> None:
        """What was found wrong so far."""
        lines = list(dict.fromkeys(self.problems))
        if lines:
            head = f"{self.where} asks for what seqloom has not ({format_count(len(lines), 'problem')}):"
            raise CheckpointError("\n  ".join([head, *lines]))


@dataclass(frozen=True)
class ConfigSetting:
    """A value that our config and config.json both have, each under a name of its own."""

    ours: str
    theirs: str
    read: Callable[[Config, str, Any], Any]  # Config.whole, Config.real, Config.flag or Config.activation
    default: Any  # what transformers takes where config.json lacks it, and what is written where ours is None
    written: str | None = None  # the attribute of our config that is written, where it is not `ours`

    def write(self, model: object) -> object:
        """The value of config.json."""
        value = getattr(model, self.written or self.ours)
        if self.read is Config.activation:
            return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == value)
        return self.default if value is None else value


class Family(ABC, Generic[C]):
    """One kind of model, there and here."""

    name: ClassVar[str]  # for people
    model_types: ClassVar[tuple[str, ...]]  # of config.json; the first is what is written
    kind: ClassVar[str]  # of our model
    task: ClassVar[str]  # of the run that comes of it
    architecture: ClassVar[str]  # the class of transformers that reads what is written
    prefix: ClassVar[str] = ""  # of their names; a bare backbone is saved without it
    ignored: ClassVar[tuple[str, ...]] = ()  # patterns of names of tensors that are no weights: masks, positions
    left: ClassVar[tuple[str, ...]] = ()  # likewise of heads for other tasks, which are not read
    extra: ClassVar[int] = 0  # rows of our embedding after the tokenizer's
    parts: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # what may be missing, for people, and our names of it

    settings: ClassVar[tuple[ConfigSetting, ...]] = ()
    fixed: ClassVar[Json] = {}  # values that our config must have
    required: ClassVar[Json] = {}  # values that keys of config.json must have
    aside: ClassVar[str] = ""  # keys of config.json that change no number the model computes
    positions: ClassVar[str]  # the kind of our positions
    grouped: ClassVar[bool] = False  # whether heads may share keys and values, and activations have gates

    def read_config(self, config: Config, ids: Ids) -> Json:
        """The `model` section of a recipe. Problems are noted in `config`, which is checked afterwards."""
        for key, value in self.required.items():
            config.must(key, value)
        config.aside(*self.aside.split())
        settings = {one.ours: one.read(config, one.theirs, one.default) for one in self.settings}
        return {"kind": self.kind, **self.fixed, **settings}

    def write_config(self, model: C, ids: Ids) -> Json:
        """The config.json of a model with this config of ours, `model_type` and `architectures` aside."""
        return {one.theirs: one.write(model) for one in self.settings}

    def architecture_without(self, drawn: Collection[str]) -> str:
        """The class of transformers that reads what is written without these of our tensors."""
        return self.architecture

    def missing(self, drawn: Collection[str], every: Collection[str]) -> list[str]:
        """What these of our tensors are for; `every` are all the model has."""
        found, named = [], set()
        for what, names in self.parts.items():
            own = {name for name in every if name in names or name.rpartition(".")[0] in names}
            if some := own.intersection(drawn):
                found.append(what if some == own else f"a part of {what} ({', '.join(sorted(some))})")
                named |= some
        return found + sorted(set(drawn) - named)

    @abstractmethod
    def specials(self, config: Config, file: Mapping[str, Any]) -> tuple[int, list[int]]:
        """Their ids of END and of [CLS], [SEP], [MASK] if it has these; `file` is the tokenizer.json."""

    def obstacles(self, model: Any) -> Iterator[str]:
        """Yield what of our config this family cannot say: a line each."""
        for name, value in self.fixed.items():
            if getattr(model, name) != value:
                yield f"model.{name} must be {format_value(value)}; it is {format_value(getattr(model, name))}"
        if model.positions.kind != self.positions:
            yield f"model.positions.kind must be {self.positions}; it is {model.positions.kind}"
        if not self.grouped and model.kv_heads not in (None, model.heads):
            yield f"model.kv_heads must be as many as heads; it is {model.kv_heads}"
        if not self.grouped and model.activation not in ACTIVATIONS.values():
            yield f"model.activation must have no gate; it is {model.activation}"

    @abstractmethod
    def names(self, model: C, ids: Ids) -> list[WeightEntry]:
        """Every tensor of a model with this config of ours."""

    def rows(self, config: Config) -> int:
        """How many tokens have a vector."""
        return config.whole("vocab_size")

    def tokenizer(self, directory: Directory, config: Config) -> ForeignTokenizer:
        """The tokenizer.json of the directory, its ids in our order."""
        file, rows = directory.json(TOKENIZER), self.rows(config)
        if file is None:
            raise CheckpointError(
                f"{directory.path} has no {TOKENIZER}. Write one where the model was loaded with transformers: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)."
            )
        try:
            check_file(file)
            end, last = self.specials(config, file)
            return Imported.from_content({"file": file, "end": end, "last": last, "rows": rows})
        except ValueError as error:
            raise CheckpointError(f"{directory.path / TOKENIZER} does not fit the model: {error}.") from error

    def recipe(self, model: C) -> Json:
        """More keys of the recipe of an imported run: how to train it further, say. `model` is our config."""
        return {}

    def decoding(self, directory: Directory) -> Json:
        """The `decode` section of that recipe, where there is one: how the directory says to search."""
        return {}

    def tokenizer_files(self, tokenizer: Tokenizer, model: C) -> Json:
        """The files of the tokenizer of a directory that is written."""
        return tokenizer_files(tokenizer, SPECIAL_NAMES[: self.extra])

    def documents(self, model: C, ids: Ids) -> Json:
        """More files of a directory that is written."""
        return {}


def token_id(file: Mapping[str, Any], name: str) -> int | None:
    """The id of a token in a tokenizer.json, special ones included; None if it has none of this name."""
    for entry in file.get("added_tokens") or ():
        if entry.get("content") == name:
            return int(entry["id"])
    vocabulary = file["model"].get("vocab")
    if isinstance(vocabulary, Mapping):
        found = vocabulary.get(name)
        return found if isinstance(found, int) else None
    pieces = vocabulary if isinstance(vocabulary, list) else []  # each with its score
    return next((id for id, piece in enumerate(pieces) if isinstance(piece, list) and piece[:1] == [name]), None)
