"""The stages of a Transformer's layer, for one token and one head: ask, compare, share out, mix, put together, feed
forward; and the other layers in brief."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.inspect.tours.blocks import Block, Fed, Looked
from seqloom.inspect.tours.inputs import equals
from seqloom.inspect.tours.panels import (
    Link,
    Panel,
    Stage,
    added,
    array,
    dot,
    looks,
    matrix,
    mixture,
    quoted,
    size,
    softmax,
)
from seqloom.inspect.tours.scene import Scene
from seqloom.inspect.views.alignment import AxisTitles

CAUSAL = "It cannot look ahead: when the model writes, nothing is there yet."


def query_stage(scene: Scene, looked: Looked, normed: bool) -> Stage:
    head, d = scene.head, looked.q.shape[2]
    words = (
        f"{_before_words(scene.layer)} Now the tokens exchange what they know, and this is called attention. "
        "From its vector each token makes three shorter ones: a query (what am I looking for?), a key (what do I "
        f"have to offer?) and a value (what do I give?). {_heads_words(len(looked.q), head, d)}"
    )
    if normed:
        words += " (Before that, each vector is normed: shifted and stretched to mean 0 and spread 1.)"
    numbers, seen = min(scene.numbers, d), scene.seen(looked)
    answers = [scene.answers[place] for place in seen]
    query = looked.q[head, scene.row : scene.row + 1]
    panels: list[Panel] = [
        matrix(
            f"The query of {scene.name}: what it looks for",
            [scene.asks[scene.row]],
            query,
            numbers,
            row_title="query of",
        ),
        matrix("The keys: what each token offers", answers, looked.k[head, seen], numbers, row_title="key of"),
        matrix("The values: what each token gives", answers, looked.v[head, seen], numbers, row_title="value of"),
    ]
    D = looked.before.shape[1]
    return Stage(
        f"{scene.key}-queries",
        scene.chapter,
        "Queries, keys and values",
        words,
        "q = x Wq     k = x Wk     v = x Wv",
        size(len(scene.asks), "token", D),
        f"{len(scene.asks)} queries, keys, values × {d} numbers",
        panels,
        output=array(looked.q[head]),
        letters={
            "x": "the vector of a token",
            "q, k, v": "its query, its key and its value",
            "Wq, Wk, Wv": "weights that the model has learned, for each of the three its own: each number that "
            "comes out is a weighted sum of all that go in",
        },
    )


def _before_words(layer: int) -> str:
    if layer == 1:
        return "So far each token knows only itself."
    below = "the layer below" if layer == 2 else f"the {layer - 1} layers below"
    return f"In {below} tokens have learned of each other already; layer {layer} does it once more, by its own weights."


def _heads_words(heads: int, head: int, d: int) -> str:
    made = "Each of their numbers is a weighted sum of the vector’s numbers, by weights that the model has learned."
    if heads == 1:
        return made
    return f"{made} This is done by {heads} so-called heads; we follow head {head + 1}, which works with {d} numbers."


def score_stage(scene: Scene, looked: Looked, scaled: bool) -> Stage:
    """One query against the key it likes best, in full; then against all."""
    head, row, d = scene.head, scene.row, looked.q.shape[2]
    seen = scene.seen(looked)
    scores = looked.scores[head, row, seen]
    best = seen[int(scores.argmax())]
    other = _which(scene, best)
    after = [(f"÷ √{d} =" if scaled else "=", float(looked.scores[head, row, best]))]
    fit = dot(
        f"The score of {other} for {scene.name}",
        (f"query of {scene.name}", looked.q[head, row]),
        (f"key of {other}", looked.k[head, best]),
        min(scene.numbers, d),
        after=after,
        note="This is the key that fits best. The others are compared likewise; the next stage shows all scores.",
    )
    return Stage(
        f"{scene.key}-scores",
        scene.chapter,
        "Which part of the sentence is needed now?" if scene.of_source else "Who fits whom?",
        _score_words(scene, scaled, d),
        f"scoreⱼ = q · kⱼ / √{d}" if scaled else "scoreⱼ = q · kⱼ",
        f"1 query and {len(seen)} keys × {d} numbers",
        size(len(seen), "score"),
        (fit,),
        output=array(scores),
        letters={"q": f"the query of {scene.name}", "kⱼ": "the key of token j"}
        | ({f"√{d}": f"the root of {d}, which is how many numbers a query has"} if scaled else {}),
    )


def _score_words(scene: Scene, scaled: bool, d: int) -> str:
    own = " up to itself" if scene.causal else ", its own too"
    who = (
        f"The next token is made at the place of the last one, {scene.name}. It now asks the sentence that was read: "
        "its query is compared with the key of every token there. "
        if scene.of_source
        else f"The query of {scene.name} is compared with the key of every token{own}. "
    )
    how = "To compare two vectors, multiply them number by number and add up the products: a high sum is a good fit."
    root = (
        f" Long sums grow large; divided by √{d} {equals(d**0.5)} they stay moderate. The result is the score."
        if scaled
        else " The sum is the score."
    )
    return f"{who}{how}{root}{' ' + CAUSAL if scene.causal else ''}"


def _which(scene: Scene, place: int) -> str:
    """A token that answers; where there are several alike, which of them."""
    name = quoted(scene.answers[place])
    return f"{name} (token {place + 1})" if list(scene.answers).count(scene.answers[place]) > 1 else name


def weight_stage(scene: Scene, looked: Looked) -> Stage:
    head, row = scene.head, scene.row
    seen = scene.seen(looked)
    words = (
        "The scores become shares, which together are 100%. This is done by the softmax: take exp of each score, "
        "which is 2.718… to the power of the score, and divide by the sum of all. "
        f"These shares are the attention of {scene.name}: how much "
        "it will take from each token. The second picture shows the same for every token that asks: the stronger the "
        "colour, the larger the share."
    )
    if scene.of_source:
        words += " There each row is named by the token that is produced from it, not by the one that asks."
    panels: list[Panel] = [
        softmax(
            f"The attention of {scene.name}",
            scene.names(seen),
            looked.scores[head, row, seen],
            followed=int(looked.scores[head, row, seen].argmax()),
        ),
        looks(
            "The same for all tokens: each row sums to 100%",
            scene.rows,
            scene.answers,
            looked.weights[head],
            scene.axes,
            marked=row,
        ),
    ]
    return Stage(
        f"{scene.key}-weights",
        scene.chapter,
        "Scores become attention",
        words,
        "shareⱼ = exp(scoreⱼ) / Σᵢ exp(scoreᵢ)",
        size(len(seen), "score"),
        f"{len(seen)} shares, together 100%",
        panels,
        scene.links,
        output=array(looked.weights[head, row]),
    )


def mix_stage(scene: Scene, looked: Looked) -> Stage:
    head, row, seen = scene.head, scene.row, scene.seen(looked)
    d = looked.v.shape[2]
    given = "from the sentence" if scene.of_source else "from the others"
    words = (
        f"Now {scene.name} takes what it found: the value of every token times its share, all added up. A token with "
        "a share of 90% gives nearly all of its value, one with 1% next to nothing. That is all attention does: it "
        "mixes a new vector from others."
    )
    panel = mixture(
        f"What {scene.name} takes {given}, head {head + 1}",
        scene.names(seen),
        looked.weights[head, row, seen],
        looked.v[head, seen],
        looked.mixed[head, row],
        min(scene.numbers, d),
    )
    return Stage(
        f"{scene.key}-mix",
        scene.chapter,
        "A mixture of values",
        words,
        "mixture = Σⱼ shareⱼ × vⱼ",
        f"{len(seen)} shares and values × {d} numbers",
        size(1, "vector", d),
        (panel,),
        output=array(looked.mixed[head, row]),
        letters={"vⱼ": "the value of token j"},
    )


def heads_stage(scene: Scene, looked: Looked, norm_first: bool, residual: bool) -> Stage:
    """All heads side by side, then the way around."""
    N, _, d = looked.q.shape
    row, seen = scene.row, scene.seen(looked)
    names = [f"head\N{NO-BREAK SPACE}{n + 1}" for n in range(N)]
    D = looked.before.shape[1]
    words = (
        f"{_count(N)} did this side by side, each with weights of its own, so each can look for something else. Their "
        f"mixtures are joined ({N} × {d} = {D} numbers) and mixed once more by learned weights. "
        + (
            "The result is added to the token’s vector: it keeps what it had, and learns something new. "
            if residual
            else ""
        )
        + ("" if norm_first else "Then the sum is normed: shifted and stretched to mean 0 and spread 1.")
    )
    panels: list[Panel] = [
        looks(
            f"Where each head of {scene.name} looks",
            names,
            [scene.answers[place] for place in seen],
            looked.weights[:, row, seen],
            AxisTitles("head", scene.axes.column),
            marked=scene.head,
        ),
        added(
            f"The new vector of {scene.name}",
            _around(looked, row, "from attention", norm_first, residual),
            scene.numbers,
        ),
    ]
    return Stage(
        f"{scene.key}-heads",
        scene.chapter,
        "All heads together",
        words,
        _around_equation(_joined(N), norm_first, residual),
        f"{N} heads × {d} numbers",
        size(len(scene.asks), "token", D),
        panels,
        output=array(looked.after),
        letters={"x": "the vector of the token", "mixture₁": "what head 1 has mixed, and so on"},
    )


def _joined(heads: int) -> str:
    """All mixtures, one behind the other, times W."""
    if heads == 1:
        return "mixture₁ W"
    last = str(heads).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    return f"[mixture₁; …; mixture{last}] W"


def _around(made: Looked | Fed, row: int, what: str, norm_first: bool, residual: bool) -> list[tuple[str, str, Tensor]]:
    """x + f(x), and the norm after it where there is one."""
    terms = (
        [("", "before", made.before[row]), ("+", what, made.made[row])] if residual else [("", what, made.made[row])]
    )
    total = made.before[row] + made.made[row] if residual else made.made[row]
    terms += [("=", "after", total)]
    return terms if norm_first else [*terms, ("→", "normed", made.after[row])]


def _around_equation(layer: str, norm_first: bool, residual: bool) -> str:
    inside = f"x + {layer}" if residual else layer
    return f"x ← {inside}" if norm_first else f"x ← norm({inside})"


def feed_stage(scene: Scene, fed: Fed, norm_first: bool, residual: bool, activation: str) -> Stage:
    D, inner = fed.before.shape[1], fed.inner.shape[1]
    row = scene.row
    awake = int((fed.inner[row] > 0).sum())
    words = (
        f"Now every token works by itself, without looking at others. Its {D} numbers become {inner} weighted sums; "
        f"each of these can be seen as a detector for some feature, and {activation} silences those that are "
        f"negative. For {scene.name}, {awake} of {inner} speak up. From these, {D} weighted sums are made again. "
        + ("As before, the result is added to the vector." if residual else "")
        + ("" if norm_first else " Then the sum is normed.")
    )
    panels: list[Panel] = [
        matrix(
            "Inside: the features of the token",
            [scene.name],
            fed.inner[row : row + 1],
            scene.numbers,
            column_title="detector",
        ),
        added(
            f"The new vector of {scene.name}",
            _around(fed, row, "from feed-forward", norm_first, residual),
            scene.numbers,
        ),
    ]
    shape = size(len(scene.asks), "token", D)
    return Stage(
        f"{scene.key}-feed",
        scene.chapter,
        "Feed-forward: each token by itself",
        words,
        _around_equation(f"{activation}(x W₁ + b₁) W₂ + b₂", norm_first, residual),
        shape,
        shape,
        panels,
        output=array(fed.after),
        letters={"x": "the vector of the token"},
    )


def look_back_stage(scene: Scene, looked: Looked, norm_first: bool, residual: bool) -> Stage:
    """Masked self-attention in one stage: the reader has seen all of it before."""
    head, row, seen = scene.head, scene.row, scene.seen(looked)
    words = (
        "The writing half has layers, too. First each token looks at what has been written before it, by queries, "
        "keys and values as in the reading half. It may not look ahead: when the model writes, nothing is there yet. "
        f"So the upper right of the second picture stays empty. {scene.name} looks at {_tokens(len(seen))}."
    )
    panels: list[Panel] = [
        softmax(
            f"The attention of {scene.name}, head {head + 1}",
            scene.names(seen),
            looked.scores[head, row, seen],
        ),
        looks("No token looks ahead", scene.rows, scene.answers, looked.weights[head], scene.axes, marked=row),
        added(
            f"The new vector of {scene.name}",
            _around(looked, row, "from attention", norm_first, residual),
            scene.numbers,
        ),
    ]
    shape = size(len(scene.asks), "token", looked.before.shape[1])
    return Stage(
        f"{scene.key}-self",
        scene.chapter,
        "Looking back at what was written",
        words,
        _around_equation("attention(x)", norm_first, residual),
        shape,
        shape,
        panels,
        scene.links,
        output=array(looked.after),
        letters={
            "x": "the vector of the token",
            "attention(x)": "all you have seen of attention: queries, keys, shares, mixtures, all heads together",
        },
    )


def _tokens(count: int) -> str:
    return "the only token there is" if count == 1 else f"the {count} tokens up to itself"


def layers_stage(
    scene: Scene, blocks: Sequence[Block], top: Tensor, norm_first: bool, what: str, links: Sequence[Link] = ()
) -> Stage:
    """How the vector of the followed token goes on through all layers."""
    L, row = len(blocks), scene.row
    D = top.shape[1]
    names = ["goes in", *(f"after layer {depth + 1}" for depth in range(L))]
    vectors = torch.stack([blocks[0].before[row], *(block.after[row] for block in blocks)])
    if norm_first:
        names.append("normed once more")
        vectors = torch.cat([vectors, top[row : row + 1]])
    others = (
        f"What you have seen is one layer. There are {L}"
        if L > 1
        else "What you have seen is the only layer. Others have dozens"
    )
    words = (
        f"{others}, one above the other, each with weights of its own: what comes out of one is what the next reads. "
        f"Here is the vector of {scene.name} on its way up. {what}"
    )
    return Stage(
        f"{scene.key}-layers",
        scene.chapter,
        "Layer upon layer",
        words,
        "x ← layer(x)," + (f"   {L} times" if L > 1 else "   once"),
        size(len(scene.asks), "token", D),
        size(len(scene.asks), "token", D),
        (
            matrix(
                f"The vector of {scene.name}", names, vectors, scene.numbers, row_title="where", marked=len(names) - 1
            ),
        ),
        links,
        output=array(top),
        letters={"x": "the vector of the token", "layer(x)": "attention and feed-forward, as you have seen them"},
    )


def attention_stages(
    scene: Scene, looked: Looked, *, norm_first: bool, residual: bool, scaled: bool, normed: bool
) -> list[Stage]:
    return [
        query_stage(scene, looked, norm_first and normed),
        score_stage(scene, looked, scaled),
        weight_stage(scene, looked),
        mix_stage(scene, looked),
        heads_stage(scene, looked, norm_first or not normed, residual),
    ]


def _count(heads: int) -> str:
    return f"All {heads} heads" if heads > 1 else "The one head"
