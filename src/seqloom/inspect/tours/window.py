"""A walk through a feed-forward language model: a window of the last tokens, hidden layers, the next token."""

from typing import Any

import torch
from torch import Tensor

from seqloom.inspect.tours.inputs import READ, Follow, Intro, Read, lookup_stage
from seqloom.inspect.tours.outputs import logits_of
from seqloom.inspect.tours.panels import Stage, Stop, Tokens, added, array, dot, matrix, size, visible
from seqloom.inspect.tours.recurrent import Continuing
from seqloom.models.window_lm import ACTIVATIONS, windows

SHOWN = {"tanh": "tanh", "relu": "ReLU", "sigmoid": "σ", "gelu": "GELU"}
DOES = {
    "tanh": "tanh then squeezes it between −1 and 1.",
    "relu": "ReLU then sets it to 0 where it is negative.",
    "sigmoid": "σ then squeezes it between 0 and 1.",
    "gelu": "GELU then nearly silences it where it is negative.",
}


class Seeing(Continuing):
    """Of a `WindowLM`."""

    def __init__(self, writer: Any, text: str, follow: Follow) -> None:
        super().__init__(writer, text, follow)
        self.layers, self.heads = len(self.model.hidden), 0
        follow.check(self.layers, 1)
        tokens = torch.tensor([self.ids], device=writer.device)
        self.x = self.model.embed(tokens[0])  # (T, D)
        self.seen = windows(tokens, self.model.start(rows=1).carry)[0][0]  # (T, K)
        self.side_by_side = self.model.embed(self.seen).flatten(-2)  # (T, K·D)
        self.sums, self.hidden = self._climb()
        self.vectors = self.model.project(self._together())  # (T, D of the output layer)
        self.all_logits = torch.stack([logits_of(self.model.output, row) for row in self.vectors])
        self.letter = "result" if self._is_projected else "v" if self._is_joined else "h" if self.layers else "x"

    def _climb(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weighted sums of each hidden layer (T, H), and what its activation makes of them."""
        sums: list[Tensor] = []
        hidden: list[Tensor] = []
        for layer in self.model.hidden:
            sums.append(layer(hidden[-1] if hidden else self.side_by_side))
            hidden.append(ACTIVATIONS[self.config.activation](sums[-1]))
        return sums, hidden

    @property
    def _is_joined(self) -> bool:
        """Whether the output sees the hidden vector and the window itself."""
        return bool(self.config.direct and self.layers)

    @property
    def _is_projected(self) -> bool:
        return not isinstance(self.model.project, torch.nn.Identity)

    def _together(self) -> Tensor:
        """What is told to the output layer, or projected first (T, H, or K·D, or both)."""
        top = self.hidden[-1] if self.layers else self.side_by_side
        return torch.cat([top, self.side_by_side], dim=-1) if self._is_joined else top

    @property
    def so_far(self) -> Read:
        """What will still be seen when the next token has come."""
        ids = self.seen[self.row, 1:].tolist()
        return Read(ids, [visible(self.tokenizer.token(token)) for token in ids], len(ids) - 1)

    def stages(self, intro: Intro) -> list[Stage]:
        numbers = self.follow.numbers
        inside = Stop("Window", f"the last {self.config.window} tokens, side by side", "window")
        return [
            *self.first_stages(intro, inside),
            lookup_stage(self.read, self.x, self.model.embed.weight, numbers),
            self._window(),
            *([self._hidden()] if self.layers else []),
            *([self._direct()] if self._is_joined else []),
            *self.last_stages(self.vectors[self.row], self.config.tied, self._made_from()),
        ]

    def _window(self) -> Stage:
        K, D = self.config.window, self.config.embedding
        ids = self.seen[self.row].tolist()
        names = [visible(self.tokenizer.token(token)) for token in ids]
        words = (
            f"To say what comes next, this model looks at a window of {size(K, 'token')}: the one that was read last, "
            f"and those just before it. Their vectors are put one behind the other and make one list of {K * D} "
            "numbers. What stood earlier is not seen, however much it would help. Where the text has only begun, the "
            "window is filled up with </s>."
        )
        seen = Tokens(title="What is seen", tokens=names, ids=ids, followed=K - 1, note="The last one was read last.")
        vectors = matrix(
            "Their vectors, which are read row after row",
            names,
            self.side_by_side[self.row].view(K, D),
            self.follow.numbers,
            marked=K - 1,
        )
        return Stage(
            "window",
            READ,
            "A window is cut out",
            words,
            "x = [x₁; x₂; …]",
            size(K, "token", D),
            size(1, "vector", K * D),
            (seen, vectors),
            output=array(self.side_by_side[self.row]),
            letters={"x₁, x₂": "the vectors of the tokens in the window", "x": "all of them as one list"},
        )

    def _hidden(self) -> Stage:
        """One hidden layer, and how the unit that speaks loudest came by its number."""
        depth, row, numbers = self.follow.layer - 1, self.row, self.follow.numbers
        layer, sums, h = self.model.hidden[depth], self.sums[depth][row], self.hidden[depth][row]
        below = self.hidden[depth - 1][row] if depth else self.side_by_side[row]
        unit = int(h.abs().argmax())
        which = f"This is layer {depth + 1} of {self.layers}. " if self.layers > 1 else ""
        words = (
            f"{which}Each of {len(h)} units makes a weighted sum of all {len(below)} numbers before it, with weights "
            f"of its own. {DOES[self.config.activation]} So a unit can learn to speak up where certain tokens stand at "
            "certain places of the window. The same word two places earlier meets other weights: what was learned "
            "of one place must be learned again for the next."
        )
        letter = "h" if depth else "x"
        one = dot(
            f"Unit {unit + 1}, which speaks loudest",
            (f"{letter}, what it sees", below),
            (f"row {unit + 1} of W", layer.weight[unit]),
            numbers,
            after=[("+ b", float(layer.bias[unit])), ("= its sum", float(sums[unit]))],
        )
        g = SHOWN[self.config.activation]
        every = added("All units", [("", "weighted sums", sums), ("→", f"{g} of each", h)], numbers)
        return Stage(
            "hidden",
            READ,
            "Units look at the whole window",
            words,
            f"h = {g}(W {letter} + b)" if depth == 0 else f"h ← {g}(W h + b)",
            size(1, "vector", len(below)),
            size(1, "vector", len(h)),
            (one, every),
            output=array(h),
            letters={"h": "one number for each unit"} | ({"x": "the window as one list"} if depth == 0 else {}),
        )

    def _direct(self) -> Stage:
        top, x, numbers = self.hidden[-1][self.row], self.side_by_side[self.row], self.follow.numbers
        words = (
            "This model has a second way, around the hidden layers. The window itself is put behind what the units "
            "say, so that the answer can hang on a token directly, too."
        )
        panels = (
            matrix("What the units say", ["h"], top[None], numbers, row_title="list"),
            matrix("The window itself", ["x"], x[None], numbers, row_title="list"),
        )
        return Stage(
            "direct",
            READ,
            "A way around",
            words,
            "v = [h; x]",
            f"{size(1, 'vector', len(top))}, {size(1, 'vector', len(x))}",
            size(1, "vector", len(top) + len(x)),
            panels,
            output=array(torch.cat([top, x])),
            letters={"h": "what the units say", "x": "the window as one list", "v": "both, one behind the other"},
        )

    def _made_from(self) -> str:
        told = "v" if self._is_joined else "h" if self.layers else "x"
        return f"It is {'made of weighted sums of ' if self._is_projected else ''}{told}. "
