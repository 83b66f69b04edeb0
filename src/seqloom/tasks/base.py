"""The base classes of tasks, and `TaskInfo`, which describes a task to other packages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from torch import Tensor, nn

from seqloom.config import config, to_mapping
from seqloom.config.constraints import field_types, options
from seqloom.core import Json, protocols
from seqloom.core.device import OnDevice, device_of
from seqloom.core.errors import UsageError
from seqloom.core.protocols import Estimate, Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.corpora import CorpusKinds
from seqloom.models import MODELS, TRANSFORMERS, InitConfig, has_backbone
from seqloom.nn.lora import add_lora, without_lora
from seqloom.text import Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from seqloom.data.corpus import Corpus
    from seqloom.data.series import Series
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained, ResumedSource

# metrics for selecting checkpoints that are minimized
LOWER_IS_BETTER = ("loss", "mase", "crps", "character_error_rate", "word_error_rate")
ModelSection = Any  # a model section, which is validated by the config of its kind
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def cached_method(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Cache the results of a method in its object, by argument values."""
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
    """The keys of every recipe."""

    task: str
    seed: int = 1

    if TYPE_CHECKING:  # keys that only some recipes have, or whose types depend on the recipe
        init: Any = None
        monitor: Any = None
        data: Any = None
        tokenizer: Any = None
        batch: Any = None
        images: Any = None
        augment: Any = None
        model: Any = None
        loss: Any = None
        train: Any = None
    else:
        init = monitor = loss = None


@config
class InitRecipe(TaskRecipe):
    """The keys of a recipe that can initialize the tokenizer and the weights from a run."""

    init: InitConfig | None = None
    data: object
    tokenizer: TokenizerConfig | None = None  # null if `init` is set: the tokenizer of the pretrained run

    def problems(self) -> Iterator[str]:
        run = "; or set init.from to a run that has one" if self.takes_init else ""
        if self.init is not None and not self.takes_init:
            yield f"init needs a model with a backbone, of kind fine-tuned-…; got model.kind {self.model.kind}"
        elif self.init is not None and self.tokenizer is not None:
            yield "tokenizer comes from the run in init.from: leave the section out"
        elif self.init is None and self.tokenizer is None:
            yield f"tokenizer: missing; it must be a section{run}"
        if self.init is not None and self.takes_init:
            yield from lora_problems(self.init, self.model)

    @property
    def takes_init(self) -> bool:
        """Whether the model can start from the weights of a run."""
        return True


def lora_problems(init: InitConfig, model: ModelSection) -> Iterator[str]:
    """Reject LoRA for a model without Transformer blocks."""
    backbone = model.backbone if model is not None and has_backbone(model) else model
    if init.lora is not None and backbone is not None and MODELS.base(backbone.kind) not in TRANSFORMERS:
        yield f"init.lora needs a Transformer, such as gpt or bert; {init.from_} is of kind {backbone.kind}"


def dropout_problems(tokenizer: TokenizerConfig | None) -> Iterator[str]:
    """Reject byte-pair dropout for tasks other than translation, because other tasks segment a text only once."""
    if tokenizer is not None and tokenizer.kind == "byte-pair" and tokenizer.dropout:
        yield "tokenizer.dropout is supported only for translation; set it to 0"


# --- reports ----------------------------------------------------------------------------------------------------------


class EvaluationReport(Protocol):
    """The results of an evaluation."""

    @property
    def metrics(self) -> dict[str, float]: ...

    def to_dict(self) -> dict[str, Json]:
        """Return the values that a run stores."""
        ...


@dataclass(frozen=True)
class PlainReport:
    """The results of an evaluation that consist only of metrics."""

    metrics: dict[str, float]

    def to_dict(self) -> dict[str, float]:
        return self.metrics


# --- tasks ------------------------------------------------------------------------------------------------------------

R = TypeVar("R", bound=TaskRecipe)
M = TypeVar("M", bound=nn.Module | OnDevice)  # the type of the model


