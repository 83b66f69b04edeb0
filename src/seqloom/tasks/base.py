"""What all tasks share: the base class, and the record by which other packages know a task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, Self

from seqloom.config import to_mapping
from seqloom.core import protocols
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Estimate, Loss, Monitor
from seqloom.core.tree import Tree
from seqloom.runs.run import Run


class Report(Protocol):
    """Everything an evaluation found."""

    @property
    def metrics(self) -> dict[str, float]: ...

    def kept(self) -> dict[str, Any]:
        """What a run keeps of it."""
        ...


@dataclass(frozen=True)
class PlainReport:
    """An evaluation of which there are metrics and nothing else."""

    metrics: dict[str, float]

    def kept(self) -> dict[str, Any]:
        return self.metrics


class Task(protocols.Task, protocols.Estimable):
    """The base class of all tasks: a default for everything that a task need not define.

    One that is trained by gradient defines `steps_per_epoch`, `batch` and `loss`; one that is estimated `estimates`.
    Either defines `evaluate`, or `report` if an evaluation finds more than metrics.
    """

    monitor: Monitor = Monitor("loss")
    validates_part = False  # whether `validate` measures less than `evaluate` of dev
    read_by_model: tuple[str, ...] = ()  # keys of the model that decide how data is read
    recipe: Any
    corpus: Any

    # --- before training --------------------------------------------------------------------------------------------

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the keys of a recipe that follow from others, before it is checked."""
        return dict(mapping)

    @classmethod
    def metric_of(cls, recipe: Any) -> str:
        """The metric that selects the best checkpoint; "" if that depends on the data."""
        return cls.monitor.metric

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        """Read the data and learn what must be known before training, such as a tokenizer."""
        raise NotImplementedError

    @classmethod
    def reopen(cls, recipe: Any, run: Run) -> Self:
        """Do the same for a run that exists; refuse data that has changed since."""
        raise NotImplementedError

    @classmethod
    def of_documents(cls, recipe: Any, run: Run, documents: Sequence[str]) -> Self:
        """The same task on other documents, its only split "other"."""
        raise UsageError(f"{run.path} cannot be measured on a text. Name a --split.")

    @classmethod
    def predict(cls, recipe: Any, run: Run, model: Any, lines: Sequence[str]) -> Sequence[dict[str, object]]:
        """Predict one record for each line. A task whose `TaskInfo` names a predictor need not define it."""
        raise UsageError(f"{run.path} predicts nothing from lines: `seqloom evaluate` measures it.")

    def check_model(self) -> None:
        """Refuse a model that cannot read the data."""

    def warnings(self) -> list[str]:
        """What a person should know before training begins, in sentences."""
        return []

    # --- what a run keeps -------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """What the data decides of the model besides its vocabulary: arguments of its config's `build`."""
        return {}

    def documents(self) -> dict[str, Any]:
        """The JSON documents that a run keeps besides recipe and weights, by file name."""
        raise NotImplementedError

    def files(self) -> dict[str, bytes]:
        """Other files that a run keeps, by name."""
        return {}

    def model_section(self) -> Any:
        return to_mapping(self.recipe.model)

    # --- training ---------------------------------------------------------------------------------------------------

    def steps_per_epoch(self) -> int:
        raise NotImplementedError

    def tokens_per_step(self) -> float | None:
        """The mean number of tokens a batch predicts; None if all batches have as many as the first."""
        return None

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        raise NotImplementedError

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        raise NotImplementedError

    def estimates(self, model: Any | None, step: int) -> Iterator[Estimate]:
        raise NotImplementedError

    # --- measuring --------------------------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: Any, split: str) -> Report:
        """Everything that an evaluation finds."""
        return PlainReport(self.evaluate(model, split))


@dataclass(frozen=True)
class TaskInfo:
    """What other packages need to know of a task: the constant `INFO` of its file.

    Its `name` is that of the file. `predictor` is the class that uses a trained model, as "module:Class", which is
    imported when it is needed. `command` follows `seqloom ` in advice on what to do with a run.
    """

    name: str
    recipe: type[Any]
    task: type[Task]
    forms: tuple[str, ...] = ()  # of the corpora it can be trained on: `FORM` in seqloom/data/corpora
    predictor: str = "seqloom.predict.base:TaskPredictor"
    command: str = ""  # "translate {run}"; "" if a run can be evaluated and nothing else
    metric: str = "loss"  # the headline metric of an evaluation
    loss_per: str = "token"  # what the loss is a mean over
    examples: str = "texts"  # what the examples of its data are called
    views: tuple[str, ...] = ()  # of seqloom.inspect and the studio that suit its models, if their kind does

    def predictor_class(self) -> Any:
        """Import the class that uses a trained model."""
        module, _, name = self.predictor.partition(":")
        return getattr(import_module(module), name)
