"""The base class of estimators: training on examples in memory, storage, and the conventions of scikit-learn."""

import inspect
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from seqloom.config import load_yaml
from seqloom.core import Json
from seqloom.core.device import choose_device
from seqloom.core.errors import CheckpointError, DataError, UsageError
from seqloom.core.files import parse_json, to_json, write_atomic
from seqloom.core.inputs import check_texts
from seqloom.core.notebook import description_html
from seqloom.core.words import did_you_mean, shorten
from seqloom.data.detect import detect
from seqloom.data.detected import Detected
from seqloom.data.files import use_encoding
from seqloom.data.table_profile import NamedColumns
from seqloom.data.tables import find_encoding
from seqloom.inspect.picture import Picture
from seqloom.predict.loader import load
from seqloom.predict.results import Metrics
from seqloom.recipes.drafts import Request, draft_recipe
from seqloom.runs.layout import ESTIMATOR_FILE, is_missing, read_run_file
from seqloom.training import train_recipe

T = TypeVar("T")
MIN_EXAMPLES = 2  # one example for training, and one for validation


@dataclass(frozen=True)
class Examples:
    """Examples in the format of a corpus: the section `data` of a recipe, and the content of its file or folder."""

    data: Mapping[str, object]
    extension: str  # extension of the file, or "" for a folder
    content: str | Mapping[str, str | bytes]  # content of the file, or content of each file of a folder by name
    count: int  # number of examples
    path_key: str = "train"  # the key of the path in the section `data`
    table: str = ""  # name of the file in a folder that the section `data` names; "" names the folder

    def write(self, folder: Path) -> Path:
        """Write the examples and return the path of the file or folder."""
        path = folder / f"examples{self.extension}"
        if isinstance(self.content, str):
            path.write_text(self.content, encoding="utf-8", newline="\n")
            return path
        path.mkdir()
        for name, content in self.content.items():
            (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return path / self.table


def name_columns(column: str | Sequence[str], label: str | None) -> NamedColumns:
    """Return the columns of a table that an argument names: one column or several columns."""
    return NamedColumns((column,) if isinstance(column, str) else tuple(column), label)


def json_lines(**columns: Sequence[object]) -> str:
    """Return columns of equal length as JSON Lines."""
    rows = zip(*columns.values(), strict=True)
    return "".join(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)


@contextmanager
def value_errors(path: Path | None = None) -> Iterator[None]:
    """Convert errors about arguments to ValueError; messages refer to the examples as "the data", not as `path`."""
    try:
        yield
    except (UsageError, DataError) as error:
        message = " ".join(str(error).split("\n"))
        for name in () if path is None else (str(path), path.name):
            message = message.replace(name, "the data")
        raise ValueError(message) from error


def run_path(source: Any) -> Path:
    """Return the path of a run; `source` is its path, a loaded model or a trained estimator."""
    source = getattr(source, "predictor", source)
    if hasattr(source, "run"):
        return Path(source.run.path)
    if not isinstance(source, str | Path):
        raise TypeError(f"pretrained must be the path of a run or a loaded model; got {type(source).__name__}")
    if not (Path(source) / "recipe.yaml").is_file():
        raise ValueError(f"pretrained must be a run; got {str(source)!r}: import a model with seqloom.import_hf first")
    return Path(source)


class Estimator(Picture):
    """A model that is untrained, trained by `fit`, or loaded from a run.

    Args:
        model: a model of `seqloom init --model`, such as bilstm or transformer; None chooses a model that
            suits the amount of data and the device.
        pretrained: the run or the loaded model to fine-tune, or None.
        out: the run directory; None uses a temporary directory until `save`.
        overrides: changes to the recipe, such as "train.epochs=3".
        seed: the random seed.
        device: auto, cpu, cuda or mps.
        progress: whether `fit` displays the progress; None displays it in a notebook or a terminal.
    """

    tasks: ClassVar[tuple[str, ...]]  # tasks of runs that `load` accepts; `fit` trains the first task

    def __init__(
        self,
        model: str | None = None,
        *,
        pretrained: Any = None,
        out: str | Path | None = None,
        overrides: Sequence[str] = (),
        seed: int = 1,
        device: str = "auto",
        progress: bool | None = None,
    ) -> None:
        self.model, self.pretrained, self.out, self.overrides = model, pretrained, out, overrides
        self.seed, self.device, self.progress = seed, device, progress

    # --- training and storage ---------------------------------------------------------------------------------------

    def fit_file(
        self, path: str | Path, *, column: str | Sequence[str] = (), label: str | None = None, validation: float = 0.1
    ) -> Self:
        """Train on a file or folder that `seqloom init` can read, such as .csv, .conll, .tmx, or a folder of texts.

        `column` names the columns of a table that the model reads, and `label` the column of the labels.
        """
        self._check_settings(validation)
        path = Path(path).expanduser().absolute()
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        with value_errors():
            encoding = find_encoding(path)
            with use_encoding(encoding):
                detected = detect([path], self.tasks[0], name_columns(column, label))
            return self._train_on(detected, path, encoding, validation, self._folders()[1])

    def _train(self, examples: Examples, validation: float) -> Self:
        """Write the examples, and train on them."""
        self._check_settings(validation)
        if examples.count < MIN_EXAMPLES:
            raise ValueError(f"fit needs at least {MIN_EXAMPLES} examples, one for validation; got {examples.count}")
        folder, run = self._folders()
        file = examples.write(folder)
        detected = Detected(self.tasks[0], {**examples.data, examples.path_key: str(file)}, "")
        with value_errors(file):
            return self._train_on(detected, file, "utf-8", validation, run)

    def _check_settings(self, validation: float) -> None:
        """Raise TypeError or ValueError for invalid arguments of the constructor, or an invalid fraction."""
        if isinstance(validation, bool) or not isinstance(validation, int | float) or not 0 < validation < 1:
            raise ValueError(f"validation must be a fraction of the data, between 0 and 1; got {validation!r}")
        if self.model is not None and not isinstance(self.model, str):
            raise TypeError(f"model must be a name such as 'bilstm'; got {type(self.model).__name__}")
        check_texts(self.overrides, "overrides")
        if self.pretrained is not None:
            run_path(self.pretrained)

    def _train_on(self, detected: Detected, file: Path, encoding: str, validation: float, run: Path) -> Self:
        """Train the recipe that `seqloom init` would write."""
        detected = replace(detected, data={**detected.data, "dev_fraction": validation, "test_fraction": 0.0})
        pretrained = None if self.pretrained is None else run_path(self.pretrained)
        request = Request([file], model=self.model, pretrained=pretrained, device=choose_device(self.device).type)
        recipe = load_yaml(draft_recipe(detected, request, encoding, run.name, "recipe.yaml").recipe)
        recipe["seed"] = self.seed
        if "device" in recipe.get("train", {}):
            recipe["train"]["device"] = self.device
        self.predictor_ = train_recipe(recipe, *self.overrides, out=run, progress=self.progress)
        return self

    def _folders(self) -> tuple[Path, Path]:
        """Create a folder for the examples; return its path and the path of the run."""
        if self.out is None:
            folder = Path(tempfile.mkdtemp(prefix="seqloom-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # the folder is removed with this object
            return folder, folder / "run"
        run = Path(self.out)
        folder = run.with_name(f"{run.name}-data").absolute()
        for path in (run, folder):
            if path.exists():
                raise FileExistsError(f"{path} exists; set another `out`, or remove it first")
        folder.mkdir(parents=True)
        return folder, run

    @property
    def predictor(self) -> Any:
        """The trained model, with all its methods: see `seqloom.load`."""
        if not self.__sklearn_is_fitted__():
            raise ValueError(f"This {type(self).__name__} is not trained: call fit first, or load a run")
        return self.predictor_

    def _store(self, content: Json) -> None:
        """Store the estimator's own data, such as labels, in the run."""
        write_atomic(self.predictor.run.path / ESTIMATOR_FILE, to_json(content))

    def _stored(self, key: str, decode: Callable[[Any], T]) -> T | None:
        """Return the decoded entry `key` of the data that `_store` wrote, or None."""
        path = self.predictor.run.path
        if is_missing(path / ESTIMATOR_FILE):
            return None
        try:
            content = parse_json(read_run_file(path, ESTIMATOR_FILE))
            return decode(content) if key in content else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path / ESTIMATOR_FILE} is damaged: remove it, or train again.") from error

    def save(self, path: str | Path) -> Path:
        """Copy the run to a new directory and return its path."""
        path, source = Path(path), self.predictor.run.path
        if path.exists():
            raise FileExistsError(f"{path} exists; choose another directory")
        shutil.copytree(source, path, symlinks=True)  # links are not followed
        self.predictor_ = load(path, self.device)
        return path

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """Open a run of this task."""
        predictor = load(path, device)
        if predictor.recipe.task not in cls.tasks:
            tasks = " or ".join(cls.tasks)
            raise ValueError(f"{path} has the task {predictor.recipe.task}; {cls.__name__} needs {tasks}")
        estimator = cls(device=device)
        estimator.predictor_ = predictor
        return estimator

    def _measure(self, examples: Examples) -> Metrics:
        """Return all metrics of `seqloom evaluate`."""
        predictor = self.predictor
        with tempfile.TemporaryDirectory(prefix="seqloom-") as folder:
            file = examples.write(Path(folder))
            with value_errors(file):
                return Metrics(predictor.on_file(file, examples.data).report("other").metrics)

    def evaluate_file(self, path: str | Path, *, column: str | Sequence[str] = (), label: str | None = None) -> Metrics:
        """Return all metrics of `seqloom evaluate` on a file; `column` and `label` are as in `fit_file`."""
        path = Path(path).expanduser()
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        with value_errors():
            return Metrics(self.predictor.on_file(path, columns=name_columns(column, label)).report("other").metrics)

    # --- conventions of scikit-learn --------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the arguments of the constructor."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: object) -> Self:
        """Change arguments of the constructor."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}: {did_you_mean(name, known)}")
            setattr(self, name, value)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    # --- display ----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self)).parameters.items()}
        changed = {
            name: value for name, value in self.get_params().items() if (value or None) != (defaults[name] or None)
        }
        arguments = ", ".join(f"{name}={shorten(repr(value))}" for name, value in changed.items())
        state = repr(self.predictor_) if self.__sklearn_is_fitted__() else "not trained"
        return f"{type(self).__name__}({arguments}): {state}"

    def draw(self) -> Any:
        """Draw the training curve."""
        return self.predictor.draw()

    def _repr_png_(self) -> bytes | None:
        return super()._repr_png_() if self.__sklearn_is_fitted__() else None

    def _repr_html_(self) -> str:
        """Return the description and the training curve for notebooks."""
        return description_html(self, self._repr_png_())