class Task(protocols.Task, protocols.Estimable, Generic[R, M]):
    """The base class of all tasks, with defaults for optional methods.

    A task that trains by gradient descent defines `steps_per_epoch`, `batch` and `loss`. Other tasks define
    `estimates`. All tasks define `evaluate`, or `report` if an evaluation has results other than metrics.
    """

    reads_tokens = True  # whether the model reads the tokens of texts
    validates_part = False  # whether `validate` computes less than `evaluate` on dev
    measured_on = "examples like its training data"
    max_generated: int | None = None  # limit of the tokens that `validate` generates for an example; None: no limit
    read_by_model: tuple[str, ...] = ()  # keys of the model section that affect how data is read

    recipe: R
    corpus: Any  # a corpus of examples, or generated vectors
    tokenizer: Tokenizer
    pretrained: "Pretrained | ResumedSource | None" = None  # the source of the initial weights

    def __init__(self, recipe: R, corpus: Any, tokenizer: Tokenizer | None = None, names: Sequence[str] = ()):
        """Create the task. `names` lists the labels or tags that the model predicts, in output order."""
        self.recipe, self.corpus, self.names = recipe, corpus, names
        if tokenizer is not None:
            self.tokenizer = tokenizer
        self.monitor = self.choose_monitor()

    @classmethod
    def info(cls) -> "TaskInfo":
        """Return the `TaskInfo` of this task."""
        info: TaskInfo = import_module(cls.__module__).INFO
        return info

    # --- before training --------------------------------------------------------------------------------------------

    @classmethod
    def complete(cls, mapping: Mapping[str, Json]) -> dict[str, Json]:
        """Fill in keys that follow from other keys, before the recipe is validated."""
        return dict(mapping)

    @classmethod
    def metric_of(cls, recipe: R) -> str:
        """Return the metric that selects the best checkpoint, or "" if it depends on the data."""
        return str(recipe.monitor or "loss")

    @property
    def loss_unit(self) -> str:
        """The unit of the training loss. For a loss in "nats", exp(loss) is a perplexity."""
        per = self.info().loss_per
        return "nats" if per == "token" else f"nats per {per}"

    @property
    def loss_remark(self) -> str:
        """A remark on how the training loss differs from the dev loss.

        The remark is empty if both losses are computed in the same way.
        """
        return ""

    def choose_monitor(self) -> Monitor:
        """Return the monitor that selects the best checkpoint."""
        metric = self.metric_of(self.recipe)
        return Monitor(metric, metric not in LOWER_IS_BETTER, self.loss_unit, self.loss_remark)

    @classmethod
    def predicts_labels(cls, recipe: R) -> bool:
        """Whether the model predicts the labels of the training data."""
        return False

    @classmethod
    def load(cls, recipe: R) -> Any:
        """Load the corpus of a recipe."""
        return corpora.load(recipe.data)

    @classmethod
    def training_texts(cls, recipe: R, corpus: Any) -> Iterable[str]:
        """Return the texts on which the tokenizer is trained."""
        texts: Iterable[str] = corpus.texts("train")
        return texts

    @classmethod
    def open_pretrained(cls, recipe: R) -> "Pretrained | None":
        """Open the run in `init.from`, or return None if the recipe does not set it."""
        if recipe.init is None:
            return None
        from seqloom.runs.transfer import pretrained  # imports every model that can be transferred

        return pretrained(recipe)

    @classmethod
    def prepare(cls, recipe: R) -> Self:
        """Read the data and train the tokenizer, if any."""
        source, tokenizer = cls.open_pretrained(recipe), None
        corpus = cls.load(recipe)
        corpus.split("dev")  # dev is required for selecting the best checkpoint
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
        """Prepare the task of an existing run. Using a split that has changed since training raises an error."""
        from seqloom.tasks.reopened_base import reopen_corpus

        task = cls.of_corpus(recipe, run, reopen_corpus(run, recipe, cls.load))
        if recipe.init is not None:
            from seqloom.runs.transfer import resumed_source

            task.pretrained = resumed_source(recipe, run)
        return task

    @classmethod
    def of_corpus(cls, recipe: R, run: "Run", corpus: Any) -> Self:
        """Create the task of an existing run with other data."""
        tokenizer = run.tokenizer if cls.reads_tokens else None
        return cls(recipe, corpus, tokenizer, run.labels if cls.predicts_labels(recipe) else ())

    @classmethod
    def of_documents(cls, recipe: R, run: "Run", documents: Sequence[str]) -> Self:
        """Create the task of a run for other documents. These documents form the only split, "other"."""
        command = cls.info().command
        use = f", or use the model: seqloom {command.format(run=run.path)}" if command else ""
        raise UsageError(f"{run.path} is evaluated on {cls.measured_on}, not on a text. Use --split{use}.")

    def check(self) -> None:
        """Raise an error if the task cannot be trained. Called before a run directory is created."""
        self.check_model()

    def check_model(self) -> None:
        """Raise an error if the model cannot read the data."""

    def mean_target_length(self) -> float | None:
        """Return the mean number of tokens that a trained model generates for an example of dev.

        Return None if `validate` does not generate texts.
        """
        return None

    def warnings(self) -> list[str]:
        """Return warnings for the user as sentences. Called before training begins."""
        return [f"{note}." for note in self.corpus.notes]

    # --- content of a run -------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Return the data-dependent arguments of the model config's `build` method."""
        return {}

    def describe_data(self) -> dict[str, Json]:
        """Return the description of the data for the run."""
        corpus = self.corpus
        described = {
            "corpus": corpus.name,
            "version": corpus.version,
            "licence": corpus.licence,
            "sha256": corpus.fingerprint(),
            "counts": {split: corpus.sizes(split) for split in corpus.splits},
            "notes": list(corpus.notes),
        }
        if self.names:
            described["labels"] = corpus.label_counts("train")  # most frequent labels first
        return described if self.pretrained is None else {**described, **self.pretrained.describe(self.recipe.init)}

    def documents(self) -> dict[str, Json]:
        """Return the JSON documents of a run by file name, without the recipe."""
        tokenizer = {"tokenizer.json": self.tokenizer.to_json()} if self.reads_tokens else {}
        optional = {"sizes.json": self.sizes(), "labels.json": list(self.names)}
        described = {name: content for name, content in optional.items() if content}
        return {**tokenizer, **described, "data.json": self.describe_data()}

    def files(self) -> dict[str, bytes]:
        """Return other files of a run by name."""
        return {}

    def model(self) -> M:
        """Build a model with its initial weights, including pretrained weights."""
        vocabulary = (len(self.tokenizer),) if self.reads_tokens else ()
        model: M = self.recipe.model.build(*vocabulary, **self.sizes())
        self.load_pretrained(model)
        return model

    def load_pretrained(self, model: M) -> None:
        """Load pretrained weights into a new model if the recipe sets `init.from`."""
        if self.pretrained is None or not self.recipe.init.weights:
            return
        self.pretrained.give(self.receiver(model))
        if (lora := self.recipe.init.lora) is not None:
            add_lora(self.pretrained_part(model), lora.targets, lora.rank, lora.alpha / lora.rank, lora.dropout)

    def receiver(self, model: M) -> Any:
        """Return the receiver of the pretrained weights of a model; see `seqloom.runs.transfer`."""
        from seqloom.runs.transfer import CompleteModel

        return CompleteModel(model)

    def pretrained_part(self, model: Any) -> nn.Module:
        """Return the part of the model that has pretrained weights."""
        part: nn.Module = model
        return part

    def inference_model(self, model: Any) -> Any:
        """Return the model to evaluate and save.

        With LoRA, this is the merged model, and otherwise the trained model.
        """
        return model if self.recipe.init is None or self.recipe.init.lora is None else without_lora(model)

    def model_section(self) -> object:
        return to_mapping(self.recipe.model)

    # --- training ---------------------------------------------------------------------------------------------------

    def steps_per_epoch(self) -> int:
        raise NotImplementedError

    def tokens_per_step(self) -> float | None:
        """Return the mean number of predicted tokens per batch, or None if the number is constant."""
        return None

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        raise NotImplementedError

    def loss(self, model: M, batch: Tree, carry: Tree) -> Loss:
        raise NotImplementedError

    def estimates(self, model: M | None, step: int) -> Iterator[Estimate]:
        raise NotImplementedError

    # --- evaluation and prediction ----------------------------------------------------------------------------------

    def evaluate(self, model: M, split: str) -> dict[str, float]:
        return self.report(model, split).metrics

    def report(self, model: M, split: str) -> EvaluationReport:
        """Return all results of an evaluation."""
        return PlainReport(self.evaluate(model, split))

    @classmethod
    def predict(cls, recipe: R, run: "Run", model: M, lines: Sequence[str]) -> Sequence[dict[str, object]]:
        """Predict one record for each line. `TaskPredictor` calls this method."""
        raise UsageError(f"{run.path} cannot predict from lines of text; use `seqloom evaluate`.")


