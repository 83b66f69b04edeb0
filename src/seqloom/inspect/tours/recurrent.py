"""A walk through a recurrent language model: one token is read, the memory is changed, the next token is predicted."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.inspect.tours.cells import (
    CARRIED,
    Step,
    carried_stage,
    lively,
    memory_stage,
    states,
    step_stage,
    take_steps,
)
from seqloom.inspect.tours.inputs import (
    READ,
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
from seqloom.inspect.tours.outputs import logits_of, next_stage, output_matrix, probability_stage, score_stage
from seqloom.inspect.tours.panels import Link, Stage, Stop, array, matrix, quoted, size, visible
from seqloom.text.base import END


def text_ids(writer: Any, text: str) -> list[int]:
    """END, then the tokens of a text: what a language model reads."""
    ids = [END, *writer.tokenizer.encode(writer.as_taught(text, whole=False))]
    check_length(ids)
    return ids


class Continuing:
    """What all language models share: a text is read up to one of its tokens, and the next one is predicted."""

    remembers = False  # whether what was read is kept in a memory, and not read again
    letter = "x"  # what the last vector is called

    def __init__(self, writer: Any, text: str, follow: Follow) -> None:
        self.writer, self.model, self.tokenizer, self.follow = writer, writer.model, writer.tokenizer, follow
        self.config = self.model.config
        self.text = text
        self.ids = text_ids(writer, text)
        self.row = chosen(follow.word, len(self.ids) - 1, len(self.ids), "token")
        self.read = Read(self.ids, [visible(self.tokenizer.token(token)) for token in self.ids], self.row)
        self.all_logits: Tensor = torch.empty(0)  # (T, V)

    @property
    def logits(self) -> Tensor:
        return self.all_logits[self.row]

    @property
    def so_far(self) -> Read:
        """What has been read by then."""
        return Read(self.ids[: self.row + 1], self.read.tokens[: self.row + 1], self.row)

    @property
    def next(self) -> int:
        """What comes: the text's own next token, or what the model finds likeliest."""
        return self.ids[self.row + 1] if self.row + 1 < len(self.ids) else int(self.logits.argmax())

    def first_stages(self, intro: Intro, inside: Stop) -> list[Stage]:
        """`inside` is what stands between vectors and probabilities."""
        width = self.model.embed.embedding_dim if hasattr(self.model, "embed") else self.config.width
        stops = [
            Stop("Tokens", f"{len(self.ids)} pieces", "tokens"),
            Stop("Vectors", f"{len(self.ids)} × {width} numbers", "embeddings"),
            inside,
            Stop("Probabilities", f"of {len(self.logits):,} tokens", "logits"),
        ]
        return [
            text_stage(self.text, intro, stops, (1, "the new token is read next")),
            tokens_stage(self.read, len(self.tokenizer), intro.kind, end_words(before=True)),
        ]

    def last_stages(self, vector: Tensor, tied: bool, made_from: str = "") -> list[Stage]:
        names = [self.tokenizer.token(token) for token in range(len(self.logits))]
        weight, bias = output_matrix(self.model.output)
        numbers = self.follow.numbers
        scores = score_stage(
            vector,
            weight,
            bias,
            self.logits,
            names,
            self.next,
            numbers,
            tied=tied,
            made_from=made_from,
            letter=self.letter,
        )
        links = [Link("write", "Try temperature and other tokens")]
        return [scores, probability_stage(names, self.logits, self.next, links=links), self._next(names, links)]

    def _next(self, names: Sequence[str], links: Sequence[Link]) -> Stage:
        shares = torch.softmax(self.all_logits.double(), dim=-1)
        token = self.next
        best = int(shares[self.row].argmax())
        given = self.row + 1 < len(self.ids)
        share = f"{shares[self.row, token]:.1%}"
        told = quoted(names[token])
        if given:
            words = f"Your text goes on with {told}, to which the model gave {share}. "
            words += (
                "That is what it found likeliest. " if best == token else f"It likes {quoted(names[best])} better. "
            )
        else:
            words = f"Your text ends here. The likeliest token to go on with is {told}, with {share}. "
            words += "A model that writes takes it, or draws one by these probabilities. "
        words += (
            "The token is read next, and changes the memory: so a whole text is written, token by token."
            if self.remembers
            else "The token is put behind the others and read next: so a whole text is written, token by token."
        )
        rows = [
            [t + 1, quoted(now), quoted(names[after]), float(shares[t, after])]
            for t, (now, after) in enumerate(
                zip(self.read.tokens, [*self.ids[1:], int(shares[-1].argmax())], strict=True)
            )
        ]
        so_far = self.so_far
        came = ("came next", "What came next is your own text; the last is what the model finds likeliest.")
        tokens, ids = [*so_far.tokens, names[token]], [*so_far.ids, token]
        return next_stage(tokens, ids, rows, self.row, words, links, remembers=self.remembers, came=came)


