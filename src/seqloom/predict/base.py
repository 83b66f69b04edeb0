"""A trained model of any kind, from its run: opened, measured, shown."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from seqloom import accel
from seqloom.core.errors import ResourceError
from seqloom.recipes import recipe_of
from seqloom.runs.run import Run
from seqloom.tasks import task_info
from seqloom.tasks.language_model import device_of
from seqloom.text import Tokenizer

if TYPE_CHECKING:
    from seqloom.predict.embeddings import Array, Found, TextPooling


class Predictor:
    """A trained model, ready for use. Get one from `seqloom.load` or `seqloom.train_recipe`."""

    what: ClassVar[str] = "a trained model"  # in words, for whoever tries to use it as something else
    used_by: ClassVar[str] = "`seqloom evaluate` measures it"
    reads_text: ClassVar[bool] = True

    def __init__(self, run: Run, device: str = "auto"):
        self.run = run
        self._device = device

    @property
    def name(self) -> str:
        return str(self.run.path)

    def uses(self) -> str:
        """What can be done with it instead of what was asked, in words."""
        return self.used_by

    @cached_property
    def model(self) -> Any:
        accel.install()
        return self.run.model(self._device)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer

    @property
    def device(self) -> Any:
        return device_of(self.model)

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

    def embed(
        self,
        texts: str | Iterable[str],
        pooling: "TextPooling" = "mean",
        *,
        normalize: bool = False,
        batch_size: int = 32,
        window: int = 1024,
    ) -> "Array":
        """A vector for each text (N, H), float32: what the model makes of its tokens, pooled; zero for a blank one."""
        from seqloom.predict.embeddings import embed

        return embed(self, texts, pooling, normalize=normalize, batch_size=batch_size, window=window)

    def similar(
        self,
        queries: str | Iterable[str],
        texts: Iterable[str],
        *,
        top: int = 5,
        pooling: "TextPooling" = "mean",
        batch_size: int = 32,
        window: int = 1024,
    ) -> "list[Found]":
        """The texts whose vectors lie nearest to that of each query, best first, with their cosines."""
        from seqloom.predict.embeddings import similar

        return similar(self, queries, texts, top=top, pooling=pooling, batch_size=batch_size, window=window)

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
        return task_info(self._recipe.task).task

    def __repr__(self) -> str:
        recipe = self.run.recipe
        metrics = self.run.metrics("dev") or {}
        shown = ["loss", "perplexity", "bits_per_character", "bleu", "accuracy", "span_f1", "token_accuracy"]
        shown += ("masked_accuracy", "next_accuracy", "hidden_accuracy", "pearson", "answer_f1")
        named = [name for name in shown if name in metrics]
        figures = ", ".join(f"{name} {metrics[name]:.4g}" for name in named)
        what = f"{recipe['model']['kind']} on {self.run.data['corpus']}, {self.run.path}"
        return f"<{what}; dev: {figures or 'not evaluated'}>"

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the training curve. None, and so the text above, where matplotlib is missing."""
        from seqloom.inspect.plots.curves import draw_curves
        from seqloom.inspect.plots.figures import to_png

        try:
            return to_png(draw_curves([self.run]))
        except ResourceError:
            return None
