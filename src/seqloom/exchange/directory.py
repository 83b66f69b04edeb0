"""A Hugging Face directory on disk: read without running anything in it, written whole or not at all.

config.json                     what the model is
model.safetensors               its weights; or several files, and model.safetensors.index.json says which has what
tokenizer.json                  …
tokenizer_config.json, special_tokens_map.json, generation_config.json       for `transformers` alone
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as dump_safetensors
from torch import Tensor

from seqloom.core.errors import CheckpointError, UsageError
from seqloom.core.files import new_directory, parse_json, to_json, write_flushed

Json = dict[str, Any]  # an object of a JSON file
CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
GENERATION = "generation_config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OTHERS = (".h5", ".msgpack", ".onnx", ".gguf")  # forms of weights that are not read either
NAMED = 4  # files named one by one
PART = re.compile(r".*-\d+-of-\d+\.safetensors")  # of weights in several files
# The class of transformers that reads a whole model, by the suffix of its architecture; of a backbone alone, and
# where nothing is said, by its model_type.
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
    """One that exists. Make it with `Directory.open`, which refuses what should not be touched."""

    path: Path
    config: Json

    @classmethod
    def open(cls, path: str | Path) -> "Directory":
        path = Path(path)
        if not os.path.isdir(path):
            problem = "is a file" if os.path.exists(path) else "does not exist"
            raise CheckpointError(
                f"{path} {problem}. Name the folder that has the model's {CONFIG} and {WEIGHTS}; none is downloaded."
            )
        if not is_file(path / CONFIG):
            raise CheckpointError(f"{path} is no model of Hugging Face: it has no {CONFIG}.")
        found = cls(path, _mapping(path / CONFIG))
        code = _some(sorted(file.name for file in path.glob("*.py")))
        places = [name for name in (CONFIG, "tokenizer_config.json") if "auto_map" in (found.json(name) or {})]
        code += [f"auto_map in {name}" for name in places]
        if code:
            raise CheckpointError(
                f"{path} has code of its own ({', '.join(code)}), which would have to be run to know what the model "
                "is. seqloom runs no code that comes with weights."
            )
        if not found.has(WEIGHTS) and not found.has(INDEX):
            found._explain_missing_weights()
        return found

    def _explain_missing_weights(self) -> NoReturn:
        """Say what there is instead of weights that are read."""
        files = sorted(file.name for file in self.path.iterdir())
        if pickles := [name for name in files if name.endswith(PICKLES)]:
            raise CheckpointError(
                f"{self.path} has its weights as pickles only ({', '.join(_some(pickles))}), and a pickle can run any "
                f"code when it is read. Where you trust them, write them as {WEIGHTS} with transformers: "
                f"{conversion(self.config)}, and the tokenizer: "
                "AutoTokenizer.from_pretrained(DIR).save_pretrained(NEW)."
            )
        if parts := [name for name in files if PART.fullmatch(name)]:
            raise CheckpointError(
                f"{self.path} is incomplete: it has weights in parts ({', '.join(_some(parts))}), and {INDEX}, which "
                "says what is in which, is missing. Download that file, too."
            )
        others = [name for name in files if name.endswith((".safetensors", *OTHERS))]
        there = f" ({', '.join(_some(others))} {'is' if len(others) == 1 else 'are'} not read)" if others else ""
        raise CheckpointError(f"{self.path} has no weights: there is neither {WEIGHTS} nor {INDEX}{there}.")

    def json(self, name: str) -> Json | None:
        """A JSON file of the directory, None if it is not there."""
        return _mapping(self.path / name) if self.has(name) else None

    def read(self, name: str) -> bytes:
        """The content of a file of the directory."""
        return _read(self.path / name)

    def has(self, name: str) -> bool:
        return is_file(self.path / name)

    @cached_property
    def files(self) -> list[Path]:
        """The files of weights, all of which are there."""
        if is_file(self.path / WEIGHTS):
            return [self.path / WEIGHTS]
        names = sorted(set(self._index().values()))
        if missing := [name for name in names if not is_file(self.path / name)]:
            raise CheckpointError(
                f"{self.path} is incomplete: of {len(names)} files of weights {', '.join(_some(missing))} "
                f"{'is' if len(missing) == 1 else 'are'} missing. Download the whole directory."
            )
        return [self.path / name for name in names]

    def _index(self) -> dict[str, str]:
        """Which file has which tensor."""
        path = self.path / INDEX
        found = _mapping(path).get("weight_map")
        if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
            raise CheckpointError(f"{path} is damaged: its weight_map must name a file for each tensor.")
        for name in found.values():
            if Path(name).name != name or "\\" in name or Path(name).suffix != ".safetensors":
                raise CheckpointError(f"{path} names {name!r}; it must be a .safetensors file beside it.")
        return found

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        found = {name: tensor for file in self.files for name, tensor in read_safetensors(file).items()}
        if self.files == [self.path / WEIGHTS]:
            return found
        listed = self._index()
        if lost := [name for name in listed if name not in found]:
            raise CheckpointError(f"{self.path} is incomplete: no file of weights has {', '.join(_some(lost))}.")
        if extra := [name for name in found if name not in listed]:
            raise CheckpointError(f"{self.path / INDEX} does not know {', '.join(_some(extra))}, which its files have.")
        return found

    def sha256(self) -> dict[str, str]:
        """Of each file of weights, by name."""
        digests = {}
        for path in self.files:
            with open(path, "rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        return digests


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Copied to memory of torch's own, as in `core.files`."""
    try:
        with open(path, "rb"):  # safetensors calls missing what it cannot open
            pass
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: it is no whole safetensors file ({error}).") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}).") from error


def is_file(path: Path) -> bool:
    """Whether a file is there; `CheckpointError` if the folder it would be in cannot be searched."""
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


def _mapping(path: Path) -> Json:
    try:
        found = parse_json(_read(path))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is not readable JSON ({error}).") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is damaged: it must be a JSON object.")
    return found


def conversion(config: Mapping[str, Any]) -> str:
    """What writes a model anew with transformers, its head included."""
    known = {model_type: reader for reader, names in TYPES.items() for model_type in names}
    listed = config.get("architectures")
    names = [name for name in (listed if isinstance(listed, list) else []) if isinstance(name, str)]
    readers = [reader for name in names for ending, reader in CONVERTERS.items() if name.endswith(ending)]
    reader = readers[0] if readers else known.get(str(config.get("model_type")))
    call = "from_pretrained(DIR).save_pretrained(NEW)"
    return f"{call} of the AutoModelFor… of its kind" if reader is None else f"{reader}.{call}"


def _some(names: list[str]) -> list[str]:
    return [*names[:NAMED], f"{len(names) - NAMED} more"] if len(names) > NAMED + 1 else names


def refuse_existing(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UsageError(f"{path} exists. Choose another place, or remove it first.")


def write_directory(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], documents: Mapping[str, Any | bytes]
) -> None:
    """`documents` are further files by name, JSON or, as they are, bytes."""
    refuse_existing(path)
    with new_directory(path) as folder:
        for name, content in {CONFIG: dict(config), **documents}.items():
            plain = content if isinstance(content, bytes) else to_json(content).encode()
            write_flushed(folder / name, plain)
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_flushed(folder / WEIGHTS, dump_safetensors(whole, {"format": "pt"}))