class BatchedTask(Task[R, M]):
    """A task that reads its examples in batches of similar lengths."""

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> Any:
        """Divide a split into batches of at most `tokens` tokens and `shapes` shapes."""
        raise NotImplementedError

    @cached_property
    def batches(self) -> Any:
        """The batches of the training split."""
        return self.make_batches("train", tokens=self.recipe.batch.tokens, shapes=self.recipe.batch.max_shapes)

    @cached_method
    def eval_batches(self, split: str) -> Any:
        """Return the batches of a split for evaluation."""
        return self.make_batches(split, tokens=self.recipe.batch.eval_tokens)

    def steps_per_epoch(self) -> int:
        return int(self.batches.steps_per_epoch)

    def largest_step(self, seed: int) -> int | None:
        return int(self.batches.largest_step(seed))

    def tokens_per_step(self) -> float | None:
        return len(self.batches.texts.ids) / self.steps_per_epoch()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        batch = self.batches.batch(seed, step, rank, world)
        # Computed here to avoid a GPU synchronization
        return batch if "read" in batch else {**batch, "read": int(batch["mask"].sum())}

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Return the loss of independent examples, the number of tokens read, and no carried state."""
        value, count = model.loss(batch, *self.loss_options())
        return Loss(value, None, batch["read"], count)

    def loss_options(self) -> Sequence[float]:
        """Return further arguments of the model's loss."""
        return ()

    def for_each_example(self, model: M, split: str, compute: Callable[[Tree], Iterable[T]]) -> list[T]:
        """Apply `compute` to each batch of a split, and return one value for each example, in order."""
        batches = self.eval_batches(split)
        rows: dict[int, T] = {}
        for members, batch in batches.all_batches():
            rows.update(zip(members.tolist(), compute(to_device(batch, device_of(model))), strict=False))
        return [rows[index] for index in range(len(batches))]


