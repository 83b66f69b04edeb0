"""Hugging Face directories: read without running code, written atomically.

config.json                     description of the model
model.safetensors               weights; or several files with an index in model.safetensors.index.json
tokenizer.json                  tokenizer
tokenizer_config.json, special_tokens_map.json, generation_config.json       read only by `transformers`
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from seqloom.core import Json, JsonObject
from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import new_directory, parse_json, to_json, write_flushed

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
GENERATION, README = "generation_config.json", "README.md"
LICENCE = re.compile(r"(?m)^license: *['\"]?([\w.+-]{1,60})['\"]? *$")  # a line in the metadata of README.md
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OTHER_FORMATS = (".h5", ".msgpack", ".onnx", ".gguf")  # weight formats that are not supported, besides pickles
MAX_NAMED = 4  # maximum number of files named in an error message
PART_NAME = re.compile(r".*-\d+-of-\d+\.safetensors")  # name of one file of sharded weights
# The class of transformers that loads a complete model, by the suffix of its architecture, otherwise by model_type.
CONVERTERS = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "BertModel": "AutoModel",
}
TYPES = {
    "AutoModelForCausalLM": ("gpt2", "llama", "mistral"),
    "AutoModelForMaskedLM": ("bert",),
    "AutoModelForSeq2SeqLM": ("bart", "marian"),
}


@dataclass(frozen=True)
class Directory:
    """An existing directory, checked by `Directory.open`."""

    path: Path
    config: JsonObject
    model: str  # name of the model

    @classmethod
    def open(cls, path: str | Path, model: str | None = None) -> Self:
        """Open a directory; the default name of the model is the name of the directory."""
        path = Path(path)
        if not os.path.isdir(path):
            problem = "is a file" if os.path.exists(path) else "does not exist"
            raise CheckpointError(
                f"{path} {problem}. Name a folder with {CONFIG} and {WEIGHTS}, or a model on the Hugging Face hub as "
                "ORGANIZATION/NAME."
            )
        if not is_file(path / CONFIG):
            raise CheckpointError(f"{path} is not a Hugging Face directory: it has no {CONFIG}.")
        directory = cls(path, _mapping(path / CONFIG), model or path.resolve().name)
        code = _shorten(sorted(file.name for file in path.glob("*.py")))
        configs = (CONFIG, "tokenizer_config.json")
        code += [f"auto_map in {name}" for name in configs if "auto_map" in (directory.json(name) or {})]
        if code:
            raise CheckpointError(
                f"{directory.where} is a model with custom code ({', '.join(code)}). "
                "seqloom never runs code that comes with weights."
            )
        directory.check_weights()
        return directory

    @property
    def where(self) -> str:
        """The name of the directory in error messages."""
        return str(self.path)

    @property
    def revision(self) -> str | None:
        """The commit of a model on the hub."""
        return None

    @property
    def licence(self) -> str | None:
        """The licence stated in the metadata of README.md: lines of YAML between two lines of hyphens."""
        start, *metadata = (self.read(README) if self.has(README) else b"").decode(errors="replace").split("---\n", 2)
        found = LICENCE.search(metadata[0]) if metadata and not start else None
        return None if found is None or found[1] == "other" else found[1]

    def names(self) -> list[str]:
        """Return the names of all files of the model."""
        return sorted(file.name for file in self.path.iterdir())

    def check_weights(self) -> None:
        """Raise an error if the directory has no weights. The error explains which supported files are missing."""
        if self.has(WEIGHTS) or self.has(INDEX):
            return
        files = self.names()
        if pickles := [name for name in files if name.endswith(PICKLES)]:
            raise CheckpointError(
                f"{self.where} has only pickled weights ({', '.join(_shorten(pickles))}), and loading a pickle can run "
                f"any code. If you trust them, convert them to {WEIGHTS} with transformers: "
                f"{conversion_code(self.config)}, and the tokenizer: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(NEW)."
            )
        if parts := [name for name in files if PART_NAME.fullmatch(name)]:
            raise CheckpointError(
                f"{self.where} is incomplete: it has sharded weights ({', '.join(_shorten(parts))}), but {INDEX} is "
                "missing. Download this file, too."
            )
        others = [name for name in files if name.endswith((".safetensors", *OTHER_FORMATS))]
        unsupported = (
            f" ({', '.join(_shorten(others))} {'is' if len(others) == 1 else 'are'} not supported)" if others else ""
        )
        raise CheckpointError(f"{self.where} has no weights: {WEIGHTS} and {INDEX} are missing{unsupported}.")

    def json(self, name: str) -> JsonObject | None:
        """Return the content of a JSON file, or None if it is missing."""
        return _mapping(self.path / name) if self.has(name) else None

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return _read(self.path / name)

    def has(self, name: str) -> bool:
        return is_file(self.path / name)

    @cached_property
    def files(self) -> list[Path]:
        """The weight files, after checking that all exist."""
        if self.has(WEIGHTS):
            return [self.path / WEIGHTS]
        names = sorted(set(self._index().values()))
        if missing := [name for name in names if not is_file(self.path / name)]:
            raise CheckpointError(
                f"{self.path} is incomplete: of {len(names)} weight files, {', '.join(_shorten(missing))} "
                f"{'is' if len(missing) == 1 else 'are'} missing. Download the complete directory."
            )
        return [self.path / name for name in names]

    def _index(self) -> dict[str, str]:
        """Return the file name of each tensor."""
        path = self.path / INDEX
        index = _mapping(path).get("weight_map")
        if not isinstance(index, dict) or not index or not all(isinstance(name, str) for name in index.values()):
            raise CheckpointError(f"{path} is damaged: its weight_map must name a file for each tensor.")
        for name in index.values():
            if Path(name).name != name or "\\" in name or Path(name).suffix != ".safetensors":
                raise CheckpointError(f"{path} names {name!r}, but must name .safetensors files in the same folder.")
        return index

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        tensors = {name: tensor for file in self.files for name, tensor in read_safetensors(file).items()}
        if self.files == [self.path / WEIGHTS]:
            return tensors
        index = self._index()
        if missing := [name for name in index if name not in tensors]:
            raise CheckpointError(f"{self.path} is incomplete: no weight file has {', '.join(_shorten(missing))}.")
        if extra := [name for name in tensors if name not in index]:
            raise CheckpointError(
                f"{self.path / INDEX} does not list these tensors of the weight files: {', '.join(_shorten(extra))}."
            )
        return tensors

    def sha256(self) -> dict[str, str]:
        """Return the SHA-256 hash of each weight file, by name."""
        digests = {}
        for path in self.files:
            with open(path, "rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return digests


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return copies of all tensors of a file, as in `core.files`."""
    try:
        with open(path, "rb"):  # safetensors reports unreadable files as missing
            pass
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: it is not a complete safetensors file ({error}).") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from error


