"""seqloom from Python: train by recipe, load a run, use it.

import seqloom

lm = seqloom.train_recipe("lm-char-lstm", "train.steps=200", out="runs/mine")
lm = seqloom.load("runs/mine")
print("".join(lm.generate("The class", temperature=0.8, seed=7)))
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.core.config import (
    ABSENT,
    apply_overrides,
    build,
    differences,
    load_yaml,
    nearest,
    parse_overrides,
    to_mapping,
)
from seqloom.core.errors import CheckpointError, DataError, Interrupted, ResourceError, UsageError
from seqloom.core.words import shown
from seqloom.decoding.generate import generate
from seqloom.decoding.mixture import Mixture, checked_weights, mix
from seqloom.decoding.processors import SamplingConfig
from seqloom.decoding.streaming import text_stream
from seqloom.evaluate.interpolation import best_weights
from seqloom.evaluate.perplexity import score_texts
from seqloom.runs.record import record
from seqloom.runs.run import Run, refuse_existing
from seqloom.tasks import task_module
from seqloom.tasks.language_model import device_of
from seqloom.text import Tokenizer
from seqloom.train.estimate import estimate
from seqloom.train.events import Event, Stopped
from seqloom.train.fit import FitConfig, device_for, fit
from seqloom.train.stop import Stop

RECIPES = Path(__file__).parent / "recipes"

# What may change when a run goes on: nothing that decides what the steps made so far would have been.
LENGTH = {"train.steps", "train.epochs"}  # except where the schedule depends on them, as cosine does
RESUMABLE = LENGTH | {"train.patience", "train.keep", "train.log_every", "train.device"}


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_recipe(source: str | Path, overrides: Iterable[str] = ()) -> tuple[str, Any]:
    """A shipped recipe by name or a YAML file by path, overridden and checked: its name, and the recipe."""
    name, mapping = recipe_mapping(source)
    recipe = build_recipe(apply_overrides(mapping, parse_overrides(overrides)), f"recipe {source}")
    data: Any = getattr(recipe, "data", None)
    if hasattr(data, "located"):  # files of one's own are found again from any folder
        recipe = replace(recipe, data=data.located(_find_recipe(str(source))[1].parent))
    return name, recipe


def recipe_mapping(source: str | Path) -> tuple[str, dict[str, Any]]:
    """The name of a recipe and what it says, as it stands: nothing is filled in or checked yet."""
    name, path = _find_recipe(str(source))
    mapping = load_yaml(path)
    for header in ("format", "seqloom"):  # a recipe taken from a run
        mapping.pop(header, None)
    return name, mapping


def _find_recipe(source: str) -> tuple[str, Path]:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UsageError(f"There is no recipe file {path}.")
        return (path.parent.resolve().name if path.stem == "recipe" else path.stem), path
    if re.fullmatch(r"[a-z0-9-]+", source) and (RECIPES / f"{source}.yaml").is_file():
        return source, RECIPES / f"{source}.yaml"
    if path.exists():
        raise UsageError(f"{path} is not a recipe: those end in .yaml. For a text of your own: seqloom init {path}")
    own = f"{source}.yaml" if Path(f"{source}.yaml").is_file() else None
    guess = own or nearest(source, recipe_names())
    hint = f"did you mean {guess}?" if guess else "`seqloom list recipes` shows them all."
    raise UsageError(f"No shipped recipe is called {source!r}, and a file must end in .yaml; {hint}")


def build_recipe(mapping: dict[str, Any], source: str) -> Any:
    return build(task_module(mapping.get("task")).Recipe, mapping, source=source)


@dataclass(frozen=True)
class Training:
    """A training about to begin or to go on."""

    run: Run
    task: Any
    recipe: Any
    resumed: bool = False

    def events(self, stop: Stop | None = None) -> Iterator[Event]:
        """Train, yielding what happens; everything is written into the run on the way."""
        method: Any = fit if isinstance(self.recipe.train, FitConfig) else estimate
        store = self.run.store(self.recipe.train.keep)
        events = method(self.task, self.recipe.train, store, seed=self.recipe.seed, stop=stop, resume=self.resumed)
        return record(events, self.run)

    def warnings(self) -> list[str]:
        """What a person should know before it begins, in plain sentences; usually nothing."""
        found: list[str] = self.task.warnings() if hasattr(self.task, "warnings") else []
        return found


def begin(recipe: Any, out: Path) -> Training:
    """Read the data and make the run directory."""
    refuse_existing(out)
    if isinstance(recipe.train, FitConfig):
        device_for(recipe.train)  # what this machine cannot do is refused before anything is made
    task = task_module(recipe.task).Task.prepare(recipe)
    if isinstance(recipe.train, FitConfig):
        task.steps_per_epoch()  # what cannot be cut into batches is refused before the directory is made
    return Training(Run.create(out, to_mapping(recipe), task.documents()), task, recipe)


def resume(path: str | Path, overrides: Sequence[str] = (), recipe: Any = None) -> Training:
    """Go on with a run. `recipe` and `overrides` may only change what leaves the steps made so far as they were."""
    run = Run.open(path)
    wanted = to_mapping(recipe if recipe is not None else recipe_of(run))
    built = build_recipe(apply_overrides(wanted, parse_overrides(overrides)), f"recipe of {path}")
    changed = refuse_other_recipe(run, built)
    task = task_module(built.task).Task.reopen(built, run)
    if changed:
        with run.locked():
            run.update_recipe(to_mapping(built))
    return Training(run, task, built, resumed=True)


def refuse_other_recipe(run: Run, recipe: Any) -> bool:
    """Whether a run would go on with another recipe than it has; refused if that would change the steps made so far."""
    then = to_mapping(recipe_of(run))
    changed = differences(then, to_mapping(recipe))
    fixed = LENGTH if then["train"].get("schedule") == "cosine" else set()
    refused = [
        f"{key} is {_value(old)} in the run and {_value(new)} now"
        for key, old, new in changed
        if key not in RESUMABLE - fixed
    ]
    if refused and all(key in RESUMABLE for key, _, _ in changed):
        raise UsageError(
            f"{run.path} cannot be made longer or shorter: its cosine schedule was laid out for its length, so another "
            f"would have changed every step so far ({'; '.join(refused)}). Train a new run with --out; one that is to "
            "grow later needs train.schedule=constant, inverse-sqrt or plateau."
        )
    if refused:
        raise UsageError(
            f"{run.path} cannot go on with another recipe: {'; '.join(refused)}. "
            "Resume it without these changes, or train a new run with --out."
        )
    return bool(changed)


def _value(value: Any) -> str:
    return "absent" if value is ABSENT else shown(value)


def recipe_of(run: Run) -> Any:
    """The recipe a run was trained with."""
    try:
        return build_recipe(run.recipe, str(run.path / "recipe.yaml"))
    except UsageError as error:
        raise CheckpointError(str(error)) from error


def train_recipe(recipe: str | Path, *overrides: str, out: str | Path | None = None) -> "Trained":
    """Train a recipe to its end and return the trained model.

    `recipe` is the name of a shipped recipe or the path of a YAML file; each override is "key.path=value". The run is
    written to `out`, or to runs/<name of the recipe>.
    """
    name, checked = read_recipe(recipe, overrides)
    training = begin(checked, Path(out) if out is not None else Path("runs") / name)
    for event in training.events():
        if isinstance(event, Stopped):
            raise Interrupted(f"Stopped at step {event.step}.")
    return Trained(training.run)


@dataclass(frozen=True)
class Scored:
    """A text and what a language model thinks of it; the last token is END."""

    text: str
    tokens: list[str]
    log_probs: list[float]
    unknown: list[str]  # pieces of the text the vocabulary does not have

    @property
    def log_prob(self) -> float:
        return sum(self.log_probs)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_prob / len(self.log_probs))


class Usable(ABC):
    """What every language model that is ready for use can do."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def model(self) -> Any: ...

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    def device(self) -> Any:
        return device_of(self.model)

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 300,
        seed: int = 0,
        stop: Sequence[str] = (),
        allow_unknown: bool = False,
        **options: Any,
    ) -> Iterator[str]:
        """Continue a prompt, piece by piece. `options` are those of `SamplingConfig`: temperature, top_p, top_k …

        <unk> is never written, since no reader wants to see it, and read in the prompt only if `allow_unknown` is set.
        """
        unwanted = () if self.tokenizer.unknown is None else (self.tokenizer.unknown,)
        sampling = SamplingConfig(banned=unwanted, **options)
        unknown = self.tokenizer.unknown_pieces(prompt)
        if unknown and not allow_unknown:
            raise DataError(
                f"The vocabulary of {self.name} cannot spell {_quoted(unknown)} in the prompt. "
                "Write it without them, or read each as <unk>: --allow-unknown (in Python allow_unknown=True)."
            )
        ids = torch.tensor([[self.tokenizer.end, *self.tokenizer.encode(prompt)]], device=self.device)
        steps = generate(self.model, ids, options=sampling, max_tokens=max_tokens, end=self.tokenizer.end, seed=seed)
        decoder = self.tokenizer.stream()
        decoder.read(ids[0].tolist())  # so that what follows begins with the space, or not, that belongs there
        return text_stream(steps, decoder, stop)

    def score(self, texts: str | Sequence[str]) -> list[Scored]:
        """The log-probability of every token of each text, its end included."""
        texts = [texts] if isinstance(texts, str) else texts  # one text is a list of one, not of its letters
        encoded = [self.tokenizer.encode(text) for text in texts]
        scores = score_texts(self.model, encoded, end=self.tokenizer.end, device=self.device)
        return [
            Scored(
                text,
                [self.tokenizer.token(token) for token in [*ids, self.tokenizer.end]],
                row.tolist(),
                self.tokenizer.unknown_pieces(text),
            )
            for text, ids, row in zip(texts, encoded, scores, strict=True)
        ]


