"""What all tasks share: the base classes, and the record by which other packages know a task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self

from seqloom.config import config, to_mapping
from seqloom.config.messages import field_types, options
from seqloom.core import protocols
from seqloom.core.device import device_of
from seqloom.core.errors import ChangedDataError, UsageError
from seqloom.core.protocols import Estimate, Loss, Monitor
from seqloom.core.tree import Tree, to_device
from seqloom.data import corpora
from seqloom.data.corpora import CorpusKinds
from seqloom.data.corpus import Corpus
from seqloom.data.series import Series, columns_of, season_of
from seqloom.runs.models import InitConfig
from seqloom.text import Tokenizer, TokenizerConfig, train_tokenizer

if TYPE_CHECKING:
    from seqloom.data.corpus import Fingerprinted
    from seqloom.runs.run import Run
    from seqloom.runs.transfer import Pretrained, StillNeeded


LOWER_IS_BETTER = ("loss", "mase", "crps")  # of the metrics that may select a checkpoint


@config
class TaskRecipe:
    """The keys that every recipe begins with."""

    task: str
    seed: int = 1

    if TYPE_CHECKING:  # keys that only some recipes have
        init: Any = None
        goal: Any = None
    else:
        init = goal = None


@config
class InitRecipe(TaskRecipe):
    """The keys of a recipe that may begin with the tokenizer and the weights of a run."""

    init: InitConfig | None = None
    data: Any
    tokenizer: TokenizerConfig | None = None  # with init, that of the run

    def problems(self) -> Iterator[str]:
        run = ", or init.from, a run that has one" if self.takes_init else ""
        if self.init is not None and not self.takes_init:
            yield f"init is for models on a body, of kind fine-tuned-…; model.kind is {self.model.kind}"
        elif self.init is not None and self.tokenizer is not None:
            yield "tokenizer is that of the run in init.from: leave the section out"
        elif self.init is None and self.tokenizer is None:
            yield f"tokenizer: missing; it must be a section{run}"

    @property
    def takes_init(self) -> bool:
        """Whether its model can begin with another run."""
        return True

    if TYPE_CHECKING:
        model: Any = None


def dropout_problems(tokenizer: TokenizerConfig | None) -> Iterator[str]:
    """Byte-pair dropout is for translation; other tasks segment a text once."""
    if tokenizer is not None and tokenizer.kind == "byte-pair" and tokenizer.dropout:
        yield "tokenizer.dropout is for translation; set it to 0"


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

    validates_part = False  # whether `validate` measures less than `evaluate` of dev
    measures_text = False  # whether it can be measured on any text, see `of_documents`
    measured_on = "examples like those it learned from"
    read_by_model: tuple[str, ...] = ()  # keys of the model that decide how data is read

    def __init__(self, recipe: Any, corpus: Any, names: Sequence[str] = ()):
        """`names` are the labels or tags that a model predicts, in the order of its outputs."""
        self.recipe, self.corpus, self.names = recipe, corpus, names
        self.monitor = self.choose_monitor()

    # --- before training --------------------------------------------------------------------------------------------

    @classmethod
    def complete(cls, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the keys of a recipe that follow from others, before it is checked."""
        return dict(mapping)

    @classmethod
    def metric_of(cls, recipe: Any) -> str:
        """The metric that selects the best checkpoint; "" if that depends on the data."""
        return str(recipe.goal or "loss")

    def loss_unit(self) -> str:
        """The unit of the training loss. Only the loss of "nats" alone is that of dev, and its exp a perplexity."""
        return "nats"

    def choose_monitor(self) -> Monitor:
        """What selects the best checkpoint."""
        metric = self.metric_of(self.recipe)
        return Monitor(metric, higher_is_better=metric not in LOWER_IS_BETTER, unit=self.loss_unit())

    @classmethod
    def predicts_labels(cls, recipe: Any) -> bool:
        """Whether its model predicts labels: those of the training data."""
        return False

    @classmethod
    def load(cls, recipe: Any) -> Any:
        """Load the corpus of a recipe."""
        return corpora.load(recipe.data)

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        """Read the data and learn what must be known before training, such as a tokenizer."""
        corpus = cls.load(recipe)
        corpus.split("dev")  # without one nothing can be selected
        task = cls(recipe, corpus, corpus.labels if cls.predicts_labels(recipe) else ())
        task.check()
        return task

    @classmethod
    def reopen(cls, recipe: Any, run: "Run") -> Self:
        """Do the same for a run that exists; refuse data that has changed since."""
        corpus = cls.load(recipe)
        refuse_changed_data(run, corpus)
        return cls(recipe, corpus, run.labels if cls.predicts_labels(recipe) else ())

    @classmethod
    def of_documents(cls, recipe: Any, run: "Run", documents: Sequence[str]) -> Self:
        """The same task on other documents, its only split "other"."""
        command = import_module(cls.__module__).INFO.command
        use = f", or use it: seqloom {command.format(run=run.path)}" if command else ""
        raise UsageError(f"{run.path} is measured on {cls.measured_on}, not on a text. Name a --split{use}.")

    def check(self) -> None:
        """Refuse, before a run directory is made, what cannot be trained."""
        self.check_model()

    @classmethod
    def predict(cls, recipe: Any, run: "Run", model: Any, lines: Sequence[str]) -> Sequence[dict[str, object]]:
        """Predict one record for each line. A task whose `TaskInfo` names a predictor need not define it."""
        raise UsageError(f"{run.path} predicts nothing from lines: `seqloom evaluate` measures it.")

    def check_model(self) -> None:
        """Refuse a model that cannot read the data."""

    def warnings(self) -> list[str]:
        """What a person should know before training begins, in sentences."""
        return [f"{note}." for note in self.corpus.notes]

    # --- what a run keeps -------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """What the data decides of the model besides its vocabulary: arguments of its config's `build`."""
        return {}

    def describe_data(self) -> dict[str, Any]:
        """What a run remembers of its data."""
        corpus = self.corpus
        return {
            "corpus": corpus.name,
            "version": corpus.version,
            "licence": corpus.licence,
            "sha256": corpus.fingerprint(),
            "counts": {split: corpus.sizes(split) for split in corpus.splits},
            "notes": list(corpus.notes),
        }

    def documents(self) -> dict[str, Any]:
        """The JSON documents that a run keeps besides recipe and weights, by file name."""
        optional = {"sizes.json": self.sizes(), "labels.json": list(self.names)}
        return {name: content for name, content in optional.items() if content} | {"data.json": self.describe_data()}

    def files(self) -> dict[str, bytes]:
        """Other files that a run keeps, by name."""
        return {}

    def model(self) -> Any:
        return self.recipe.model.build(**self.sizes())

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


