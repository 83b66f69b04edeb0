"""What all tasks share: the base classes, and the record by which other packages know a task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from torch import Tensor, nn

from seqloom.config import config, to_mapping
from seqloom.config.constraints import field_types, options
from seqloom.core import protocols
from seqloom.core.device import OnDevice, device_of
from seqloom.core.errors import ChangedDataError, UsageError
from seqloom.core.protocols import Estimate, Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.corpora import CorpusKinds
from seqloom.models import InitConfig
from seqloom.text import Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus, Fingerprinted
    from seqloom.data.series import Series
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained, StillNeeded

LOWER_IS_BETTER = ("loss", "mase", "crps")  # of the metrics that may select a checkpoint
ModelSection = Any  # a section of one of several kinds of models, which pydantic checks by its kind
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def once(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Compute a method once for each of its arguments; the object keeps the results."""
    name = f"_{method.__qualname__}"

    @wraps(method)
    def compute(self: S, *arguments: P.args, **options: P.kwargs) -> T:
        results: dict[tuple[object, ...], T] = vars(self).setdefault(name, {})
        if arguments not in results:
            results[arguments] = method(self, *arguments, **options)
        return results[arguments]

    return compute


# --- recipes ----------------------------------------------------------------------------------------------------------


@config
class TaskRecipe:
    """The keys that every recipe begins with."""

    task: str
    seed: int = 1

    if TYPE_CHECKING:  # keys that only some recipes have, or of which each has its own kind
        init: Any = None
        monitor: Any = None
        data: Any = None
        tokenizer: Any = None
        batch: Any = None
        model: Any = None
        loss: Any = None
        train: Any = None
    else:
        init = monitor = loss = None


@config
class InitRecipe(TaskRecipe):
    """The keys of a recipe that may begin with the tokenizer and the weights of a run."""

    init: InitConfig | None = None
    data: object
    tokenizer: TokenizerConfig | None = None  # with init, that of the run

    def problems(self) -> Iterator[str]:
        run = ", or init.from, a run that has one" if self.takes_init else ""
        if self.init is not None and not self.takes_init:
            yield f"init is for models on a backbone, of kind fine-tuned-…; model.kind is {self.model.kind}"
        elif self.init is not None and self.tokenizer is not None:
            yield "tokenizer is that of the run in init.from: leave the section out"
        elif self.init is None and self.tokenizer is None:
            yield f"tokenizer: missing; it must be a section{run}"

    @property
    def takes_init(self) -> bool:
        """Whether its model can begin with another run."""
        return True


def dropout_problems(tokenizer: TokenizerConfig | None) -> Iterator[str]:
    """Byte-pair dropout is for translation; other tasks segment a text once."""
    if tokenizer is not None and tokenizer.kind == "byte-pair" and tokenizer.dropout:
        yield "tokenizer.dropout is for translation; set it to 0"


# --- reports ----------------------------------------------------------------------------------------------------------


class EvaluationReport(Protocol):
    """Everything an evaluation finds."""

    @property
    def metrics(self) -> dict[str, float]: ...

    def to_dict(self) -> dict[str, Any]:
        """Return the values that a run stores."""
        ...


@dataclass(frozen=True)
class PlainReport:
    """An evaluation of which there are metrics and nothing else."""

    metrics: dict[str, float]

    def to_dict(self) -> dict[str, float]:
        return self.metrics


# --- tasks ------------------------------------------------------------------------------------------------------------

R = TypeVar("R", bound=TaskRecipe)
M = TypeVar("M", bound=nn.Module | OnDevice)  # the model