class Trained(Usable):
    """A trained language model, ready for use. Get one from `seqloom.load` or `seqloom.train_recipe`."""

    def __init__(self, run: Run, device: str = "auto"):
        self.run = run
        self._device = device

    @property
    def name(self) -> str:
        return str(self.run.path)

    @cached_property
    def model(self) -> Any:
        return self.run.model(self._device)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Every metric of a split of the data the model was trained on; kept in the run for `compare`."""
        task = self.task()
        found: dict[str, float] = task.evaluate(self.model, split)
        with suppress(ResourceError):  # a run that cannot be written to can still be measured
            self.run.save_metrics(split, found)
        return found

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        """Every metric of any other text."""
        return self.task(documents).evaluate(self.model, "other")

    def task(self, documents: Sequence[str] | None = None) -> Any:
        """The task it was trained for, on its own data; or on other documents, then its only split "other"."""
        if documents is None:
            return self._task.reopen(self._recipe, self.run)
        self.run.tokenizer  # noqa: B018 (a run that is not about text says so here)
        return self._task.of_documents(self._recipe, self.run, documents)

    @cached_property
    def _recipe(self) -> Any:
        return recipe_of(self.run)

    @property
    def _task(self) -> Any:
        return task_module(self._recipe.task).Task

    def __repr__(self) -> str:
        recipe = self.run.recipe
        metrics = self.run.metrics("dev") or {}
        named = [name for name in ("loss", "perplexity", "bits_per_character") if name in metrics]
        figures = ", ".join(f"{name} {metrics[name]:.4g}" for name in named)
        what = f"{recipe['model']['kind']} on {self.run.data['corpus']}, {self.run.path}"
        return f"<{what}; dev: {figures or 'not evaluated'}>"

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the training curve. None, and so the text above, where matplotlib is missing."""
        from seqloom.inspect.curves import draw_curves
        from seqloom.inspect.figures import to_png

        try:
            return to_png(draw_curves([self.run]))
        except ResourceError:
            return None