class TokenTask(Task):
    """A task whose model reads tokens, and may begin with the weights of another run."""

    tokenizer: Tokenizer
    pretrained: "Pretrained | StillNeeded | None" = None  # where its weights come from

    def __init__(self, recipe: Any, corpus: Any, tokenizer: Tokenizer, names: Sequence[str] = ()):
        self.tokenizer = tokenizer
        super().__init__(recipe, corpus, names)

    @classmethod
    def prepare(cls, recipe: Any) -> Self:
        source = cls.open_pretrained(recipe)
        corpus = cls.load(recipe)
        corpus.split("dev")  # without one nothing can be selected
        if source is None:
            tokenizer = train_tokenizer(recipe.tokenizer, cls.training_texts(recipe, corpus))
        else:
            tokenizer = source.tokenizer
        task = cls(recipe, corpus, tokenizer, corpus.labels if cls.predicts_labels(recipe) else ())
        task.pretrained = source
        if source is not None and recipe.init.weights:
            source.check_weights()
        task.check()
        return task

    @classmethod
    def reopen(cls, recipe: Any, run: "Run") -> Self:
        corpus = cls.load(recipe)
        refuse_changed_data(run, corpus)
        task = cls(recipe, corpus, run.tokenizer, run.labels if cls.predicts_labels(recipe) else ())
        if recipe.init is not None:
            from seqloom.runs.transfer import still_needed

            task.pretrained = still_needed(recipe, run)
        return task

    @classmethod
    def open_pretrained(cls, recipe: Any) -> "Pretrained | None":
        """Open the run that a recipe begins with."""
        if recipe.init is None:
            return None
        from seqloom.runs.transfer import pretrained  # which imports every model that can be taken over

        return pretrained(recipe)

    @classmethod
    def training_texts(cls, recipe: Any, corpus: Any) -> Iterable[str]:
        """The texts that a tokenizer is learned from."""
        texts: Iterable[str] = corpus.texts("train")
        return texts

    def documents(self) -> dict[str, Any]:
        return {"tokenizer.json": self.tokenizer.to_json(), **super().documents()}

    def describe_data(self) -> dict[str, Any]:
        described = super().describe_data()
        return described if self.pretrained is None else {**described, **self.pretrained.describe(self.recipe.init)}

    def model(self) -> Any:
        model = self.recipe.model.build(len(self.tokenizer), **self.sizes())
        self.take_over_weights(model)
        return model

    def take_over_weights(self, model: Any) -> None:
        """Give a new model the weights that it is to begin with."""
        if self.pretrained is not None and self.recipe.init.weights:
            self.pretrained.give(self.receiver(model))

    def receiver(self, model: Any) -> Any:
        """The part of the model that takes over the weights of another run: see `seqloom.runs.transfer`."""
        raise NotImplementedError


