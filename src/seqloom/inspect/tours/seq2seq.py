"""A walk through a recurrent translator: the source is read, from both ends where it is; then one step of writing, with
attention where there is any."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.inspect.tours.cells import Climbed, Step, both_stage, climb, step_stage, take_step
from seqloom.inspect.tours.inputs import (
    READ,
    WRITE,
    Follow,
    Intro,
    Read,
    check_length,
    chosen,
    end_words,
    lookup_stage,
    text_stage,
    tokens_stage,
)
from seqloom.inspect.tours.outputs import logits_of, output_matrix, probability_stage, score_stage
from seqloom.inspect.tours.panels import Link, Stage, Stop, Tokens, added, array, matrix, quoted, size, visible
from seqloom.inspect.tours.scores import attention_stages, raw_scores
from seqloom.inspect.tours.transformer import translated_stage
from seqloom.inspect.views.alignment import Said
from seqloom.text.base import END


class Encoded(NamedTuple):
    """What the encoder did."""

    words: Tensor  # E x (S, D)
    climbed: Climbed  # in the order in which it read
    annotations: Tensor  # (S, M), in the order of the sentence
    summary: Tensor  # (M,)


class Written(NamedTuple):
    """One step of the decoder."""

    y: Tensor  # (D,)
    inputs: Tensor  # all that its lowest cell reads
    layers: list[Step]
    scores: Tensor | None  # (S,)
    weights: Tensor | None
    context: Tensor | None
    asked: Tensor  # s that attends
    coverage: Tensor | None  # before this step
    readout: Tensor


def reading_order(tokens: int, reverse: bool) -> list[int]:
    """The places of a source as they are read; reversed, END stays last all the same."""
    return [*reversed(range(tokens - 1)), tokens - 1] if reverse else list(range(tokens))


def encode(model: Any, ids: Sequence[int], device: Any) -> Encoded:
    """As `RecurrentSeq2Seq._read`, step by step."""
    words = model.source_embed(torch.tensor(list(ids), device=device))
    turned = torch.tensor(reading_order(len(ids), model.config.reverse), device=device)
    climbed = climb(model.encoder, words[turned])
    annotations = climbed.top[turned]
    if model.config.residual and model.attend is not None:
        annotations = annotations + words
    return Encoded(words, climbed, annotations, climbed.ends)


def decode(model: Any, found: Encoded, ids: Sequence[int], device: Any) -> tuple[list[Written], dict[str, Tensor]]:
    """As `RecurrentSeq2Seq._tick`, for all tokens that are read; and what was prepared of the source."""
    config, attention = model.config, model.config.attention
    memory = {}
    if model.attend is not None:
        mask = torch.ones(1, len(found.annotations), dtype=torch.bool, device=device)
        memory = model.attend.prepare(found.annotations[None], mask)
    carry = model.first({"summary": found.summary[None], "mask": memory.get("mask")})
    layers = [{name: value[0] for name, value in layer.items()} for layer in carry["layers"]]
    readout = carry["readout"][0]
    coverage = carry["coverage"][0] if "coverage" in carry else None
    every = [found.summary] if config.context == "every" else []
    steps: list[Written] = []
    for token in ids:
        y = model.target_embed(torch.tensor(token, device=device))
        before = layers[-1]["h"]
        looked = _look(model, before, memory, coverage) if attention and attention.order == "bahdanau" else None
        fed = [looked[2]] if looked else [readout] if attention and attention.input_feeding else []
        inputs = torch.cat([y, *fed, *every])
        made, x = [], inputs
        for cell, state in zip(model.decoder.cells, layers, strict=True):
            made.append(take_step(cell, x, state))
            x = made[-1].h
        layers = [step.state for step in made]
        if attention and looked is None:
            looked = _look(model, x, memory, coverage)
        scores, weights, context = looked or (None, None, None)
        contexts = [each for each in (context, *every) if each is not None]
        readout = _read_out(model, y, x, contexts)
        asked = before if attention and attention.order == "bahdanau" else x
        steps.append(Written(y, inputs, made, scores, weights, context, asked, coverage, readout))
        if coverage is not None and weights is not None:
            coverage = coverage + weights
    return steps, memory


def _look(model: Any, s: Tensor, memory: dict[str, Tensor], coverage: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, weights (S,) and the context (M,) of a state (H,)."""
    scores = raw_scores(model, s, memory, coverage)
    weights = torch.softmax(scores, dim=-1)
    return scores, weights, weights @ memory["annotations"][0]


def _read_out(model: Any, y: Tensor, s: Tensor, contexts: Sequence[Tensor]) -> Tensor:
    if model.readout is None:
        return s
    seen = [y, s, *contexts] if model.config.reads_token else [s, *contexts]
    return torch.tanh(model.readout(torch.cat(seen)))