class Task(protocols.Task, protocols.Estimable, Generic[R, M]):
    """The base class of all tasks: a default for everything that a task need not define.

    One that is trained by gradient defines `steps_per_epoch`, `batch` and `loss`; one that is
    estimated `estimates`. Either defines `evaluate`, or `report` if an evaluation finds more than
    metrics.
    """

    reads_tokens = True  # whether its model reads the tokens of texts
    validates_part = False  # whether `validate` measures less than `evaluate` of dev
    other_data = ""  # the options of `seqloom evaluate` that measure a model on other data
    measured_on = "examples like those it learned from"
    read_by_model: tuple[str, ...] = ()  # keys of the model that decide how data is read

    recipe: R
    corpus: Any  # a corpus of examples, or generated vectors
    tokenizer: Tokenizer
    pretrained: "Pretrained | StillNeeded | None" = None  # where its weights come from

    def __init__(self, recipe: R, corpus: Any, tokenizer: Tokenizer | None = None, names: Sequence[str] = ()):
        """`names` are the labels or tags that a model predicts, in the order of its outputs."""
        self.recipe, self.corpus, self.names = recipe, corpus, names
        if tokenizer is not None:
            self.tokenizer = tokenizer
        self.monitor = self.choose_monitor()

    @classmethod
    def info(cls) -> "TaskInfo":
        """Return the record of this task."""
        info: TaskInfo = import_module(cls.__module__).INFO
        return info

    # --- before training --------------------------------------------------------------------------------------------

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the keys of a recipe that follow from others, before it is checked."""
        return dict(mapping)

    @classmethod
    def metric_of(cls, recipe: R) -> str:
        """Return the metric that selects the best checkpoint; "" if that depends on the data."""
        return str(recipe.monitor or "loss")

    @property
    def loss_unit(self) -> str:
        """The unit of the training loss. The exp of a loss in "nats" is a perplexity."""
        per = self.info().loss_per
        return "nats" if per == "token" else f"nats per {per}"

    @property
    def loss_remark(self) -> str:
        """How the training loss differs from that of dev; "" if it does not."""
        return ""

    def choose_monitor(self) -> Monitor:
        """Return what selects the best checkpoint."""
        metric = self.metric_of(self.recipe)
        return Monitor(metric, metric not in LOWER_IS_BETTER, self.loss_unit, self.loss_remark)

    @classmethod
    def predicts_labels(cls, recipe: R) -> bool:
        """Whether its model predicts labels: those of the training data."""
        return False

    @classmethod
    def load(cls, recipe: R) -> Any:
        """Load the corpus of a recipe."""
        return corpora.load(recipe.data)

    @classmethod
    def training_texts(cls, recipe: R, corpus: Any) -> Iterable[str]:
        """Return the texts that a tokenizer is learned from."""
        texts: Iterable[str] = corpus.texts("train")
        return texts

    @classmethod
    def open_pretrained(cls, recipe: R) -> "Pretrained | None":
        """Open the run that a recipe begins with."""
        if recipe.init is None:
            return None
        from seqloom.runs.transfer import pretrained  # which imports every model that can be taken over

        return pretrained(recipe)

    @classmethod
    def prepare(cls, recipe: R) -> Self:
        """Read the data and learn what must be known before training, such as a tokenizer."""
        source, tokenizer = cls.open_pretrained(recipe), None
        corpus = cls.load(recipe)
        corpus.split("dev")  # without one nothing can be selected
        if source is not None:
            tokenizer = source.tokenizer
        elif cls.reads_tokens:
            tokenizer = train_tokenizer(recipe.tokenizer, cls.training_texts(recipe, corpus))
        task = cls(recipe, corpus, tokenizer, corpus.labels if cls.predicts_labels(recipe) else ())
        task.pretrained = source
        if source is not None and recipe.init.weights:
            source.check_weights()
        task.check()
        return task

    @classmethod
    def reopen(cls, recipe: R, run: "Run") -> Self:
        """Do the same for a run that exists; refuse data that has changed since."""
        corpus = cls.load(recipe)
        refuse_changed_data(run, corpus)
        tokenizer = run.tokenizer if cls.reads_tokens else None
        task = cls(recipe, corpus, tokenizer, run.labels if cls.predicts_labels(recipe) else ())
        if recipe.init is not None:
            from seqloom.runs.transfer import still_needed

            task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def of_documents(cls, recipe: R, run: "Run", documents: Sequence[str]) -> Self:
        """Return the same task on other documents, its only split "other"."""
        command = cls.info().command
        use = f", or use it: seqloom {command.format(run=run.path)}" if command else ""
        raise UsageError(f"{run.path} is measured on {cls.measured_on}, not on a text. Name a --split{use}.")

    def check(self) -> None:
        """Refuse, before a run directory is made, what cannot be trained."""
        self.check_model()

    def check_model(self) -> None:
        """Refuse a model that cannot read the data."""

    def warnings(self) -> list[str]:
        """Return what a person should know before training begins, in sentences."""
        return [f"{note}." for note in self.corpus.notes]

    # --- what a run keeps -------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Return what the data decides of the model: arguments of its config's `build`."""
        return {}

    def describe_data(self) -> dict[str, Any]:
        """Return what a run remembers of its data."""
        corpus = self.corpus
        described = {
            "corpus": corpus.name,
            "version": corpus.version,
            "licence": corpus.licence,
            "sha256": corpus.fingerprint(),
            "counts": {split: corpus.sizes(split) for split in corpus.splits},
            "notes": list(corpus.notes),
        }
        return described if self.pretrained is None else {**described, **self.pretrained.describe(self.recipe.init)}

    def documents(self) -> dict[str, Any]:
        """Return the JSON documents that a run keeps besides recipe and weights, by file name."""
        tokenizer = {"tokenizer.json": self.tokenizer.to_json()} if self.reads_tokens else {}
        optional = {"sizes.json": self.sizes(), "labels.json": list(self.names)}
        described = {name: content for name, content in optional.items() if content}
        return {**tokenizer, **described, "data.json": self.describe_data()}

    def files(self) -> dict[str, bytes]:
        """Return other files that a run keeps, by name."""
        return {}

    def model(self) -> M:
        """Return a freshly initialised model, with the weights that it is to begin with."""
        vocabulary = (len(self.tokenizer),) if self.reads_tokens else ()
        model: M = self.recipe.model.build(*vocabulary, **self.sizes())
        self.take_over_weights(model)
        return model

    def take_over_weights(self, model: M) -> None:
        """Give a new model the weights that it is to begin with."""
        if self.pretrained is not None and self.recipe.init.weights:
            self.pretrained.give(self.receiver(model))

    def receiver(self, model: M) -> Any:
        """Return the part of the model that takes over weights, see `seqloom.runs.transfer`."""
        from seqloom.runs.transfer import WholeModel

        return WholeModel(model)

    def model_section(self) -> object:
        return to_mapping(self.recipe.model)

    # --- training ---------------------------------------------------------------------------------------------------

    def steps_per_epoch(self) -> int:
        raise NotImplementedError

    def tokens_per_step(self) -> float | None:
        """Return the mean number of tokens that a batch predicts; None if it is constant."""
        return None

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        raise NotImplementedError

    def loss(self, model: M, batch: Tree, carry: Tree) -> Loss:
        raise NotImplementedError

    def estimates(self, model: M | None, step: int) -> Iterator[Estimate]:
        raise NotImplementedError

    # --- measuring and using ----------------------------------------------------------------------------------------

    def evaluate(self, model: M, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: M, split: str) -> EvaluationReport:
        """Return everything that an evaluation finds."""
        return PlainReport(self.evaluate(model, split))

    @classmethod
    def predict(cls, recipe: R, run: "Run", model: M, lines: Sequence[str]) -> Sequence[dict[str, object]]:
        """Predict one record for each line, where `TaskInfo` names no predictor."""
        raise UsageError(f"{run.path} predicts nothing from lines: `seqloom evaluate` measures it.")


