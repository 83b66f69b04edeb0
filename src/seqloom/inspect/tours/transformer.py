"""A walk through a Transformer that translates: the source through the encoder, then one step of the decoder."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.inspect.tours.attention import (
    attention_stages,
    feed_stage,
    heads_stage,
    layers_stage,
    look_back_stage,
    mix_stage,
    score_stage,
    weight_stage,
)
from seqloom.inspect.tours.blocks import Block, decoder_block, encoder_block
from seqloom.inspect.tours.inputs import (
    READ,
    WRITE,
    Embedding,
    Follow,
    Intro,
    Read,
    check_length,
    chosen,
    embed,
    embedding_stages,
    end_words,
    scale_letters,
    scaling,
    text_stage,
    tokens_stage,
)
from seqloom.inspect.tours.outputs import logits_of, next_stage, output_matrix, probability_stage
from seqloom.inspect.tours.outputs import score_stage as answer_stage
from seqloom.inspect.tours.panels import Link, Stage, Stop, Tokens, added, array, matrix, quoted, size, visible
from seqloom.inspect.tours.scene import Scene
from seqloom.inspect.views.alignment import Said
from seqloom.text.base import END

ACTIVATIONS = {"relu": "ReLU", "gelu": "GELU", "gelu-tanh": "GELU", "silu": "SiLU", "swiglu": "SwiGLU"}


class Pass(NamedTuple):
    """A source and all steps of its target, through the plain layers."""

    source: Embedding
    encoder: list[Block]
    memory: Tensor  # the encoder's x (S, D)
    target: Embedding
    decoder: list[Block]
    y: Tensor  # (T, D)
    logits: Tensor  # (T, V)


def source_ids(model: Any, said: Said) -> list[int]:
    """What the encoder reads: a model made elsewhere may put a token before it."""
    begin = model.config.source_begin
    return said.read if begin is None else [begin, *said.read]


def target_ids(model: Any, said: Said) -> list[int]:
    """What the decoder reads: what stands before every target, then what was said, the last token excepted."""
    first = END if model.config.begin is None else model.config.begin
    begin = model.config.target_begin
    return [first, *([] if begin is None else [begin]), *said.said[:-1]]


def run(model: Any, read: Sequence[int], written: Sequence[int], device: Any) -> Pass:
    source = embed(model.source_embed, read, device)
    x, encoder = source.x, []
    for block in model.encoder:
        encoder.append(encoder_block(block, x))
        x = encoder[-1].after
    memory = model.encoder_norm(x)
    target = embed(model.target_embed, written, device)
    y, decoder = target.x, []
    for block in model.decoder:
        decoder.append(decoder_block(block, y, memory, causal=model.config.causal))
        y = decoder[-1].after
    y = model.decoder_norm(y)
    return Pass(source, encoder, memory, target, decoder, y, logits_of(model.output, y))


def _layers(blocks: Sequence[Any]) -> str:
    return "1 layer" if len(blocks) == 1 else f"{len(blocks)} layers"


class Translation:
    """The stages of one step. `step` is the place, from 0, of the token that is being written."""

    def __init__(self, translator: Any, said: Said, follow: Follow) -> None:
        model, self.tokenizer, self.said, self.follow = translator.model, translator.tokenizer, said, follow
        self.model, self.config = model, model.config
        read, written = source_ids(model, said), target_ids(model, said)
        check_length(read)
        check_length(written, "translation")
        self.layers, self.heads = min(len(model.encoder), len(model.decoder)), self.config.heads
        follow.check(self.layers, self.heads)
        self.step = chosen(follow.step, min(1, len(said.said) - 1), len(said.said), "step")
        self.row = self.step + len(written) - len(said.said)  # of what the decoder reads
        self.found = run(model, read, written, translator.device)
        self.word = chosen(follow.word, self._looked_at(len(read)), len(read), "token")
        self.read = Read(read, self._names(read), self.word)
        self.written = Read(written[: self.row + 1], self._names(written)[: self.row + 1], self.row)

    @property
    def produced(self) -> list[str]:
        """What each place of the decoder produces: the token after the one that it reads."""
        beginning = self.written.tokens[1 : self.row - self.step + 1]  # tokens before every target
        return [*beginning, *self._names(self.said.said[: self.step + 1])]

    def _names(self, ids: Sequence[int]) -> list[str]:
        return [visible(self.tokenizer.token(token)) for token in ids]

    def _looked_at(self, tokens: int) -> int:
        """The token that the step looks at most, END aside: the one whose way explains most."""
        cross = self.found.decoder[self.model.aligned].cross
        assert cross is not None
        return int(cross.weights[:, self.row, : max(1, tokens - 1)].mean(dim=0).argmax())

    @property
    def logits(self) -> Tensor:
        return self.found.logits[self.row]

    @property
    def frame(self) -> dict[str, bool]:
        return {"norm_first": self.config.norm_first or self.config.norm == "none", "residual": self.config.residual}

    def stages(self, intro: Intro) -> list[Stage]:
        return [
            text_stage(self.said.source, intro, self._stops(), (4, "one token at a time, until the end")),
            tokens_stage(self.read, len(self.tokenizer), intro.kind, end_words(before=False)),
            *embedding_stages(
                self.read, self.model.source_embed, self.found.source, self.config.positions.kind, self.follow.numbers
            ),
            *self._encoder(),
            *self._decoder(),
            *self._output(),
        ]

    def _stops(self) -> list[Stop]:
        S, D = self.found.source.x.shape
        attends = self.found.encoder[0].own is not None
        return [
            Stop("Tokens", f"{S} pieces", "tokens"),
            Stop("Vectors", f"{S} × {D} numbers", "embeddings"),
            Stop(
                "Encoder", f"{_layers(self.model.encoder)} that read", "encoder-queries" if attends else "encoder-feed"
            ),
            Stop("Decoder", f"{_layers(self.model.decoder)} that write", "decoder-start"),
            Stop("Probabilities", f"of {len(self.logits):,} tokens", "logits"),
        ]

    def _scene(self, part: str) -> Scene:
        parts = {
            "encoder": (READ, "encoder", self.read, self.read, False),
            "decoder": (WRITE, "decoder", self.written, self.written, self.config.causal),
            "cross": (WRITE, "cross", self.written, self.read, False),
        }
        chapter, key, asks, answers, causal = parts[part]
        layer, head = self.follow.layer, self.follow.head
        return Scene(
            key=key,
            chapter=chapter,
            where=f"{part}, layer {layer}, head {head}",
            asks=asks.tokens,
            answers=answers.tokens,
            row=asks.row,
            head=head - 1,
            numbers=self.follow.numbers,
            layer=layer,
            causal=causal,
            links=[Link("heads", "See all layers and heads", {"part": part, "layer": layer, "head": head})],
            produced=self.produced if part == "cross" else (),
        )

    def _encoder(self) -> list[Stage]:
        scene, block = self._scene("encoder"), self.found.encoder[self.follow.layer - 1]
        stages = (
            []
            if block.own is None
            else attention_stages(
                scene, block.own, scaled=self.config.scale, normed=self.config.norm != "none", **self.frame
            )
        )
        what = (
            "At the end every token’s vector also knows its neighbours: this is what the sentence means to the model, "
            "and all that the writing side will ever see of it."
        )
        activation = ACTIVATIONS[self.config.activation]
        return [
            *stages,
            feed_stage(scene, block.fed, activation=activation, **self.frame),
            layers_stage(scene, self.found.encoder, self.found.memory, self.config.norm_first, what),
        ]

    def _decoder(self) -> list[Stage]:
        own, cross = self._scene("decoder"), self._scene("cross")
        block = cut(self.found.decoder[self.follow.layer - 1], self.row + 1)
        assert block.own is not None and block.cross is not None
        scaled, frame = self.config.scale, self.frame
        activation = ACTIVATIONS[self.config.activation]
        what = "The last vector of the last layer is what the next token is made of."
        blocks = [cut(each, self.row + 1) for each in self.found.decoder]
        return [
            self._start(),
            look_back_stage(own, block.own, **frame),
            score_stage(cross, block.cross, scaled),
            weight_stage(cross, block.cross),
            mix_stage(cross, block.cross),
            heads_stage(cross, block.cross, **frame),
            feed_stage(own, block.fed, activation=activation, **frame),
            layers_stage(own, blocks, self.found.y[: self.row + 1], self.config.norm_first, what),
        ]

    def _start(self) -> Stage:
        """What the decoder reads before it writes the token of this step."""
        row, target, begin = self.row, self.found.target, quoted(self.written.tokens[0])
        before = (
            f"Nothing has been written yet, so it begins with {begin}, which here only says: begin."
            if self.step == 0
            else f"So far it has written {size(self.step, 'token')}. Before that stands {begin}; here it says: begin."
        )
        words = (
            f"Now the model writes, one token at a time. We look at step {self.step + 1} of {len(self.said.said)}. "
            f"{before} Each token is looked up and told its place, as on the reading side. The last one is "
            "where the next token will be made."
        )
        panels = [
            Tokens(
                title="What has been written so far", tokens=self.written.tokens, ids=self.written.ids, followed=row
            ),
            matrix(
                "Their vectors, places added", self.written.tokens, target.x[: row + 1], self.follow.numbers, marked=row
            ),
        ]
        if target.positions is not None:
            terms = [
                (
                    "",
                    f"{self.written.followed} from the lookup table"
                    + (f" × √{target.x.shape[1]}" if self.config.embed_scale else ""),
                    target.scaled[row],
                ),
                ("+", f"place {row + 1}", target.positions[row]),
            ]
            panels.append(
                added(
                    f"What goes in for {self.written.followed}",
                    [*terms, ("=", "sum", target.scaled[row] + target.positions[row])],
                    self.follow.numbers,
                )
            )
        D = target.x.shape[1]
        scaled = D if self.config.embed_scale else None
        return Stage(
            "decoder-start",
            WRITE,
            "What was written so far is read",
            words,
            f"xⱼ = {scaling(scaled)}E[idⱼ]{'' if target.positions is None else ' + PE(j)'}",
            size(row + 1, "token"),
            size(row + 1, "token", D),
            panels,
            output=array(target.x[: row + 1]),
            letters={"xⱼ": "what goes in for token j"} | scale_letters(scaled),
        )

    def _output(self) -> list[Stage]:
        names = [self.tokenizer.token(token) for token in range(len(self.logits))]
        token = self.said.said[self.step]
        weight, bias = output_matrix(self.model.output)
        vector = self.found.y[self.row]
        tied = self.config.tied != "none"
        answer = answer_stage(
            vector, weight, bias, self.logits, names, token, self.follow.numbers, tied=tied, letter="x"
        )
        links = [Link("beam", "See how the best sentence is searched for"), Link("write", "Try other tokens here")]
        return [answer, probability_stage(names, self.logits, token, links=links), self._next(names, token)]

    def _next(self, names: Sequence[str], token: int) -> Stage:
        return translated_stage(self.said, self.step, self.found.logits[self.row - self.step :], names, self.written)


def cut(block: Block, rows: int) -> Block:
    """A block as it is when only the first `rows` tokens are there: none of them has looked ahead."""
    own, cross = block.own, block.cross
    if own is not None:
        own = own._replace(
            **{name: getattr(own, name)[:rows] for name in ("before", "seen", "made", "after")},
            **{name: getattr(own, name)[:, :rows] for name in ("q", "k", "v", "mixed")},
            scores=own.scores[:, :rows, :rows],
            weights=own.weights[:, :rows, :rows],
        )
    if cross is not None:
        cross = cross._replace(
            **{name: getattr(cross, name)[:rows] for name in ("before", "seen", "made", "after")},
            **{name: getattr(cross, name)[:, :rows] for name in ("q", "mixed", "scores", "weights")},
        )
    fed = type(block.fed)(*(part[:rows] for part in block.fed))
    return Block(block.before[:rows], own, cross, fed, block.after[:rows])


def translated_stage(
    said: Said, step: int, logits: Tensor, names: Sequence[str], read: Read, remembers: bool = False
) -> Stage:
    """What is written at this step, and at all others: of any translator. `logits` are (steps, V). One that `remembers`
    reads only the new token next."""
    token = said.said[step]
    share = torch.softmax(logits[step].double(), dim=-1)
    best = int(share.argmax())
    likeliest = "the likeliest of all" if best == token else f"likelier by itself would be {quoted(names[best])}"
    words = f"The model writes {quoted(names[token])}, to which it gives {share[token]:.1%}: {likeliest}. "
    words += _search_words(said)
    if token == END:
        words += " This token says that the sentence is complete: here the model stops."
    elif remembers:
        words += " The token is read next: the writing half keeps its memory and changes it by this one token."
    else:
        words += " The token is put behind the others, and the writing half begins anew, one token longer."
    shares = torch.softmax(logits.double(), dim=-1)
    rows = [
        [t + 1, quoted(before), quoted(names[now]), float(shares[t, now])]
        for t, (before, now) in enumerate(
            zip([read.tokens[read.row - step], *(names[i] for i in said.said)], said.said, strict=False)
        )
    ]
    links = [Link("alignment", "See where it looked for each word"), Link("beam", "See the search")]
    return next_stage([*read.tokens, names[token]], [*read.ids, token], rows, step, words, links, remembers=remembers)


def _search_words(said: Said) -> str:
    if said.given:
        return "You gave this translation, so the model is made to say it."
    return "A search compares several ways to go on, and takes the sentence that is likeliest as a whole."