class Translation:
    """The stages of one step; see the class of that name of `walk_transformer`."""

    def __init__(self, translator: Any, said: Said, follow: Follow) -> None:
        self.model, self.tokenizer, self.said, self.follow = translator.model, translator.tokenizer, said, follow
        self.config = self.model.config
        check_length(said.read)
        check_length(said.said, "translation")
        self.layers, self.heads = len(self.model.decoder.cells), 0
        follow.check(self.layers, 1)
        self.step = chosen(follow.step, min(1, len(said.said) - 1), len(said.said), "step")
        written = [END, *said.said[:-1]]
        self.encoded = encode(self.model, said.read, translator.device)
        self.steps, self.memory = decode(self.model, self.encoded, written, translator.device)
        self.vectors = [self.model.project(step.readout) for step in self.steps]
        self.all_logits = torch.stack([logits_of(self.model.output, vector) for vector in self.vectors])
        self.word = chosen(follow.word, self._looked_at(), len(said.read), "token")
        self.read = Read(said.read, [visible(token) for token in said.source_tokens], self.word)
        names = [visible(self.tokenizer.token(token)) for token in written]
        self.written = Read(written[: self.step + 1], names[: self.step + 1], self.step)

    def _looked_at(self) -> int:
        weights = self.steps[self.step].weights
        return 0 if weights is None else int(weights[: max(1, len(weights) - 1)].argmax())

    @property
    def logits(self) -> Tensor:
        return self.all_logits[self.step]

    @property
    def now(self) -> Written:
        return self.steps[self.step]

    def stages(self, intro: Intro) -> list[Stage]:
        numbers = self.follow.numbers
        table = self.model.source_embed.weight
        early = self.config.attention is not None and self.config.attention.order == "bahdanau"
        looking = self._attention()
        return [
            text_stage(
                self.said.source, intro, self._stops(), (5 if looking else 4, "one token at a time, until the end")
            ),
            tokens_stage(self.read, len(self.tokenizer), intro.kind, end_words(before=False)),
            lookup_stage(self.read, self.encoded.words, table, numbers),
            *self._encoder(),
            self._summary(),
            self._start(),
            *(looking if early else []),
            self._step(),
            *([] if early else looking),
            *([] if self.model.readout is None else [self._readout()]),
            *self._output(),
        ]

    def _stops(self) -> list[Stop]:
        S, D = self.encoded.words.shape
        ways = "from both ends" if self.encoded.climbed.left else "token by token"
        attention = [Stop("Attention", "what is needed now?", "scores")] if self.model.attend is not None else []
        return [
            Stop("Tokens", f"{S} pieces", "tokens"),
            Stop("Vectors", f"{S} × {D} numbers", "embeddings"),
            Stop("Reader", ways, "encoder-step"),
            *attention,
            Stop("Writer", f"one of {len(self.logits):,} tokens", "decoder-start"),
        ]

    # Reading.

    def _encoder(self) -> list[Stage]:
        numbers, found, attends = self.follow.numbers, self.encoded, self.model.attend is not None
        place = reading_order(len(self.read.ids), self.config.reverse).index(self.word)
        links = [Link("cell", "See all gates and states over time")]
        first = "It reads the sentence from its end. " if self.config.reverse else ""
        who = (
            f"{first}The first half of the model reads one token after another, and keeps what it has read in a "
            f"memory: {self.config.hidden} numbers, its state h. "
        )
        step = found.climbed.right[0][place]
        last = (
            "The result is kept for each token: this is what the sentence looks like to the half that writes."
            if attends
            else "This model keeps only the last of them, as the next stage shows."
        )
        own = found.words[self.word] if self.config.residual and attends else None
        return [
            step_stage("encoder-step", READ, step, self.read.followed, numbers, who=who, links=links),
            both_stage(
                found.climbed,
                self.read.tokens,
                self.word,
                self.config.combine,
                numbers,
                own=own,
                last=last,
                place=place,
                known=found.annotations,
            ),
        ]

    def _summary(self) -> Stage:
        """From where reading ended to where writing begins."""
        first = self.steps[0].layers[0].before["h"]
        M, H = len(self.encoded.summary), len(first)
        words = (
            "When all has been read, the last memory is a summary of the whole sentence. Weighted sums, and tanh, "
            "which squeezes every number between −1 and 1, turn it into the first memory of the half that writes. "
            + (
                "But a few numbers cannot hold a long sentence. That is why the model may also look back at it, as "
                "we will see."
                if self.model.attend is not None
                else "It is all that the writing half ever learns of the sentence."
            )
        )
        panels = [
            matrix("The summary", ["summary"], self.encoded.summary[None], self.follow.numbers, row_title="vector"),
            matrix(
                "The first memory of the half that writes",
                ["s₀"],
                first[None],
                self.follow.numbers,
                row_title="vector",
                column_title="unit",
            ),
        ]
        return Stage(
            "summary",
            READ,
            "A summary of the sentence",
            words,
            "s₀ = tanh(W summary + b)",
            size(1, "vector", M),
            size(1, "vector", H),
            panels,
            output=array(first),
            letters={"s₀": "the first memory of the half that writes"},
        )

    # Writing.

    def _start(self) -> Stage:
        step, now, begin = self.step, self.now, quoted(self.written.tokens[0])
        before = (
            f"Nothing has been written yet, so it begins with {begin}, which here only says: begin."
            if step == 0
            else f"So far it has written {size(step, 'token')}; the last is {self.written.followed}. Before that "
            f"stands {begin}, which here says: begin."
        )
        words = (
            f"Now the second half of the model writes, one token at a time. We look at step {step + 1} of "
            f"{len(self.said.said)}. {before} It reads only the vector of the last token; everything else it knows is "
            "in its memory, the state s."
        )
        state = now.layers[-1].before["h"]
        panels = [
            Tokens(
                title="What has been written so far", tokens=self.written.tokens, ids=self.written.ids, followed=step
            ),
            matrix(
                "What goes into this step",
                [f"vector of {self.written.followed}"],
                now.y[None],
                self.follow.numbers,
                row_title="vector",
            ),
            matrix(
                "The memory so far",
                ["state s before"],
                state[None],
                self.follow.numbers,
                row_title="memory",
                column_title="unit",
            ),
        ]
        return Stage(
            "decoder-start",
            WRITE,
            "What was written so far",
            words,
            "yₜ₋₁ = E[idₜ₋₁]",
            size(1, "id"),
            size(1, "vector", len(now.y)),
            panels,
            output=array(now.y),
            letters={"yₜ₋₁": "the vector of the token that was written last"},
        )

    def _step(self) -> Stage:
        also = []
        attention = self.config.attention
        if attention is not None and attention.order == "bahdanau":
            also.append("what attention has just found")
        if attention is not None and attention.input_feeding:
            also.append("what the last token was made from")
        if self.config.context == "every":
            also.append("the summary of the sentence")
        beside = f" Beside the token it reads {' and '.join(also)}." if also else ""
        who = f"The writer’s memory changes like the reader’s, with weights of its own.{beside} "
        depth = self.follow.layer - 1
        who += "" if self.layers == 1 else f"This is its layer {depth + 1} of {self.layers}. "
        fed = f"the vector of the token before{', and behind it ' if also else ''}{' and '.join(also)}"
        return step_stage(
            "decoder-step",
            WRITE,
            self.now.layers[depth],
            self.written.followed,
            self.follow.numbers,
            who=who,
            title="The memory of the writer changes",
            state="s",
            x=("xₜ", f"what layer {depth} hands on") if depth else ("yₜ₋₁", fed),
            came=f"what layer {depth} hands on" if depth else "the token",
        )

    def _attention(self) -> list[Stage]:
        return (
            []
            if self.model.attend is None
            else attention_stages(self.model, self.now, self.memory, self.read, self.step, self.follow.numbers)
        )

    def _readout(self) -> Stage:
        now, numbers = self.now, self.follow.numbers
        seen = [("the last token y", now.y)] if self.config.reads_token else []
        seen.append(("the writer’s memory s", now.layers[-1].h))
        if now.context is not None:
            seen.append(("what attention found, the context", now.context))
        if self.config.context == "every":
            seen.append(("the summary", self.encoded.summary))
        words = (
            "What the writer remembers and what it has just found in the sentence are joined into one long list. Of "
            "it weighted sums are made, and squeezed by tanh between −1 and 1. The next token will be made from the "
            "result."
        )
        terms = [("&" if place else "", name, vector) for place, (name, vector) in enumerate(seen)]
        panel = added("What the next token is made from", [*terms, ("→", "tanh: the result", now.readout)], numbers)
        letters = {"yₜ₋₁": "the vector of the last token"} if self.config.reads_token else {}
        letters |= {"s": "the memory of the half that writes"}
        letters |= {"context": "what attention found"} if now.context is not None else {}
        letters |= {"summary": "that of the whole sentence"} if self.config.context == "every" else {}
        equation = f"result = tanh(W [{'; '.join(letters)}] + b)"
        width = self.model.readout.in_features
        return Stage(
            "readout",
            WRITE,
            "Memory and findings are joined",
            words,
            equation,
            size(len(seen), "vector") + f", together {width} numbers",
            size(1, "vector", len(now.readout)),
            (panel,),
            output=array(now.readout),
            letters=letters,
        )

    def _output(self) -> list[Stage]:
        names = [self.tokenizer.token(token) for token in range(len(self.logits))]
        token = self.said.said[self.step]
        weight, bias = output_matrix(self.model.output)
        tied = self.config.tied != "none"
        answer = score_stage(
            self.vectors[self.step],
            weight,
            bias,
            self.logits,
            names,
            token,
            self.follow.numbers,
            tied=tied,
            letter="s" if self.model.readout is None else "result",
        )
        links = [Link("beam", "See how the best sentence is searched for"), Link("write", "Try other tokens here")]
        last = translated_stage(self.said, self.step, self.all_logits, names, self.written, remembers=True)
        return [answer, probability_stage(names, self.logits, token, links=links), last]