def load(path: str | Path, device: str = "auto") -> Trained:
    """A trained model from its run directory."""
    return Trained(Run.open(path), device)


class Interpolated(Usable):
    """Several trained language models as one: p = Σ_i λ_i p_i. Get one from `seqloom.interpolate`."""

    def __init__(self, parts: Sequence[Trained], weights: Sequence[float] | None = None):
        self.parts = list(parts)
        self._thoughts: dict[str, list[Tensor]] = {}  # what each part thought of the tokens of a split
        refuse_strangers(self.parts)
        if weights is None:
            weights = best_weights(self._thought("dev"))
        self.weights = checked_weights(weights, len(self.parts))

    @property
    def name(self) -> str:
        return " + ".join(part.name for part in self.parts)

    @cached_property
    def model(self) -> Mixture:
        return Mixture([part.model for part in self.parts], self.weights)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        """Every metric of a split of the data the models were trained on."""
        return self.measure(split)[0]

    def evaluate_documents(self, documents: Sequence[str]) -> dict[str, float]:
        """Every metric of any other text."""
        return self.measure(documents=documents)[0]

    def measure(self, split: str = "dev", documents: Sequence[str] | None = None) -> list[dict[str, float]]:
        """Every metric of a split, or of other documents: of the mixture first, then of each part alone."""
        if documents is None:
            task, thoughts = self.parts[0].task(), self._thought(split)
        else:
            tasks, split = [part.task(documents) for part in self.parts], "other"
            task = tasks[0]
            thoughts = [one.log_probs(part.model, split) for one, part in zip(tasks, self.parts, strict=True)]
        return [task.metrics(thought, split) for thought in (mix(thoughts, self.weights), *thoughts)]

    def _thought(self, split: str) -> list[Tensor]:
        """Each part is read as its own recipe says (in so many rows), and only once."""
        if split not in self._thoughts:
            refuse_other_data(self.parts)
            self._thoughts[split] = [part.task().log_probs(part.model, split) for part in self.parts]
        return self._thoughts[split]

    def __repr__(self) -> str:
        shown = " + ".join(f"{w:.3f} {part.name}" for w, part in zip(self.weights, self.parts, strict=True))
        return f"<{shown}>"


