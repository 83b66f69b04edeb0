"""Instruction tuning: a language model goes on learning, now from instructions with the answers they are to have.

An example is written as the template says. Question and answer are read, but the loss is of the answer's tokens alone,
and of END after them: −1/N Σ_t log p(answer_t | question, answer_<t).
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch

from seqloom.config import config
from seqloom.config.constraints import Ge, PositiveInt
from seqloom.core.device import device_of
from seqloom.core.errors import DataError, UsageError
from seqloom.core.tree import to_device
from seqloom.data.collate import PromptCompletion, PromptCompletionBatches, encode_completion, shorten_prompt
from seqloom.data.corpora import CorpusConfig
from seqloom.data.corpus import Corpus
from seqloom.data.examples import Instruction
from seqloom.data.prompts import (
    INSTRUCTION_TEMPLATE,
    format_instruction,
    instruction_suffix,
    instruction_template_problem,
)
from seqloom.evaluate.perplexity import RecallQuestion, exp, recall
from seqloom.models.soft_prompt import LanguageModelConfig
from seqloom.tasks.base import TaskInfo
from seqloom.tasks.text_base import CompletionRecipe, CompletionTask
from seqloom.text import Tokenizer
from seqloom.train.config import FitConfig

ROWS = 64  # examples answered side by side


@config
class BatchConfig:
    """How examples are put together."""

    tokens: PositiveInt = 2048  # most of a batch: examples × longest, padding and END included
    shapes: PositiveInt | None = None  # at most so many shapes of batches; null: as many as it takes, which pads less
    max_length: Annotated[int, Ge(8)] | None = 256  # tokens of an example, END included; longer ones are cut
    eval_tokens: PositiveInt = 8192  # as `tokens`, when a split is evaluated
    dev_examples: PositiveInt | None = 200  # of dev that are answered at each evaluation in training; null for all


@config
class Recipe(CompletionRecipe):
    task: Literal["instruct"] = "instruct"
    data: CorpusConfig[Instruction]
    template: str = INSTRUCTION_TEMPLATE  # how an example is written
    batch: BatchConfig = BatchConfig()
    model: LanguageModelConfig | None = None  # filled in from init.from
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model is None:
            yield "model: missing; it is that of the run in init.from"
        try:
            if problem := instruction_template_problem(self.template):
                yield problem
        except UsageError as error:
            yield str(error)


class Task(CompletionTask):
    recipe: Any
    corpus: Corpus[Instruction]
    validates_part = True
    measured_on = "instructions like those of its data"

    def __init__(self, recipe: Recipe, corpus: Any, tokenizer: Tokenizer, names: Sequence[str] = ()):
        super().__init__(recipe, corpus, tokenizer, names)
        self._examples: dict[str, list[PromptCompletion]] = {}

    def loss_unit(self) -> str:
        return "nats per token of the answer"

    def receiver(self, model: Any) -> Any:
        from seqloom.runs.transfer import Whole

        return Whole(model)

    # --- data -------------------------------------------------------------------------------------------------------

    @property
    def longest(self) -> int | None:
        own = self.recipe.batch.max_length
        most = self.recipe.model.window if self.recipe.model.kind == "gpt" else None
        return own if most is None else min(own or most, most)

    def prompts(self, split: str) -> list[PromptCompletion]:
        if split not in self._examples:
            self._examples[split] = [self._told(one) for one in self.corpus.split(split)]
        return self._examples[split]

    def _told(self, one: Instruction) -> PromptCompletion:
        """An example in tokens; where it is too long, its input is cut first, then its instruction."""
        form, cut = self.recipe.template, False
        made = encode_completion(self.tokenizer, format_instruction(form, one), one.output + instruction_suffix(form))
        while self.longest is not None and len(made.ids) >= self.longest:
            shorter = self._shorter(one, len(made.ids) + 1 - self.longest)
            if shorter == one:
                raise DataError(
                    f"An answer must have room in the {self.longest} tokens that are read at once (batch.max_length), "
                    f"with the template around it; this has {len(made.ids) + 1}: {one.output[:60]!r}."
                )
            one, cut = shorter, True
            made = encode_completion(
                self.tokenizer, format_instruction(form, one), one.output + instruction_suffix(form)
            )
        return PromptCompletion(made.ids, made.start, cut)

    def _shorter(self, one: Instruction, over: int) -> Instruction:
        for name in ("input", "instruction"):
            text = getattr(one, name)
            if text and (shorter := shorten_prompt(self.tokenizer, text, over)) != text:
                return Instruction(**{**vars(one), name: shorter})
        return one

    def about_cut(self, count: int) -> str:
        return (
            f"{count:,} training examples are longer than {self.longest} tokens: their input, or the instruction, "
            "is cut (batch.max_length)."
        )

    # --- training and measuring -------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Dev in training: every loss, but only so many answers."""
        return self._measured(model, "dev", self.recipe.batch.dev_examples)

    def evaluate(self, model: Any, split: str) -> dict[str, float]:
        return self._measured(model, split, None)

    def _measured(self, model: Any, split: str, most: int | None) -> dict[str, float]:
        """loss and perplexity of the answers' tokens, and the share that greedy search would give word for word."""
        examples = self.prompts(split)
        nll, tokens = self._totals(model, examples)
        some = examples[:most]
        questions = [[RecallQuestion(one.start, len(one.ids) + 1, "exact")] for one in some]
        rows = [[*one.ids, self.tokenizer.end] for one in some]
        answers = recall(model, rows, questions, end=self.tokenizer.end, rows=ROWS, device=device_of(model))
        return {"loss": nll / tokens, "perplexity": exp(nll / tokens), **answers}

    @torch.no_grad()
    def _totals(self, model: Any, examples: Sequence[PromptCompletion]) -> tuple[float, int]:
        batches = PromptCompletionBatches(examples, tokens=self.recipe.batch.eval_tokens)
        nll, tokens = 0.0, 0
        for _, batch in batches.every():
            here = to_device(batch, device_of(model))
            scores, _ = model.score(here["inputs"], here["targets"], model.start(rows=len(here["inputs"])))
            nll -= (scores.double() * here["counted"]).sum().item()
            tokens += int(batch["counted"].sum())
        return nll, tokens


INFO = TaskInfo(
    name="instruct",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command='prompt {run} --generate "…"',
    metric="perplexity",
    views=("write", "beam", "vectors", "walk", "heads", "cell"),
)
