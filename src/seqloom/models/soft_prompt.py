"""Prompt tuning (Lester et al. 2021): vectors that stand before a text and are learned, the language model unchanged.

    p(y_t | y_<t) = p_θ(y_t | END, v_1 … v_P, y_<t)          θ stays as it is; v_1 … v_P learn

The vectors stand where token vectors would, right after the END before the first token, as words of
the prompt do that one would otherwise write. They are called tokens V … V + P − 1 here, which no
text has and no model says.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.config import Discriminator, config
from seqloom.config.constraints import PositiveInt
from seqloom.core.protocols import DecodeState, StepOutput
from seqloom.core.tree import Tree
from seqloom.models.gpt import GPTConfig
from seqloom.models.recurrent_lm import RecurrentLMConfig

FROZEN = "frozen."  # how the names of weights begin that never change
AnyLanguageModelConfig = RecurrentLMConfig | GPTConfig
LanguageModelConfig = Annotated[AnyLanguageModelConfig, Discriminator("kind")]


@config
class SoftPromptConfig:
    kind: Literal["soft-prompt"] = "soft-prompt"
    length: PositiveInt = 20  # P: how many vectors
    init: Literal["tokens", "random"] = "tokens"  # copied from vectors of training tokens, or drawn
    backbone: LanguageModelConfig | None = None  # the language model, filled in from init.from

    def problems(self) -> Iterator[str]:
        if isinstance(self.backbone, GPTConfig) and self.length > self.backbone.window - 2:
            most = self.backbone.window - 2
            yield f"length must be at most {most}, the context of the language model less 2; got {self.length}"

    @property
    def window(self) -> int | None:
        """The most tokens of a text it sees at once; None for any number."""
        return self.backbone.window - self.length if isinstance(self.backbone, GPTConfig) else None

    def build(self, vocabulary: int) -> "SoftPrompted":
        return SoftPrompted(self, vocabulary)


class SoftEmbedding(nn.Embedding):
    """E[token] of the V tokens there are, v_i for token V + i."""

    def __init__(self, embed: nn.Embedding, prompt: nn.Parameter) -> None:
        super().__init__(embed.num_embeddings, embed.embedding_dim, _weight=embed.weight)
        self.weight = embed.weight  # the same, which an output layer may share
        self._prompt = [prompt]  # in a list: it is not this module's to keep

    def forward(self, tokens: Tensor) -> Tensor:
        soft = tokens >= self.num_embeddings
        x = super().forward(tokens.masked_fill(soft, 0))
        own = F.embedding((tokens - self.num_embeddings).clamp(min=0), self._prompt[0].to(x.dtype))
        return torch.where(soft.unsqueeze(-1), own, x)


class SoftPrompted(nn.Module):
    """A frozen language model with a soft prompt: itself a language model, used like any other.

    All that learns, and all that `state_dict` has, is `prompt` (P, D). `load_state_dict` also takes
    the weights of the language model, their names beginning with `frozen.`
    """

    def __init__(self, config: SoftPromptConfig, vocabulary: int) -> None:
        super().__init__()
        if config.backbone is None:
            raise ValueError("a soft prompt stands before the texts of a language model: backbone is missing")
        self.config, self.vocabulary = config, vocabulary
        self.frozen = config.backbone.build(vocabulary)
        owner = self.frozen.embedding_owner()
        self.prompt = nn.Parameter(torch.empty(config.length, owner.embed.embedding_dim).normal_(std=0.02))
        owner.embed = SoftEmbedding(owner.embed, self.prompt)
        self.frozen.requires_grad_(False)
        self.frozen.eval()

    def train(self, mode: bool = True) -> "SoftPrompted":
        """The language model drops nothing while the prompt learns."""
        super().train(mode)
        self.frozen.eval()
        return self

    def notes(self) -> list[str]:
        fixed = sum(parameter.numel() for parameter in self.frozen.parameters())
        return [f"{self.prompt.numel():,} numbers learn; {fixed:,} of the language model stay as they are"]

    def state_dict(self, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]
        whole = super().state_dict(**options)
        return {name: tensor for name, tensor in whole.items() if not name.startswith(FROZEN)}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        whole = {name: tensor for name, tensor in super().state_dict().items() if name.startswith(FROZEN)}
        return super().load_state_dict({**whole, **state_dict}, strict, assign)

    @torch.no_grad()
    def begin_as(self, tokens: Tensor) -> None:
        """Begin with the vectors of these tokens (P,)."""
        self.prompt.copy_(self.frozen.embedding_owner().embed.weight[tokens])

    # --- a language model -------------------------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Nothing read yet, the prompt neither: it comes after the first token, END."""
        if source is not None:
            return self.frozen.start(source, rows)  # which refuses a source
        return DecodeState({"unread": self.prompt.new_zeros(rows or 1, 1)})

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        if not _is_unread(state):
            return self.frozen.step(tokens, state, mask)
        return self.frozen.step(*self._insert_prompt(tokens, mask)[:3])

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """log p of each target (B, T), zero where masked."""
        if not _is_unread(state):
            return self.frozen.score(inputs, targets, state, mask)
        tokens, start, real, first = self._insert_prompt(inputs, mask)
        position = torch.arange(inputs.shape[1], device=inputs.device)
        # The token after END is predicted at the last vector of the prompt.
        position = position + self.config.length * (position >= first)
        moved = targets.new_zeros(tokens.shape).scatter(1, position, targets)
        scores, state = self.frozen.score(tokens, moved, start, real)
        scores = scores.gather(1, position)
        return scores if mask is None else scores.where(mask, 0), state

    def _insert_prompt(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, DecodeState, Tensor | None, Tensor]:
        """The first tokens (B, T) with the prompt after the first real one of each row, the language model's state
        before them, the mask, and where that first one stands (B, 1)."""
        (B, T), P = tokens.shape, self.config.length
        first = torch.zeros(B, 1, dtype=torch.long, device=tokens.device)
        if mask is not None:
            first = mask.to(torch.int8).argmax(dim=1, keepdim=True)
        position = torch.arange(T + P, device=tokens.device).expand(B, -1)
        is_prompt = (position > first) & (position <= first + P)
        source = torch.where(position > first + P, position - P, position).clamp(max=T - 1)
        whole = torch.where(is_prompt, self.vocabulary + position - first - 1, tokens.gather(1, source))
        real = None if mask is None else is_prompt | mask.gather(1, source)
        return whole, self.frozen.start(rows=B), real, first


def _is_unread(state: DecodeState) -> bool:
    """Whether nothing has been read yet, the prompt neither."""
    return isinstance(state.carry, dict) and "unread" in state.carry