def interpolate(
    models: Sequence[Trained | str | Path], weights: Sequence[float] | None = None, device: str = "auto"
) -> Interpolated:
    """Two or more trained language models as one, p = Σ_i λ_i p_i; without weights, those best on dev are found.

    They must have the same tokenizer, and to be weighed or evaluated on a split also the same data.
    """
    parts = [model if isinstance(model, Trained) else load(model, device) for model in models]
    return Interpolated(parts, weights)


def refuse_strangers(parts: Sequence[Trained]) -> None:
    """Only language models over one vocabulary can be mixed: token 17 must mean the same to all of them."""
    if len(parts) < 2:
        raise UsageError(f"It takes two or more models to mix; got {len(parts)}.")
    for part in parts:
        if not hasattr(task_module(part.run.recipe.get("task")).Task, "log_probs"):
            raise UsageError(f"{part.name} is no language model of text, so it cannot be mixed with others.")
    first, *others = parts
    for other in others:
        if other.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise UsageError(
                f"{first.name} and {other.name} cannot be mixed, as their tokens differ ({_vocabulary(first)}; "
                f"{_vocabulary(other)}). Train them on the same data with the same tokenizer section."
            )


def _vocabulary(part: Trained) -> str:
    return f"{len(part.tokenizer):,} {part.tokenizer.kind} of {part.run.data['corpus']}"


def refuse_other_data(parts: Sequence[Trained]) -> None:
    """A figure for a split means something only if it is the same text, and none of the models has learned from it."""
    first, *others = parts
    for other in others:
        a, b = first.run.data["sha256"], other.run.data["sha256"]
        differing = sorted(split for split in a.keys() | b.keys() if a.get(split) != b.get(split))
        if differing:
            raise UsageError(
                f"{first.name} and {other.name} were not trained on the same data: {', '.join(differing)} differ "
                f"({first.run.data['corpus']}; {other.run.data['corpus']}). Train them on the same, or give "
                "the weights and evaluate another text: --weights 0.5,0.5 --text FILE."
            )


def _quoted(pieces: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(repr(piece) for piece in pieces[:most])
    return f"{listed} and {len(pieces) - most} more" if len(pieces) > most else listed