def is_file(path: Path) -> bool:
    """Return whether a file exists. Raise `CheckpointError` if its folder cannot be read."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}).") from error


def _mapping(path: Path) -> JsonObject:
    try:
        content = parse_json(_read(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is not valid JSON ({error}).") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is damaged: it must be a JSON object.")
    return content


def conversion_code(config: Mapping[str, Json]) -> str:
    """Return Python code that converts a model with transformers, including its head."""
    known = {model_type: reader for reader, names in TYPES.items() for model_type in names}
    listed = config.get("architectures")
    names = [name for name in (listed if isinstance(listed, list) else []) if isinstance(name, str)]
    readers = [reader for name in names for ending, reader in CONVERTERS.items() if name.endswith(ending)]
    reader = readers[0] if readers else known.get(str(config.get("model_type")))
    call = "from_pretrained(DIR).save_pretrained(NEW)"
    return f"{call} of the matching AutoModelFor… class" if reader is None else f"{reader}.{call}"


def _shorten(names: list[str]) -> list[str]:
    return [*names[:MAX_NAMED], f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED + 1 else names


def check_new(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} already exists. Choose another path, or delete it first.")


def write_directory(
    path: Path, config: Mapping[str, Json], tensors: Mapping[str, Tensor], documents: Mapping[str, Any | bytes]
) -> None:
    """Write a directory. `documents` contains further files by name, as JSON values or bytes."""
    check_new(path)
    with new_directory(path) as folder:
        for name, content in {CONFIG: dict(config), **documents}.items():
            plain = content if isinstance(content, bytes) else to_json(content).encode()
            write_flushed(folder / name, plain)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_flushed(folder / WEIGHTS, dump_safetensors(weights, {"format": "pt"}))
