"""Instruction tuning: a language model is trained further on pairs of instructions and responses.

A template combines an instruction and its response. The loss covers only the tokens of the response and END: −1/N Σ_t
log p(response_t | instruction, response_<t).
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
from seqloom.tasks.base import TaskInfo, cached_method
from seqloom.tasks.text_base import CompletionRecipe, CompletionTask
from seqloom.train.config import FitConfig

EVAL_BATCH_SIZE = 64  # number of responses that are generated together


@config
class BatchConfig:
    """Batches of examples."""

    # maximum batch size: examples × length of the longest example, including padding and END
    tokens: PositiveInt = 2048
    # maximum number of different batch shapes; null: no limit, which needs less padding
    max_shapes: PositiveInt | None = None
    # maximum length of an example in tokens, including END; longer examples are truncated
    max_length: Annotated[int, Ge(8)] | None = 256
    eval_tokens: PositiveInt = 8192  # as `tokens`, for evaluation
    dev_examples: PositiveInt | None = 200  # number of dev examples to answer at each evaluation in training; null: all


@config
class Recipe(CompletionRecipe):
    task: Literal["instruct"] = "instruct"
    data: CorpusConfig[Instruction]
    template: str = INSTRUCTION_TEMPLATE  # template of an example
    batch: BatchConfig = BatchConfig()
    model: LanguageModelConfig | None = None  # set from the run in `init.from`
    train: FitConfig

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.model is None:
            yield "model: missing; set init.from to a run of a language model"
        try:
            if problem := instruction_template_problem(self.template):
                yield problem
        except UsageError as error:
            yield str(error)


class Task(CompletionTask[Recipe, Any]):
    corpus: Corpus[Instruction]
    loss_unit = "nats per response token"
    validates_part = True
    measured_on = "examples like its training data"

    @cached_method
    def prompts(self, split: str) -> list[PromptCompletion]:
        return [self.encode(example) for example in self.corpus.split(split)]

    def encode(self, example: Instruction) -> PromptCompletion:
        """Encode an example. If the example is too long, truncate its input, and then its instruction."""
        form, longest, cut = self.recipe.template, self.max_length, False
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
                    f"A response with its template must fit in {longest} tokens (batch.max_length), but this one "
                    f"has {len(encoded.ids) + 1}: {example.output[:60]!r}."
                )

    def truncation_note(self, count: int) -> str:
        return (
            f"{count:,} training examples are longer than {self.max_length} tokens; their input or instruction is "
            "truncated (batch.max_length)."
        )

    # --- evaluation -------------------------------------------------------------------------------------------------

    def validate(self, model: Any) -> dict[str, float]:
        """Compute the loss of all dev examples, and generate responses to `batch.dev_examples` of them."""
        return self.evaluate(model, "dev", self.recipe.batch.dev_examples)

    @torch.no_grad()
    def evaluate(self, model: Any, split: str, max_count: int | None = None) -> dict[str, float]:
        """Return the loss and perplexity of the responses, and the fraction that greedy search reproduces exactly."""
        examples, device, end = self.prompts(split), device_of(model), self.tokenizer.end
        nll, tokens = 0.0, 0
        for _, batch in PromptCompletionBatches(examples, tokens=self.recipe.batch.eval_tokens).all_batches():
            batch = to_device(batch, device)
            scores, _ = model.score(batch["inputs"], batch["targets"], model.start(rows=len(batch["inputs"])))
            nll -= (scores.double() * batch["counted"]).sum().item()
            tokens += int(batch["counted"].sum())
        chosen = examples[:max_count]
        questions = [[RecallQuestion(example.start, len(example.ids) + 1, "exact")] for example in chosen]
        texts = [[*example.ids, end] for example in chosen]
        answers = recall(model, texts, questions, end=end, rows=EVAL_BATCH_SIZE, device=device)
        return {"loss": nll / tokens, "perplexity": exp(nll / tokens), **answers}


INFO = TaskInfo(
    name="instruct",
    recipe=Recipe,
    task=Task,
    predictor="seqloom.predict.language_model:LanguageModelPredictor",
    command='prompt {run} --generate "…"',
    pipeline_tag="text-generation",
    metric="perplexity",
    views=("write", "beam", "vectors", "walk", "heads", "cell"),
)
