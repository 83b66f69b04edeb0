"""Walks through Transformers that read one text: a GPT, which looks back and writes on, and a BERT, which looks to both
sides and fills gaps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.tours.attention import attention_stages, feed_stage, layers_stage
from seqloom.inspect.tours.blocks import Block, text_block
from seqloom.inspect.tours.inputs import (
    OUT,
    READ,
    Embedding,
    Follow,
    Intro,
    Read,
    check_length,
    chosen,
    embed,
    embedding_stages,
    first_rows,
    text_stage,
    tokens_stage,
)
from seqloom.inspect.tours.outputs import logits_of, probability_stage, score_stage
from seqloom.inspect.tours.panels import Lines, Link, Stage, Stop, added, array, matrix, quoted, size, visible
from seqloom.inspect.tours.recurrent import Continuing
from seqloom.inspect.tours.scene import Scene
from seqloom.inspect.tours.transformer import ACTIVATIONS, cut
from seqloom.inspect.views.alignment import one_line
from seqloom.text.gaps import read_gaps
from seqloom.text.specials import framed


def run(body: Any, ids: Sequence[int], device: Any) -> tuple[Embedding, list[Block], Tensor]:
    """The tokens of a text through a `TransformerBackbone`: what goes in, its blocks, and h (T, D)."""
    found = embed(body.embedded, ids, device)
    x, blocks = found.x, []
    for block in body.blocks:
        blocks.append(text_block(block, x, allowed=body.causal_mask(len(x)) if body.causal else None))
        x = blocks[-1].after
    return found, blocks, body.norm(x)


def body_stages(
    read: Read, body: Any, found: Embedding, blocks: Sequence[Block], h: Tensor, follow: Follow, part: str, what: str
) -> list[Stage]:
    """From ids to the top of the body, for one token, layer and head."""
    shape = body.shape
    layer, head = follow.layer, follow.head
    scene = Scene(
        key="text",
        chapter=READ,
        where=f"layer {layer}, head {head}",
        asks=read.tokens,
        answers=read.tokens,
        row=read.row,
        head=head - 1,
        numbers=follow.numbers,
        layer=layer,
        causal=body.causal,
        links=[Link("heads", "See all layers and heads", {"part": part, "layer": layer, "head": head})],
    )
    block, frame = blocks[layer - 1], {"norm_first": shape.norm_first or shape.norm == "none", "residual": True}
    assert block.own is not None
    return [
        *embedding_stages(read, body.embedded, found, shape.positions.kind, follow.numbers),
        *attention_stages(scene, block.own, scaled=True, normed=shape.norm != "none", **frame),
        feed_stage(scene, block.fed, activation=ACTIVATIONS[shape.activation], **frame),
        layers_stage(scene, blocks, h, shape.norm_first, what),
    ]


class Writing(Continuing):
    """Of a `GPT`."""

    def __init__(self, writer: Any, text: str, follow: Follow) -> None:
        super().__init__(writer, text, follow)
        body = self.model.body
        if len(self.ids) > (window := self.config.window):
            raise UsageError(
                f"{writer.name} sees {window} tokens at once, and the text has {len(self.ids)}: shorten it."
            )
        self.layers, self.heads = len(body.blocks), self.config.heads
        follow.check(self.layers, self.heads)
        read = self.ids if self.config.begin is None else [self.config.begin, *self.ids[1:]]
        self.found, self.blocks, self.h = run(body, read, writer.device)
        self.all_logits = logits_of(self.model.output, self.h)

    def stages(self, intro: Intro) -> list[Stage]:
        rows = self.row + 1  # what has been read by then: no token looks ahead
        found = first_rows(self.found, rows)
        blocks = [cut(block, rows) for block in self.blocks]
        what = "The last vector of the last token is what the next token is predicted from."
        return [
            *self.first_stages(intro, Stop("Layers", f"{self.layers} × attention", "text-queries")),
            *body_stages(self.so_far, self.model.body, found, blocks, self.h[:rows], self.follow, "decoder", what),
            *self.last_stages(self.h[self.row], self.config.tied),
        ]


def untrained(reader: Any) -> bool:
    """Whether a BERT was imported without the layers that fill gaps: what they would say means nothing."""
    return "dense.weight" in getattr(reader.run, "data", {}).get("imported", {}).get("drawn", ())


class Filling:
    """Of a `BERT`: what stands at a [MASK]."""

    def __init__(self, reader: Any, text: str, follow: Follow) -> None:
        self.reader, self.model, self.tokenizer, self.follow = reader, reader.model, reader.tokenizer, follow
        self.text = one_line(text, "text")
        gaps = read_gaps(self.tokenizer, reader.specials, self.text)
        self.ids = framed(reader.specials, "bert", gaps.ids).tokens
        check_length(self.ids)
        if reader.longest is not None and len(self.ids) > reader.longest:
            raise UsageError(
                f"{reader.name} reads {reader.longest} tokens at once, and the text has {len(self.ids)}: shorten it."
            )
        body = self.model.body
        self.layers, self.heads = len(body.blocks), body.shape.heads
        follow.check(self.layers, self.heads)
        usual = gaps.masks[0] + 1 if gaps.masks else min(1, len(self.ids) - 1)
        self.row = chosen(follow.word, usual, len(self.ids), "token")
        names = reader.specials.names
        self.read = Read(
            self.ids, [names.get(token) or visible(self.tokenizer.token(token)) for token in self.ids], self.row
        )
        self.found, self.blocks, self.h = run(body, self.ids, reader.device)
        self.told = self.model.dense_norm(self.model.activation(self.model.dense(self.h[self.row])))
        vectors = body.embed.weight[: self.model.vocabulary] if self.model.output is None else self.model.output
        self.weight = vectors
        self.logits = vectors @ self.told + self.model.bias
        self.untrained = untrained(reader)

    def stages(self, intro: Intro) -> list[Stage]:
        end = "[CLS] stands before the text and [SEP] after it"
        end += "; [MASK] is a gap." if self.reader.specials.mask in self.ids else "."
        what = "At the end each vector knows what stands around it, on both sides."
        names = [self.tokenizer.token(token) for token in range(len(self.logits))]
        best = int(self.logits.argmax())
        stages = [
            text_stage(self.text, intro, self._stops()),
            tokens_stage(self.read, len(self.tokenizer), intro.kind, end),
            *body_stages(self.read, self.model.body, self.found, self.blocks, self.h, self.follow, "encoder", what),
        ]
        if self.untrained:
            return [*stages, self._vectors()]
        return [
            *stages,
            self._dense(),
            score_stage(
                self.told,
                self.weight,
                self.model.bias,
                self.logits,
                names,
                best,
                self.follow.numbers,
                tied=self.model.output is None,
                letter="result",
            ),
            probability_stage(names, self.logits, best),
            self._answer(names, best),
        ]

    def _stops(self) -> list[Stop]:
        last = [] if self.untrained else [Stop("Probabilities", f"of {len(self.logits):,} tokens", "logits")]
        return [
            Stop("Tokens", f"{len(self.ids)} pieces", "tokens"),
            Stop("Vectors", f"{len(self.ids)} × {self.h.shape[1]} numbers", "embeddings"),
            Stop("Layers", f"{self.layers} × attention", "text-queries"),
            *last,
        ]

    def _vectors(self) -> Stage:
        """Where the walk ends, if nothing behind it was ever trained."""
        S, D = self.h.shape
        words = (
            f"Here the walk ends, with one vector of {D} numbers for each token. This model was imported without the "
            "layers that would fill a gap: they were never trained, so whatever they said would mean nothing. Its "
            "vectors are of use by themselves: texts that mean the same have similar ones."
        )
        panel = matrix(
            "What the model makes of the text", self.read.tokens, self.h, self.follow.numbers, marked=self.row
        )
        links = [Link("vectors", "See such vectors as points")]
        shape = size(S, "token", D)
        return Stage("next", OUT, "A vector for each token", words, "", shape, shape, (panel,), links, array(self.h))

    def _dense(self) -> Stage:
        D = len(self.told)
        words = (
            f"Before it answers, the vector of {self.read.followed} goes through one more layer: weighted sums, "
            "a bend that keeps mostly the positive ones, and a norm. It turns what is known of this place into what "
            "could stand there."
        )
        terms = [("", "the vector so far", self.h[self.row]), ("→", "one layer more", self.told)]
        panel = added(f"The vector of {self.read.followed}", terms, self.follow.numbers)
        return Stage(
            "told",
            OUT,
            "One layer more",
            words,
            f"result = norm({ACTIVATIONS[self.model.config.activation]}(W x + b))",
            size(1, "vector", D),
            size(1, "vector", D),
            (panel,),
            output=array(self.told),
            letters={"x": "the vector from the last layer"},
        )

    def _answer(self, names: Sequence[str], best: int) -> Stage:
        shares = torch.softmax(self.logits.double(), dim=-1)
        top = shares.argsort(descending=True, stable=True)[:5].tolist()
        hidden = self.ids[self.row] == self.reader.specials.mask
        words = (
            f"At {self.read.followed}, token {self.row + 1} of the text, the model would put {quoted(names[best])}: "
            f"it gives it {shares[best]:.1%}. "
            + (
                "A gap is filled in one go, and nothing is fed back. "
                if hidden
                else "This place is no gap, so the model can see what stands there. "
            )
            + "From many such gaps it has learned what words do in their neighbourhood."
        )
        rows = [[place + 1, quoted(names[token]), float(shares[token])] for place, token in enumerate(top)]
        panel = Lines(title="What could stand there", columns=("", "token", "probability"), rows=rows, marked=0)
        return Stage(
            "next",
            OUT,
            "The gap is filled",
            words,
            "",
            "probabilities",
            size(1, "token"),
            (panel,),
            output=array(torch.tensor([best])),
        )