class Reading(Continuing):
    """Of a `RecurrentLM`."""

    remembers = True

    def __init__(self, writer: Any, text: str, follow: Follow) -> None:
        super().__init__(writer, text, follow)
        self.layers, self.heads = len(self.model.stack.cells), 0
        self.letter = "h" if isinstance(self.model.project, torch.nn.Identity) else "result"
        follow.check(self.layers, 1)
        tokens = torch.tensor(self.ids, device=writer.device)
        self.x = self.model.embed(tokens)
        self.steps, self.handed = climb(self.model.stack, self.x)
        self.vectors = self.model.project(self.handed[-1])  # (T, D of the output layer)
        self.all_logits = torch.stack([logits_of(self.model.output, row) for row in self.vectors])

    @property
    def step(self) -> Step:
        return self.steps[self.follow.layer - 1][self.row]

    def stages(self, intro: Intro) -> list[Stage]:
        numbers, name, row = self.follow.numbers, self.read.followed, self.row
        layer = self.follow.layer
        links = [
            Link("cell", "See all gates and states over time", {"layer": layer}),
            Link("gradients", "See how far learning reaches back"),
        ]
        who = "" if self.layers == 1 else f"This is layer {layer} of {self.layers}. "
        below = layer > 1
        reads = ("xₜ", f"what layer {layer - 1} hands on" if below else "the vector of the token that is read")
        came = f"what layer {layer - 1} hands on" if below else "the token"
        units = lively(self.step, max(numbers, CARRIED))
        words = (
            "When the next token is read, this new memory is the memory before. So what was read early can still be "
            "known late, as long as nothing overwrites it. Each row shows the memory after one token."
        )
        shown = self.so_far
        return [
            *self.first_stages(intro, Stop("Memory", f"{self.config.hidden} numbers, changed by each token", "memory")),
            lookup_stage(self.read, self.x, self.model.embed.weight, numbers),
            memory_stage("memory", READ, self.step, name, row == 0, numbers),
            step_stage("step", READ, self.step, name, numbers, who=who, links=links[:1], x=reads, came=came),
            carried_stage(
                "carried",
                READ,
                shown.tokens,
                states(self.steps[layer - 1])[: row + 1],
                row,
                numbers,
                words,
                links,
                units,
            ),
            *([self._layers()] if self.layers > 1 else []),
            *self.last_stages(self.vectors[row], self.config.tied, self._made_from()),
        ]

    def _layers(self) -> Stage:
        """The layers one above the other, at the followed token."""
        row, numbers = self.row, self.follow.numbers
        vectors = torch.stack([handed[row] for handed in self.handed])
        names = [f"layer {depth + 1}" for depth in range(self.layers)]
        words = (
            f"There are {self.layers} such networks one above the other, each with a memory of its own. What the "
            f"lower one hands on is what the next one reads. {self._around()}The top one’s vector is what the next "
            "token is predicted from."
        )
        panel = matrix(
            f"What each layer hands on at {self.read.followed}",
            names,
            vectors,
            numbers,
            row_title="from",
            marked=self.layers - 1,
        )
        H = vectors.shape[1]
        return Stage(
            "layers",
            READ,
            "Layer upon layer",
            words,
            "xₜ of layer 2 = hₜ of layer 1, and so on upwards",
            size(1, "vector", H),
            size(1, "vector", H),
            (panel,),
            output=array(vectors),
            letters={"xₜ": "what a layer reads", "hₜ": "its state after that"},
        )

    def _around(self) -> str:
        how = self.config.connections
        return (
            "" if how == "none" else f"Around the layers there is a second way ({how}), so what comes in can pass by. "
        )

    def _made_from(self) -> str:
        if isinstance(self.model.project, torch.nn.Identity):
            return "It is the state h itself. "
        return "It is made of weighted sums of the state h. "


def climb(stack: Any, x: Tensor) -> tuple[list[list[Step]], list[Tensor]]:
    """x (T, D) through all layers of a `Stack`: the steps of each, and what each hands on (T, H)."""
    below, steps, handed = [x], [], []
    for depth, cell in enumerate(stack.cells):
        given = below[-1]
        read = torch.cat(below, dim=-1) if stack.connections == "dense" else given
        steps.append(take_steps(cell, read))
        h = states(steps[-1])
        handed.append(stack.around[depth](given, h)["y"] if stack.around else h)
        below.append(handed[-1])
    return steps, handed
