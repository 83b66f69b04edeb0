"""Models on the Hugging Face hub.

Only the files that seqloom reads are downloaded: pickles, code and other weight formats are not. The weights are
downloaded after the configuration has been accepted. huggingface_hub stores all files in its cache and reads the usual
environment variables, such as HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm, validate_repo_id

from seqloom.core.errors import CheckpointError, ResourceError, UsageError
from seqloom.core.files import disk_errors
from seqloom.exchange.directory import CONFIG, GENERATION, INDEX, README, TOKENIZER, WEIGHTS, Directory

DESCRIPTION = (CONFIG, GENERATION, INDEX, README, TOKENIZER, "tokenizer_config.json")
SENTENCE_PIECES = ("vocab.json", "source.spm", "target.spm")  # tokenizer files of a Marian model
SHARDS = "model-*-of-*.safetensors"


class TerminalBar(tqdm):
    """A progress bar that is displayed only in a terminal."""

    def __init__(self, **options: object) -> None:
        super().__init__(**{**options, "disable": None})


class HubDirectory(Directory):
    """The downloaded files of a model on the hub, in a folder named after its commit."""

    @property
    def where(self) -> str:
        return self.model

    @property
    def revision(self) -> str:
        return self.path.name

    def names(self) -> list[str]:
        with hub_errors(self.model, self.revision):
            return sorted(HfApi().list_repo_files(self.model, revision=self.revision))

    def check_weights(self) -> None:
        """Do nothing: the weights are checked after their download."""

    @cached_property
    def files(self) -> list[Path]:
        """The weight files, which are downloaded when they are first needed."""
        download(self.model, self.revision, [CONFIG, WEIGHTS, SHARDS])
        super().check_weights()
        return super().files


def open_source(source: str | Path, revision: str | None = None) -> Directory:
    """Open a local directory or, if there is none, the model with this name on the hub."""
    name = str(source)
    if Path(source).exists() or not is_model_name(name):
        if revision is not None:
            raise UsageError(f"A revision requires the name of a model on the Hugging Face hub; {name} is a path.")
        return Directory.open(source)
    path = download(name, revision, [*DESCRIPTION, *SENTENCE_PIECES])
    if not (path / CONFIG).exists():
        raise CheckpointError(f"{name} cannot be imported: the model on the Hugging Face hub has no {CONFIG}.")
    return HubDirectory.open(path, name)


def is_model_name(name: str) -> bool:
    """Return whether a text can be the full name of a model on the hub, such as openai-community/gpt2."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name


def download(name: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Download the files of a model that match these patterns, and return their folder in the cache."""
    with hub_errors(name, revision):
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), tqdm_class=TerminalBar))


@contextmanager
def hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Convert errors of the hub and of its cache to one-line messages."""
    hub = constants.ENDPOINT
    try:
        yield
    except GatedRepoError as error:
        raise ResourceError(
            f"{name} cannot be downloaded without permission. Accept its conditions on {hub}/{name}, then set HF_TOKEN "
            "to your access token."
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{name} is neither a folder nor a public model on {hub}. Check the name; for a private model, set "
            "HF_TOKEN to your access token."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{name} has no revision {revision} on {hub}. Name a branch, a tag or a commit of the model."
        ) from error
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        cause = error.__cause__ or error
        is_offline = isinstance(cause, OfflineModeIsEnabled)
        reason = "HF_HUB_OFFLINE is set" if is_offline else str(cause).partition("\n")[0].rstrip(".")
        raise ResourceError(
            f"{name} is not a folder, and it cannot be downloaded from {hub} ({reason}). Check the connection, or name "
            "a folder that contains the model."
        ) from error
    except OSError:
        with disk_errors(Path(constants.HF_HUB_CACHE)):
            raise