class BatchedTask(TokenTask):
    """A task that reads its examples in batches of similar lengths, which `make_batches` makes of a split."""

    def __init__(self, recipe: Any, corpus: Any, tokenizer: Tokenizer, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self._read: dict[str, Any] = {}

    def make_batches(self, split: str, *, tokens: int, shapes: int | None = None) -> Any:
        """A split in batches of at most so many tokens, of at most so many shapes."""
        raise NotImplementedError

    @cached_property
    def batches(self) -> Any:
        """The training split, as training reads it."""
        return self.make_batches("train", tokens=self.recipe.batch.tokens, shapes=self.recipe.batch.shapes)

    def read(self, split: str) -> Any:
        """A split as it is evaluated."""
        if split not in self._read:
            self._read[split] = self.make_batches(split, tokens=self.recipe.batch.eval_tokens)
        return self._read[split]

    def steps_per_epoch(self) -> int:
        steps: int = self.batches.steps_per_epoch
        return steps

    def largest_step(self, seed: int) -> int | None:
        largest: int = self.batches.largest_step(seed)
        return largest

    def tokens_per_step(self) -> float | None:
        return len(self.batches.texts.ids) / self.steps_per_epoch()

    def batch(self, seed: int, step: int, rank: int = 0, world: int = 1) -> Tree:
        batch = self.batches.batch(seed, step, rank, world)
        return batch if "read" in batch else {**batch, "read": int(batch["mask"].sum())}  # before it is on a GPU

    def loss(self, model: Any, batch: Tree, carry: Tree) -> Loss:
        """Examples are independent, so nothing is carried. What is counted are the tokens read."""
        value, count = model.loss(batch)
        return Loss(value, None, batch["read"], count)

    def for_each_example(self, model: Any, split: str, compute: Callable[[Tree], Iterable[Any]]) -> list[Any]:
        """What `compute` makes of each row of a batch, on the device of the model, in the order of the split."""
        batches = self.read(split)
        found: list[Any] = [None] * len(batches)
        for members, batch in batches.every():
            for index, row in zip(members.tolist(), compute(to_device(batch, device_of(model))), strict=False):
                found[index] = row
        return found


@dataclass(frozen=True)
class TaskInfo:
    """What other packages need to know of a task: the constant `INFO` of its file.

    Its `name` is that of the file. `predictor` is the class that uses a trained model, as "module:Class", which is
    imported when it is needed. `command` follows `seqloom ` in advice on what to do with a run.
    """

    name: str
    recipe: type[Any]
    task: type[Task]
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


def refuse_changed_data(run: "Run", corpus: "Fingerprinted") -> None:
    """Two versions of a corpus are not the same data, whatever they are called."""
    now, then = corpus.fingerprint(), run.data["sha256"]
    changed = sorted(split for split in now.keys() | then.keys() if now.get(split) != then.get(split))
    if changed:
        raise ChangedDataError(
            f"The data of {run.path} has changed since it was trained: {', '.join(changed)} of {corpus.name} differ "
            f"(then {run.data['version']}, now {corpus.version}). Bring the old data back, or train anew on the new."
        )


class SeriesTask(Task):
    """A task on series of values."""

    corpus: Corpus[Series]
    counted = "values"
    measured_on = "series of numbers"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the variables."""
        return columns_of(self.corpus)

    @property
    def season(self) -> int:
        """How many steps a season has; 1 for none."""
        return season_of(self.corpus)

    def loss_unit(self) -> str:
        return "nats per value"

    def describe_data(self) -> dict[str, Any]:
        step = self.corpus.splits["train"][0].clock.said()
        return {**super().describe_data(), "columns": list(self.columns), "step": step}
