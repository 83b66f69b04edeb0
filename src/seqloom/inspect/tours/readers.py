"""Walks through classifiers and taggers: a text is read, and a label, or a tag for each word, is the answer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.errors import UsageError
from seqloom.inspect.tours.attention import attention_stages, feed_stage, layers_stage
from seqloom.inspect.tours.blocks import encoder_block
from seqloom.inspect.tours.cells import both_stage, climb, step_stage
from seqloom.inspect.tours.inputs import (
    IN,
    OUT,
    READ,
    Follow,
    Intro,
    Read,
    check_length,
    chosen,
    lookup_stage,
    scale_letters,
    text_stage,
    tokens_stage,
)
from seqloom.inspect.tours.outputs import probability_stage, score_stage
from seqloom.inspect.tours.panels import (
    Lines,
    Link,
    Panel,
    Stage,
    Stop,
    added,
    array,
    matrix,
    mixture,
    quoted,
    size,
    visible,
)
from seqloom.inspect.tours.scene import Scene
from seqloom.inspect.tours.transformer import ACTIVATIONS
from seqloom.nn.encoders import ConvolutionEncoder, RecurrentEncoder, TransformerEncoder


class Understanding:
    """What classifiers and taggers share: tokens to vectors, and vectors to what is known at each."""

    def __init__(self, reader: Any, text: str, follow: Follow) -> None:
        self.reader, self.model, self.tokenizer, self.follow = reader, reader.model, reader.tokenizer, follow
        if not hasattr(self.model, "lexicon"):
            raise UsageError(f"There is no walk through {reader.name}: it stands on a body that was trained before.")
        looked = reader.looked(text)
        self.text, self.batch, self.answer = looked.line, looked.batch, looked.answer
        self.ids = self.batch["tokens"][0].tolist()
        check_length(self.ids)
        self.encoder = self.model.encoder
        blocks = getattr(self.encoder, "blocks", [])
        self.layers, self.heads = max(1, len(blocks)), self.encoder.config.heads if blocks else 0
        follow.check(self.layers, max(1, self.heads))
        self.row = chosen(follow.word, self.usual(), len(self.ids), "token")
        self.read = Read(self.ids, [visible(self.tokenizer.token(token)) for token in self.ids], self.row)
        self.own = self.model.lexicon.embed(self.batch["tokens"])[0]
        self.x = self.vectors()[0]
        self.reading, self.h, self.ends = self._encode()

    def usual(self) -> int:
        """The token that is followed where none is named."""
        return 0

    def vectors(self) -> Tensor:
        """x (1, S, D)"""
        raise NotImplementedError

    def first_stages(self, intro: Intro, last: Sequence[Stop]) -> list[Stage]:
        """`last` is what stands between reading and the answer."""
        S, D = self.x.shape
        reading = [Stop("Reading", _reads(self.encoder), self.reading[0].key)] if self.reading else []
        stops = [
            Stop("Tokens", f"{S} pieces", "tokens"),
            Stop("Vectors", f"{S} × {D} numbers", "embeddings"),
            *reading,
            *last,
        ]
        found = [
            text_stage(self.text, intro, stops),
            tokens_stage(self.read, len(self.tokenizer), intro.kind, lowercase=self._in_lower_case()),
            lookup_stage(self.read, self.own, self.model.lexicon.embed.weight, self.follow.numbers),
        ]
        return found if self.x.shape[1] == self.own.shape[1] else [*found, self._spelling()]

    def _in_lower_case(self) -> bool:
        """Whether the tokenizer has made capitals small: then a name does not look like one."""
        return self.text != self.text.lower() and all(token == token.lower() for token in self.read.tokens)

    def _spelling(self) -> Stage:
        spelled = self.x[:, self.own.shape[1] :]
        S, D = self.x.shape
        words = (
            "The model also reads how each word is spelled, letter by letter. So it knows of a capital letter or an "
            "ending even where it has never seen the word. What it makes of the letters is put behind the word’s own "
            "numbers."
        )
        panel = matrix("What the letters say", self.read.tokens, spelled, self.follow.numbers, marked=self.row)
        return Stage(
            "spelling",
            IN,
            "How is it spelled?",
            words,
            "xⱼ ← [xⱼ; spellingⱼ]",
            size(S, "token", self.own.shape[1]),
            size(S, "token", D),
            (panel,),
            output=array(self.x),
            letters={"xⱼ": "the vector of token j", "spellingⱼ": "what the letters of token j say"},
        )

    def _encode(self) -> tuple[list[Stage], Tensor, Tensor]:
        """The stages of reading, h (S, H), and where the reading ended (H,)."""
        if isinstance(self.encoder, RecurrentEncoder):
            return self._recurrent(self.encoder)
        if isinstance(self.encoder, TransformerEncoder):
            return self._transformer(self.encoder)
        if isinstance(self.encoder, ConvolutionEncoder):
            return self._convolution(self.encoder)
        return [], self.x, self.x[-1]

    def _recurrent(self, encoder: RecurrentEncoder) -> tuple[list[Stage], Tensor, Tensor]:
        climbed, numbers = climb(encoder.stack, self.x), self.follow.numbers
        who = (
            "The text is read one token after another. What was read so far is kept in a memory of "
            f"{encoder.config.hidden} numbers, the state h. "
        )
        links = [Link("cell", "See all gates and states over time")]
        stages = [
            step_stage("step", READ, climbed.right[0][self.row], self.read.followed, numbers, who=who, links=links),
            both_stage(
                climbed,
                self.read.tokens,
                self.row,
                encoder.config.combine,
                numbers,
                own=None,
                last="",
                place=self.row,
                known=climbed.top,
            ),
        ]
        return stages, climbed.top, climbed.ends

    def _transformer(self, encoder: TransformerEncoder) -> tuple[list[Stage], Tensor, Tensor]:
        config, numbers, name = encoder.config, self.follow.numbers, self.read.followed
        scaled = encoder.project(self.x) * encoder.width**0.5
        x = scaled
        stages: list[Stage] = []
        if encoder.positions is not None:
            placed = encoder.positions(torch.arange(len(x), device=x.device), like=x).to(x.dtype)
            x = x + placed
            terms = [
                ("", f"{name} × √{encoder.width}", scaled[self.row]),
                ("+", f"place {self.row + 1}", placed[self.row]),
                ("=", "sum", x[self.row]),
            ]
            words = (
                "Attention, which comes next, sees its tokens as a set: it would not know which comes first. So a "
                "second vector, which depends on the place alone, is added to each token’s own."
            )
            shape = size(len(x), "token", encoder.width)
            panel = added(f"What goes in for {name}", terms, numbers)
            stages.append(
                Stage(
                    "positions",
                    IN,
                    "Where does each token stand?",
                    words,
                    f"xⱼ ← √{encoder.width} × W xⱼ + PE(j)",
                    shape,
                    shape,
                    (panel,),
                    output=array(x),
                    letters={"xⱼ": "the vector of token j"} | scale_letters(encoder.width),
                )
            )
        blocks = []
        for each in encoder.blocks:
            blocks.append(encoder_block(each, x))
            x = blocks[-1].after
        h = encoder.norm(x)
        layer, head = self.follow.layer, self.follow.head
        links = [Link("heads", "See all layers and heads", {"part": "encoder", "layer": layer, "head": head})]
        scene = Scene(
            "text", READ, "", self.read.tokens, self.read.tokens, self.row, head - 1, numbers, layer, links=links
        )
        frame = {"norm_first": config.norm_first or config.norm == "none", "residual": True}
        block = blocks[layer - 1]
        assert block.own is not None
        stages += attention_stages(scene, block.own, scaled=True, normed=config.norm != "none", **frame)
        stages.append(feed_stage(scene, block.fed, activation=ACTIVATIONS[config.activation], **frame))
        stages.append(
            layers_stage(
                scene, blocks, h, config.norm_first, "At the end each token’s vector also knows its neighbours."
            )
        )
        return stages, h, h[-1]

    def _convolution(self, encoder: ConvolutionEncoder) -> tuple[list[Stage], Tensor, Tensor]:
        h, ends = (each[0] for each in encoder.read(self.x[None], self.batch["mask"]))
        layer: Any = encoder.layers[0]
        widths = ", ".join(map(str, layer.widths))
        words = (
            f"Small windows slide over the text. Each sees a few neighbouring tokens ({widths} at a time) and looks "
            "for one pattern: multiply all numbers it sees with the pattern’s own, add them up, and set what is "
            f"negative to 0. A high number says: my pattern is here. There are {h.shape[1]} windows, so each token "
            f"gets {h.shape[1]} numbers."
        )
        panel = matrix(
            "How strongly each window answers",
            self.read.tokens,
            h,
            self.follow.numbers,
            marked=self.row,
            column_title="window",
        )
        S, D = self.x.shape
        stage = Stage(
            "windows",
            READ,
            "Windows slide over the text",
            words,
            "yⱼ = ReLU(Σᵢ Wᵢ xⱼ₊ᵢ + b)",
            size(S, "token", D),
            size(S, "token", h.shape[1]),
            (panel,),
            output=array(h),
            letters={"yⱼ": "what the windows say at token j", "xⱼ₊ᵢ": "the vector of the token i places further on"},
        )
        return [stage], h, ends


def _reads(encoder: Any) -> str:
    if isinstance(encoder, RecurrentEncoder):
        return "a memory, token by token"
    return "windows of neighbours" if isinstance(encoder, ConvolutionEncoder) else "layers of attention"


class Labelling(Understanding):
    """Of a classifier."""

    def __init__(self, reader: Any, text: str, follow: Follow) -> None:
        super().__init__(reader, text, follow)
        self.pooled, self.pooling = self._pool()
        self.logits = self.model.output(self.pooled)

    def vectors(self) -> Tensor:
        lexicon = self.model.lexicon
        found: Tensor = lexicon(self.batch["tokens"], lexicon.spelled(self.batch.get("characters")))
        return found

    def _pool(self) -> tuple[Tensor, Stage]:
        """All tokens to one vector."""
        mask, numbers = self.batch["mask"], self.follow.numbers
        names = [quoted(token) for token in self.read.tokens]
        weights: Tensor | None = None
        if self.model.bag is not None:
            weights = self.model.bag.place_weights(self.batch["tokens"], mask)[0].to(self.h.dtype)
            pooled, how = weights @ self.h, "bag"
        else:
            how = self.model.config.pooling or "mean"
            made, found = self.model.pooling(self.h[None], mask, self.ends[None])
            pooled, weights = made[0], None if found is None else found[0]
            if how == "mean":
                weights = torch.full((len(names),), 1 / len(names))
        panel: Panel
        if weights is None:
            panel = matrix(
                "The one vector", ["summary"], pooled[None], numbers, row_title="vector", note=self._from(how, pooled)
            )
        else:
            panel = mixture("The one vector", names, weights, self.h, pooled, numbers, names=("vector", "summary"))
        words = f"There is one answer for the whole text, so its {len(names)} vectors must become one. {POOLED[how]}"
        S, H = self.h.shape
        return pooled, Stage(
            "pooling",
            READ,
            "Many vectors become one",
            words,
            EQUATIONS[how],
            size(S, "token", H),
            size(1, "vector", len(pooled)),
            (panel,),
            output=array(pooled),
            letters=LETTERS[how],
        )

    def _from(self, how: str, pooled: Tensor) -> str:
        """Where the largest of the first numbers was found."""
        if how != "max":
            return ""
        number = int(pooled[: self.follow.numbers].argmax())
        place = int(self.h[:, number].argmax())
        return f"Number {number + 1}, say, comes from token {place + 1}, {quoted(self.read.tokens[place])}."

    def stages(self, intro: Intro) -> list[Stage]:
        labels = self.reader.labels
        best = int(self.logits.argmax())
        output = self.model.output
        scores = score_stage(
            self.pooled,
            output.weight,
            output.bias,
            self.logits,
            labels,
            best,
            self.follow.numbers,
            what="label",
            letter="summary",
        )
        share = torch.softmax(self.logits.double(), dim=-1)
        words = (
            f"The answer is the likeliest label: {quoted(labels[best])}, with {share[best]:.1%}. All the numbers in "
            "between were found in training: whenever the answer was wrong, each was moved a little, so that the "
            "right label would have been likelier."
        )
        top = share.argsort(descending=True, stable=True)[:5].tolist()
        panel = Lines(
            title="The answer",
            columns=("label", "probability"),
            rows=[[labels[k], float(share[k])] for k in top],
            marked=0,
        )
        links = [Link("understand", "See which parts of the text speak for it")]
        answer = Stage(
            "next",
            OUT,
            "The answer",
            words,
            "",
            "probabilities",
            "1 label",
            (panel,),
            links,
            output=array(torch.tensor([best])),
        )
        return [
            *self.first_stages(
                intro,
                [
                    Stop("One vector", "for the whole text", "pooling"),
                    Stop("Probabilities", f"of {len(labels)} labels", "logits"),
                ],
            ),
            *self.reading,
            self.pooling,
            scores,
            probability_stage(labels, self.logits, best, what="label"),
            answer,
        ]


POOLED = {
    "mean": "This model takes their mean: all of them added up, divided by how many there are.",
    "max": "This model takes the largest value of each number: is this pattern anywhere in the text?",
    "last": "This model takes the memory where its reading ended.",
    "attention": "This model gives every token a share, and adds them up by it.",
    "bag": "This model throws them all into one bag and adds them up: the order is lost.",
}
EQUATIONS = {
    "mean": "summary = Σⱼ knownⱼ / S",
    "max": "summaryᵢ = maxⱼ knownⱼᵢ",
    "last": "summary = the memory at the end",
    "attention": "summary = Σⱼ shareⱼ × knownⱼ",
    "bag": "summary = Σⱼ shareⱼ × xⱼ",
}
KNOWN = {"knownⱼ": "the vector of token j, after reading"}
LETTERS: dict[str, dict[str, str]] = {
    "mean": {**KNOWN, "S": "how many tokens there are"},
    "max": {"knownⱼᵢ": "number i of the vector of token j, after reading", "maxⱼ": "the largest over all tokens"},
    "last": {},
    "attention": {**KNOWN, "shareⱼ": "how much token j counts"},
    "bag": {"xⱼ": "the vector of token j", "shareⱼ": "how much token j counts"},
}
