"""Error messages for recipes: pydantic finds the problems, and this module describes them.

Pydantic's locations contain labels that are not in the recipe, such as the tag of a union member or the
name of a type. `locate` converts a location to the key path in the recipe and the expected type.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from seqloom.config import ConfigError, to_mapping
from seqloom.config.constraints import (
    BOUNDS,
    Annotation,
    Options,
    field_types,
    item_type,
    join,
    key_of,
    options,
    origin,
    tags,
)
from seqloom.core import Json
from seqloom.core.words import did_you_mean, find_nearest, format_value

NO_SUCH_KEY = "no such key"
CONSTRAINTS = {*BOUNDS, "too_short", "too_long", "string_too_short", "string_too_long"}  # pydantic's error types
PLAIN_TYPES = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    dict: "a section",
}
SYNONYMS = {  # key paths → the names of these settings in other toolkits
    "seed": "random_seed manual_seed random_state",
    "batch.size batch.tokens": "batch_size train_batch_size per_device_train_batch_size max_tokens bsz",
    "batch.eval_size batch.eval_tokens": "eval_batch_size per_device_eval_batch_size",
    "batch.length batch.max_length": "seq_len seq_length sequence_length block_size bptt max_seq_len max_seq_length",
    "decode.beam": "beam_size beam_width num_beams",
    "loss.label_smoothing": "label_smoothing_factor",
    "model.attention_dropout": "attn_dropout attn_pdrop attention_probs_dropout_prob",
    "model.cell": "rnn_type cell_type",
    "model.d_ff": "intermediate_size ffn_dim ffn_embed_dim dim_feedforward n_inner d_inner",
    "model.dropout": "dropout_rate dropout_prob hidden_dropout_prob resid_pdrop",
    "model.embedding model.d_model model.vector_size": "embedding_dim embedding_size embed_dim emb_dim",
    "model.heads": "n_heads n_head nhead num_heads num_attention_heads attention_heads",
    "model.hidden model.d_model": "hidden_size hidden_dim d_hidden n_embd units hidden d_model",
    "model.kv_heads": "n_kv_heads num_kv_heads num_key_value_heads",
    "model.layers model.encoder_layers model.decoder_layers": "n_layers n_layer num_layers num_hidden_layers layers",
    "model.norm_epsilon": "layer_norm_eps layer_norm_epsilon rms_norm_eps",
    "model.tied": "tie_weights tie_word_embeddings",
    "tokenizer.size tokenizer.max_size": "vocab_size vocabulary_size n_vocab",
    "train.accumulate_steps": "gradient_accumulation_steps accumulate_grad_batches update_freq",
    "train.betas": "adam_betas adam_beta1 adam_beta2 beta1 beta2",
    "train.clip_norm": "grad_clip max_grad_norm gradient_clip_val clipnorm",
    "train.epochs": "num_epochs n_epochs max_epochs max_epoch num_train_epochs",
    "train.evaluate_every": "eval_steps eval_interval eval_every val_check_interval",
    "train.gradient_checkpointing": "activation_checkpointing",
    "train.keep_checkpoints": "save_total_limit save_top_k",
    "train.log_every": "logging_steps log_interval log_every_n_steps",
    "train.lr": "learning_rate base_lr",
    "train.optimizer": "optim",
    "train.patience": "early_stopping_patience",
    "train.precision": "fp16 bf16 amp mixed_precision",
    "train.save_every": "save_steps save_interval",
    "train.schedule": "scheduler lr_scheduler lr_scheduler_type",
    "train.steps": "max_steps num_steps n_steps max_iters max_update",
    "train.warmup": "warmup_steps warmup_updates num_warmup_steps",
}


@dataclass(frozen=True)
class ProblemLocation:
    """The location of a problem.

    The fields are the key path, its annotation (None for an unknown key), and the path and values of the section that
    contains the key. If the section has several kinds, the fields include these kinds and the name of the chosen kind.
    """

    path: str
    annotation: Annotation
    section: Annotation
    section_path: str
    section_values: Json
    kinds: Options | None = None
    kind: str = ""

    @property
    def name(self) -> str:
        return self.path or "the top level"


def locate(annotation: Annotation, values: Json, labels: Sequence[int | str]) -> ProblemLocation:
    """Convert the location of a pydantic error, relative to `annotation`, to the location of a key in the recipe."""
    path, section, chosen, kind = "", None, None, ""
    section_path, section_values = "", values
    kinds: Options | None = None
    for label in labels:
        allowed = options(annotation)
        only = allowed.fixed[0] if allowed.fixed else None
        if allowed.kinds is not None or len(allowed.fixed) > 1:
            chosen = allowed.choose(label)
            if chosen is None:
                break
            annotation, kinds, kind = chosen, allowed, str(label)
        elif isinstance(label, int):
            path += f"[{label}]"
            annotation = item_type(only, label)
            values = values[label] if isinstance(values, list) and label < len(values) else None
        elif is_dataclass(only):
            section, section_path, section_values = only, path, values
            values = values.get(label) if isinstance(values, Mapping) else None
            kinds = kinds if section is chosen else None
            path = join(path, label)
            annotation = field_types(section).get(label)
            if annotation is None:
                break
        elif (origin(only) or only) is dict:
            path = join(path, label)
            annotation = (*get_args(only), Any, Any)[1]
        else:
            break
    return ProblemLocation(path, annotation, section, section_path, section_values, kinds, kind)


def describe(annotation: Annotation) -> str:
    """Describe the values of a type; the description completes 'must be …'."""
    allowed = options(annotation)
    words = ["a section"] if allowed.kinds is not None else []
    for member in allowed.fixed:
        kind, arguments = origin(member) or member, get_args(member)
        if is_dataclass(member):
            words.append("a section")
        elif kind is tuple and ... not in arguments and arguments:
            words.append(f"a list of {len(arguments)}")
        elif kind in (tuple, list, set, frozenset):
            words.append("a list")
        elif kind is not Literal:
            words.append(PLAIN_TYPES.get(kind, kind.__name__ if isinstance(kind, type) else str(kind)))
    if choices := literals(allowed):
        listed = ", ".join(choice if isinstance(choice, str) else format_value(choice) for choice in choices)
        words.append(f"one of {listed}" if len(choices) > 1 else listed)
    if allowed.nullable:
        words.append("null")
    return " or ".join(dict.fromkeys(words))


def literals(allowed: Options) -> list[Json]:
    """Format the allowed literal values."""
    return [choice for member in allowed.fixed if origin(member) is Literal for choice in get_args(member)]


def explain(annotation: Annotation, values: Json, errors: Iterable[Mapping[str, Json]]) -> list[str]:
    """Return one distinct line per problem that pydantic found and per broken rule that pydantic did not check."""
    lines: dict[str, None] = {}
    constrained: dict[tuple[str, Annotation], ProblemLocation] = {}  # sections in which values violate constraints
    incomplete = set()  # sections with other problems, whose rules cannot be checked
    for error in errors:
        labels, kind, value = list(error["loc"]), error["type"], error["input"]
        if kind == "missing" and labels and isinstance(labels[-1], int):
            labels.pop()  # if the list is too short, report the list, not the missing entry
        location = locate(annotation, values, labels)
        section = location.section_path, location.section
        if kind in CONSTRAINTS or (kind == "value_error" and not options(location.annotation).is_section):
            constrained.setdefault(section, location)
        else:
            incomplete.add(section)
        if kind in ("value_error", "assertion_error"):  # the message has one line for each problem
            problems = [line.rstrip(".") for line in str(error["ctx"]["error"]).splitlines()]
            lines.update((f"{location.path}: {line}" if location.path else line, None) for line in problems)
        elif location.annotation is None:
            lines[f"{location.path}: {explain_unknown_key(annotation, values, location)}"] = None
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            lines[explain_kind(location, value)] = None
        elif kind == "missing" and isinstance(error["loc"][-1], str):
            lines[f"{location.path}: missing; it must be {describe(location.annotation)}"] = None
        else:
            lines[f"{location.name}: {explain_value(location, kind, value, error.get('ctx', {}))}"] = None
    checked = [location for section, location in constrained.items() if section not in incomplete]
    for location in checked:
        path = location.section_path
        if [other.section_path for other in checked].count(path) == 1:  # otherwise the section is ambiguous
            rules = [rule for rule in broken_rules(location) if not any(line.endswith(f": {rule}") for line in lines)]
            lines.update((f"{path}: {rule}" if path else rule, None) for rule in rules)
    return list(lines)


def broken_rules(location: ProblemLocation) -> list[str]:
    """List the violated rules between the fields of a section whose values have valid types.

    Pydantic does not build a section in which a value violates a constraint, so the rules of that section are not
    checked. This function builds the section with these values and checks the rules.
    """
    values: dict[str, Json] = {}
    for entry in fields(location.section):
        key = key_of(entry.name)
        if not entry.init or key not in location.section_values:
            continue
        value = location.section_values[key]
        try:
            value = TypeAdapter(field_types(location.section)[key]).validate_json(json.dumps(value))
        except ValidationError:
            if isinstance(value, Mapping):
                return []  # the rules may depend on this invalid section
            value = tuple(value) if isinstance(value, list) else value
        values[entry.name] = value
    try:
        location.section(**values)
    except Exception as error:  # any error, because invalid values may make a rule impossible to compute
        problems = error.problems if isinstance(error, ConfigError) else []
        return [line.rstrip(".") for problem in problems for line in problem.splitlines()]
    return []


def explain_value(location: ProblemLocation, kind: str, value: Json, context: Mapping[str, Json]) -> str:
    """Describe the problem of a value."""
    if kind in BOUNDS:
        return (
            f"must be {BOUNDS[kind].words} {format_value(context[BOUNDS[kind].attribute])}; got {format_value(value)}"
        )
    if kind == "finite_number":
        return f"must be a finite number; got {format_value(value)}"
    if kind in ("too_short", "too_long", "string_too_short", "string_too_long"):
        low, high = context.get("min_length"), context.get("max_length")
        bound = f"at least {low}" if low is not None else f"at most {high}"
        return (
            f"must have {bound} {'characters' if kind.startswith('string') else 'entries'}; got {format_value(value)}"
        )
    expected = describe(location.annotation)
    names = [str(choice) for choice in literals(options(location.annotation))]
    close = find_nearest(value, names) if isinstance(value, str) else None
    hint = f"; did you mean {close}?" if close else suggest_kind(location, value)
    if expected == "a string" and isinstance(value, int | float):
        hint = "; put it in quotes"
    return f"must be {expected}; got {format_value(value)}{hint}"


def suggest_kind(location: ProblemLocation, value: Json) -> str:
    """Suggest `positions.kind=learned` for `positions=learned`."""
    allowed = options(location.annotation)
    key = join(location.path, allowed.discriminator or "kind")
    return f"; did you mean {key}={value}?" if value in allowed.names() else ""


def explain_kind(location: ProblemLocation, value: Json) -> str:
    """Describe why a section has no valid kind."""
    if not isinstance(value, Mapping):
        return f"{location.name}: must be a section; got {format_value(value)}{suggest_kind(location, value)}"
    allowed = options(location.annotation)
    name, known = str(allowed.discriminator), allowed.names()
    path = join(location.path, name)
    if name in value:
        close = find_nearest(value[name], known) if isinstance(value[name], str) else None
        hint = f"; did you mean {close}?" if close else ""
        return f"{path}: must be one of {', '.join(known)}; got {format_value(value[name])}{hint}"
    valid = {key for member in allowed.members for key in field_types(member)}
    misspelt = find_nearest(name, [key for key in value if key not in valid])
    if misspelt:
        return f"{join(location.path, misspelt)}: {NO_SUCH_KEY}; did you mean {path}?"
    fitting = [member for member in allowed.members if value.keys() <= field_types(member).keys()]
    if len(fitting) == 1 and value:
        (tag, *_), keys = tags(fitting[0], name), ", ".join(value)
        return f"{path}: missing; {keys} {'belongs' if len(value) == 1 else 'belong'} to {tag}: set {path}={tag} too"
    return f"{path}: missing; it must be one of {', '.join(known)}"


def explain_unknown_key(root: Annotation, values: Json, location: ProblemLocation) -> str:
    """Suggest a valid key for an unknown key: a synonym, a similar key, or the same key of another kind or section."""
    prefix, _, key = location.path.rpartition(".")
    known, kinds = field_types(location.section), location.kinds
    paths = list(dict.fromkeys(key_paths(root, values)))
    suggestions = find_synonyms(key, prefix, paths)
    if not suggestions and (close := find_nearest(key, known)):
        suggestions = [join(prefix, close)]
    if kinds is not None and (name := kinds.discriminator):
        owners = [tag for member in kinds.members if key in field_types(member) for tag in tags(member, name)]
        if owners:
            advice = f"did you mean {' or '.join(suggestions)}?" if suggestions else "leave it out"
            return f"is a key of {name} {' and '.join(owners)}, not of {location.kind}; {advice}"
    suggestions = suggestions or sorted(path for path in paths if path.rpartition(".")[2] == key)
    if suggestions:
        return f"{NO_SUCH_KEY}; did you mean {' or '.join(suggestions)}?"
    return f"{NO_SUCH_KEY}; {did_you_mean(key, known)}"


def find_synonyms(key: str, prefix: str, paths: Sequence[str]) -> list[str]:
    """Return the key paths of a recipe for the setting that other toolkits call `key`.

    Keys of the section that contains `key` come first, and then keys at the smallest depth. For example,
    `model.layers` also matches `model.encoder.layers`.
    """
    word = key.lower().replace("-", "_")
    targets = [target for group, words in SYNONYMS.items() if word in words.split() for target in group.split()]
    matches = []
    for target in targets:
        section, _, name = target.rpartition(".")
        start, end = f"{section}.", f".{name}"
        matches += [path for path in paths if path == target or (path.startswith(start) and path.endswith(end))]
    if beside := [path for path in matches if path.rpartition(".")[0] == prefix]:
        return beside
    return [path for path in matches if path.count(".") == min(match.count(".") for match in matches)]


def key_paths(annotation: Annotation, values: Json = None, prefix: str = "") -> Iterator[str]:
    """Yield the key paths of the kinds that a recipe's values or defaults select, otherwise of all kinds."""
    allowed = options(annotation)
    kind = values.get(allowed.discriminator) if allowed.discriminator and isinstance(values, Mapping) else None
    chosen = allowed.choose(kind) if isinstance(kind, str) else None
    for member in filter(is_dataclass, allowed.members if chosen is None else (chosen,)):
        for entry in fields(member):
            key = key_of(entry.name)
            if not entry.init:
                continue
            value = values.get(key) if isinstance(values, Mapping) else None
            if value is None:
                value = entry.default if entry.default_factory is MISSING else entry.default_factory()
            yield join(prefix, key)
            yield from key_paths(field_types(member)[key], to_mapping(value), join(prefix, key))