class SeriesTask(Task[R, M]):
    """A task on series of values."""

    corpus: "Corpus[Series]"
    reads_tokens = False
    speed_unit = "values"
    measured_on = "series of numbers"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the variables in the series."""
        return self.corpus.split("train")[0].columns

    @property
    def season(self) -> int:
        """The number of steps per season, or 1 if the series has no season."""
        return self.corpus.split("train")[0].season

    def describe_data(self) -> dict[str, Json]:
        step = self.corpus.splits["train"][0].clock.describe()
        return {**super().describe_data(), "columns": list(self.columns), "step": step}


def count_parameters(tensors: Mapping[str, Tensor]) -> tuple[int, str]:
    """Return the number of parameters and their device."""
    return sum(tensor.numel() for tensor in tensors.values()), str(next(iter(tensors.values())).device)


# --- the record -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskInfo:
    """The description of a task for other packages. Each task module defines its description as `INFO`.

    `name` is the name of the file. `predictor` is the class that uses a trained model, given as "module:Class" and
    imported on demand. `command` is the command to suggest for a run, without `seqloom`.
    """

    name: str
    recipe: type[TaskRecipe]
    task: type[Task[Any, Any]]
    predictor: str = "seqloom.predict.task_predictor:TaskPredictor"
    command: str = ""  # for example "translate {run}"; "" if a run can only be evaluated
    metric: str = "loss"  # the headline metric of an evaluation
    loss_per: str = "token"  # the unit over which the loss is averaged
    pipeline_tag: str = ""  # name of the task on the Hugging Face hub, if it has one
    examples: str = "texts"  # the plural noun for examples
    example: str = "The class statement defines a new type of object."  # an example text
    views: tuple[str, ...] = ()  # views of seqloom.inspect and the studio for models of this task

    @property
    def forms(self) -> tuple[str, ...]:
        """The corpus forms that the task can read; see `FORM` in seqloom/data/corpora."""
        kinds = options(field_types(self.recipe)["data"]).kinds
        return kinds.forms if isinstance(kinds, CorpusKinds) else ()

    def predictor_class(self) -> Any:
        """Import the class that uses a trained model."""
        module, _, name = self.predictor.partition(":")
        return getattr(import_module(module), name)
