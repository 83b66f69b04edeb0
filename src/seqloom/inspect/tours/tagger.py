"""A walk through a tagger: every word of a text gets a tag, judged together with its neighbours'."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seqloom.core.iob import marks_spans
from seqloom.inspect.tours.inputs import OUT, Follow, Intro
from seqloom.inspect.tours.outputs import probability_stage, score_stage
from seqloom.inspect.tours.panels import Lines, Link, Matrix, Stage, Stop, array, quoted, size
from seqloom.inspect.tours.readers import Understanding
from seqloom.text.word_spans import word_spans


class Tagging(Understanding):
    """Of a tagger."""

    def __init__(self, reader: Any, text: str, follow: Follow) -> None:
        super().__init__(reader, text, follow)
        self.first = self.batch["first"][0].tolist()
        self.words = [self.text[start:end] for start, end in word_spans(self.text)][: len(self.first)]
        self.word = max((number for number, place in enumerate(self.first) if place <= self.row), default=0)
        self.emissions = self.model.output(self.h[self.first])  # (W, K)
        self.logits = self.emissions[self.word]
        self.path = self.model.chain.viterbi(self.emissions[None], self.batch["words"])[0][0]
        self.marginals = self.model.chain.marginals(self.emissions[None], self.batch["words"])[0]  # (W, K)

    def vectors(self) -> Tensor:
        found: Tensor = self.model._vectors(self.batch)
        return found

    def stages(self, intro: Intro) -> list[Stage]:
        tags, output = self.reader.tags, self.model.output
        place, best = self.first[self.word], int(self.path[self.word])
        name = quoted(self.words[self.word])
        scores = score_stage(
            self.h[place],
            output.weight,
            output.bias,
            self.logits,
            tags,
            best,
            self.follow.numbers,
            what="tag",
            made_from=f"It is that of {name}. ",
            letter="known",
        )
        chain = (
            [self._together()] if self.model.chain.learned else [probability_stage(tags, self.logits, best, what="tag")]
        )
        return [
            *self.first_stages(intro, [Stop("Scores", f"of {len(tags)} tags", "logits")]),
            *self.reading,
            scores,
            *chain,
            self._answer(),
        ]

    def _table(self, title: str, values: Tensor, shares: bool) -> Matrix:
        tags = self.reader.tags
        return Matrix(
            title=title,
            rows=self.words,
            columns=tags,
            values=array(values),
            of=len(tags),
            marked=self.word,
            shares=shares,
            row_title="word",
            column_title="tag",
        )

    def _together(self) -> Stage:
        words = (
            "Tags of neighbours must go together: inside a name can only come after its beginning. So the model has "
            "also learned a score for every pair of tags that follow each other. It adds up both kinds of scores "
            "along every possible sequence, and finds the best one. The probability of a tag is the share of all "
            "sequences that have it there."
        )
        chain = self.model.chain
        tags = self.reader.tags
        moves = Matrix(
            title="How well tags follow each other",
            rows=tags,
            columns=tags,
            values=array(chain.transitions),
            of=len(tags),
            row_title="from",
            column_title="to",
            note=""
            if bool(chain.allowed.all())
            else "Pairs that make no sense, such as I- after O, are ruled out whatever their score.",
        )
        panels = [
            self._table("The score of every tag for every word", self.emissions, False),
            moves,
            self._table("The probabilities: each row sums to 100%", self.marginals, True),
        ]
        W, K = self.emissions.shape
        return Stage(
            "chain",
            OUT,
            "The tags of a sentence together",
            words,
            "score of a sequence = Σₜ score(tagₜ) + Σₜ pair(tagₜ₋₁, tagₜ)",
            f"{W} words × {K} scores",
            f"{W} words × {K} probabilities",
            panels,
            output=array(self.marginals),
            letters={
                "tagₜ": "the tag of word t in this sequence",
                "score(tag)": "how well it fits its word, from the stage before",
                "pair(tag, tag)": "how well the second follows the first",
            },
        )

    def _answer(self) -> Stage:
        tags = self.reader.tags
        rows = [
            [word, tags[int(tag)], float(self.marginals[number, tag])]
            for number, (word, tag) in enumerate(zip(self.words, self.path, strict=True))
        ]
        words = "Every word has its tag now. " + _spans_words(tags)
        panel = Lines(title=self.answer, columns=("word", "tag", "probability"), rows=rows, marked=self.word)
        links = [Link("understand", "See it beside a hidden Markov model")]
        return Stage(
            "next",
            OUT,
            "The answer",
            words,
            "",
            "probabilities",
            size(len(rows), "tag"),
            (panel,),
            links,
            output=array(self.path),
        )


def _spans_words(tags: Sequence[str]) -> str:
    if marks_spans(tags):
        return "B- begins a name and I- goes on with it, so words that belong together are found to be one."
    return "Each is the model’s best guess, with its probability."