class BatchedTask(Task[R, M]):
    """A task that reads its examples in batches of similar lengths."""

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> Any:
        """Return a split in batches of at most so many tokens, of at most so many shapes."""
        raise NotImplementedError

    @cached_property
    def batches(self) -> Any:
        """The training split, as training reads it."""
        return self.make_batches("train", tokens=self.recipe.batch.tokens, shapes=self.recipe.batch.max_shapes)

    @once
    def read(self, split: str) -> Any:
        """Return a split as it is evaluated."""
        return self.make_batches(split, tokens=self.recipe.batch.eval_tokens)

    def steps_per_epoch(self) -> int:
        return int(self.batches.steps_per_epoch)

    def largest_step(self, seed: int) -> int | None:
        return int(self.batches.largest_step(seed))

    def tokens_per_step(self) -> float | None:
        return len(self.batches.texts.ids) / self.steps_per_epoch()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        batch = self.batches.batch(seed, step, rank, world)
        return batch if "read" in batch else {**batch, "read": int(batch["mask"].sum())}  # before it is on a GPU

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Examples are independent, so nothing is carried. What is counted are the tokens read."""
        value, count = model.loss(batch, *self.loss_options())
        return Loss(value, None, batch["read"], count)

    def loss_options(self) -> Sequence[float]:
        """Return what the model's loss takes besides a batch."""
        return ()

    def for_each_example(self, model: M, split: str, compute: Callable[[Tree], Iterable[T]]) -> list[T]:
        """Return what `compute` gives for each example of a split, in their order."""
        batches = self.read(split)
        rows: dict[int, T] = {}
        for members, batch in batches.every():
            rows.update(zip(members.tolist(), compute(to_device(batch, device_of(model))), strict=False))
        return [rows[index] for index in range(len(batches))]


