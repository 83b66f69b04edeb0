"""Instruction tuning: a language model goes on learning, now from instructions with the answers they are to have.

An example is written as the template says. Question and answer are read, but the loss is of the
answer's tokens alone, and of END after them: −1/N Σ_t log p(answer_t | question, answer_<t).
"""

from collections.abc import Iterator
from dataclasses import replace
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
from seqloom.tasks.base import TaskInfo, once
from seqloom.tasks.text_base import CompletionRecipe, CompletionTask
from seqloom.train.config import FitConfig

ROWS = 64  # examples answered side by side


@config
class BatchConfig:
    """How examples are put together."""

    tokens: PositiveInt = 2048  # most of a batch: examples × longest, padding and END included
    max_shapes: PositiveInt | None = (
        None  # at most so many shapes of batches; null: as many as it takes, which pads less
    )
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


class Task(CompletionTask[Recipe, Any]):
    corpus: Corpus[Instruction]
    loss_unit = "nats per token of the answer"
    validates_part = True
    measured_on = "instructions like those of its data"

    @once
    def prompts(self, split: str) -> list[PromptCompletion]:
        return [self.encode(example) for example in self.corpus.split(split)]

    def encode(self, example: Instruction) -> PromptCompletion:
        """Encode an example; if it is too long, cut its input, then its instruction."""
        form, longest, cut = self.recipe.template, self.longest, False
        while True:
            answer = example.output + instruction_suffix(form)
            encoded = encode_completion(self.tokenizer, format_instruction(form, example), answer)
            if longest is None or len(encoded.ids) < longest:
                return replace(encoded, cut=cut)
            over = len(encoded.ids) + 1 - longest
            for name, text in (("input", example.input), ("instruction", example.instruction)):
                shorter = shorten_prompt(self.tokenizer, text, over) if text else text
                if shorter != text:
                    example, cut = replace(example, **{name: shorter}), True
                    break
            else:
                raise DataError(
                    f"An answer must have room in the {longest} tokens that are read at once (batch.max_length), "
                    f"with the template around it; this has {len(encoded.ids) + 1}: {example.output[:60]!r}."
                )

    def about_cut(self, count: int) -> str:
        return (
            f"{count:,} training examples are longer than {self.longest} tokens: their input, or the instruction, "
            "is cut (batch.max_length)."
        )

    # --- measuring --------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Measure every loss of dev, but only so many answers."""
        return self.evaluate(model, "dev", self.recipe.batch.dev_examples)

    @torch.no_grad()
    def evaluate(self, model: Any, split: str, most: int | None = None) -> dict[str, float]:
        """Return loss and perplexity of the answers, and the share that greedy search gives exactly."""
        examples, device, end = self.prompts(split), device_of(model), self.tokenizer.end
        nll, tokens = 0.0, 0
        for _, batch in PromptCompletionBatches(examples, tokens=self.recipe.batch.eval_tokens).every():
            here = to_device(batch, device)
            scores, _ = model.score(here["inputs"], here["targets"], model.start(rows=len(here["inputs"])))
            nll -= (scores.double() * here["counted"]).sum().item()
            tokens += int(batch["counted"].sum())
        some = examples[:most]
        questions = [[RecallQuestion(one.start, len(one.ids) + 1, "exact")] for one in some]
        answers = recall(model, [[*one.ids, end] for one in some], questions, end=end, rows=ROWS, device=device)
        return {"loss": nll / tokens, "perplexity": exp(nll / tokens), **answers}


INFO = TaskInfo(
    name="instruct",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command='prompt {run} --generate "…"',
    metric="perplexity",
    views=("write", "beam", "vectors", "walk", "heads", "cell"),
)
