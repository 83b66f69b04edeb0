"""The output of `seqloom evaluate` for models that read images and write texts."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType

from seqloom.core.words import format_sizes, one_line
from seqloom.evaluate.written_texts import WrittenText, WrittenTextReport
from seqloom.predict.evaluation import EXAMPLES, Evaluation, EvaluationOptions, metric_lines, shorten_example


class ImageToTextEvaluation(Evaluation):
    """The texts that a model writes for the images of a split, compared with the correct texts."""

    option_groups = ("search", "out")
    answers_name = "texts"
    report: WrittenTextReport

    def __init__(self, model: Any, options: EvaluationOptions) -> None:
        self.model, self.split = model, options.split
        self.report = model.report(options.split, **options.search)

    def to_json(self) -> dict[str, object]:
        examples = [
            {**self.describe_source(line), "targets": list(line.example.target_texts), "text": line.text}
            for line in self.report.examples()
        ]
        about = {"run": self.model.name, "data": self.data, **self.model.run.data["counts"][self.split]}
        return {**about, **self.report.metrics, "decoding": self.report.decoding, "examples": examples}

    def answers(self) -> Iterator[str]:
        yield "expected\tpredicted\texample\n"
        for line in self.report.lines:
            expected = " | ".join(map(one_line, line.example.target_texts))
            yield "\t".join((expected, one_line(line.text), one_line(self.describe(line)))) + "\n"

    def describe_source(self, line: WrittenText) -> dict[str, object]:
        """Return what the model read as JSON values."""
        example = line.example
        return {"image": example.text, **({"query": example.source_text} if example.source_text else {})}

    def describe(self, line: WrittenText) -> str:
        """Return the name of the image or clip, and the text that the model read with it."""
        return ": ".join(str(value) for value in self.describe_source(line).values())

    def details(self) -> Iterator[RenderableType]:
        """Yield results that belong to the task, after the metrics."""
        return iter(())

    def lines(self, console: Console) -> Iterator[RenderableType]:
        """Yield metrics, and texts that differ from the correct texts."""
        counts = format_sizes(self.model.run.data["counts"][self.split])
        yield f"{self.model.name} on {self.data}: {counts}; {self.report.decoding}"
        yield from metric_lines(self.report.metrics, loss="loss, nats per token", ordered=True)
        yield from self.details()
        wrong = [line for line in self.report.examples(EXAMPLES) if not line.is_exact]
        if wrong:
            yield "\nexamples of texts that differ from the correct texts"
        for line in wrong:
            yield f"  {shorten_example(self.describe(line))}"
            yield from (f"    correct: {shorten_example(text)}" for text in line.example.target_texts)
            yield f"    written: {shorten_example(line.text)}"