class SeriesTask(Task[R, M]):
    """A task on series of values."""

    corpus: "Corpus[Series]"
    reads_tokens = False
    counted = "values"
    measured_on = "series of numbers"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the variables."""
        return self.corpus.split("train")[0].columns

    @property
    def season(self) -> int:
        """How many steps a season has; 1 for none."""
        return self.corpus.split("train")[0].season

    def describe_data(self) -> dict[str, Any]:
        step = self.corpus.splits["train"][0].clock.describe()
        return {**super().describe_data(), "columns": list(self.columns), "step": step}


def count_parameters(tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Return how many numbers a model's tensors have, and the device they are on."""
    return sum(tensor.numel() for tensor in tensors.values()), str(next(iter(tensors.values())).device)


def refuse_changed_data(run: "Run", corpus: "Fingerprinted") -> None:
    """Refuse another version of a corpus: it is not the same data, whatever it is called."""
    now, then = corpus.fingerprint(), run.data["sha256"]
    changed = sorted(split for split in now.keys() | then.keys() if now.get(split) != then.get(split))
    if changed:
        raise ChangedDataError(
            f"The data of {run.path} has changed since it was trained: {', '.join(changed)} of {corpus.name} differ "
            f"(then {run.data['version']}, now {corpus.version}). Bring the old data back, or train anew on the new."
        )


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskInfo:
    """What other packages need to know of a task: the constant `INFO` of its file.

    Its `name` is that of the file. `predictor` is the class that uses a trained model, as
    "module:Class", which is imported when it is needed. `command` follows `seqloom ` in advice on
    what to do with a run.
    """

    name: str
    recipe: type[TaskRecipe]
    task: type[Task[Any, Any]]
    predictor: str = "seqloom.predict.base:TaskPredictor"
    command: str = ""  # "translate {run}"; "" if a run can be evaluated and nothing else
    metric: str = "loss"  # the headline metric of an evaluation
    loss_per: str = "token"  # what the loss is a mean over
    examples: str = "texts"  # what the examples of its data are called
    example: str = "The class statement defines a new type of object."  # a text to try
    views: tuple[str, ...] = ()  # of seqloom.inspect and the studio that suit its models, if their kind does

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the corpora it can be trained on: `FORM` in seqloom/data/corpora."""
        kinds = options(field_types(self.recipe)["data"]).kinds
        return kinds.forms if isinstance(kinds, CorpusKinds) else ()

    def predictor_class(self) -> Any:
        """Import the class that uses a trained model."""
        module, _, name = self.predictor.partition(":")
        return getattr(import_module(module), name)
