"""Prompt tuning (Lester et al. 2021): trainable vectors that precede a text in a frozen language model.

    p(y_t | y_<t) = p_θ(y_t | END, v_1 … v_P, y_<t)          θ is frozen; v_1 … v_P are trained

The vectors replace the embeddings of a written prompt, directly after the END that precedes a text. The vectors have
the token ids V … V + P − 1. No text contains these ids, and no model predicts them.
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

FROZEN = "frozen."  # prefix of the frozen weights
AnyLanguageModelConfig = RecurrentLMConfig | GPTConfig
LanguageModelConfig = Annotated[AnyLanguageModelConfig, Discriminator("kind")]


@config
class SoftPromptConfig:
    kind: Literal["soft-prompt"] = "soft-prompt"
    length: PositiveInt = 20  # P, the number of prompt vectors
    init: Literal["tokens", "random"] = "tokens"  # initial vectors: embeddings of training tokens, or random vectors
    backbone: LanguageModelConfig | None = None  # configuration of the language model, set by `init.from`

    def problems(self) -> Iterator[str]:
        if isinstance(self.backbone, GPTConfig) and self.length > self.backbone.window - 2:
            limit = self.backbone.window - 2
            yield f"length must be at most {limit}, the context of the language model minus 2; got {self.length}"

    @property
    def window(self) -> int | None:
        """The maximum number of tokens of a text in the context; None means no limit."""
        return self.backbone.window - self.length if isinstance(self.backbone, GPTConfig) else None

    def build(self, vocabulary: int) -> "SoftPromptModel":
        return SoftPromptModel(self, vocabulary)


class SoftEmbedding(nn.Embedding):
    """An embedding that returns E[token] for the V tokens and v_i for token V + i."""

    def __init__(self, embed: nn.Embedding, prompt: nn.Parameter) -> None:
        super().__init__(embed.num_embeddings, embed.embedding_dim, _weight=embed.weight)
        self.weight = embed.weight  # the same parameter: an output layer may be tied to it
        self._prompt = [prompt]  # the list prevents its registration as a parameter of this module

    def forward(self, tokens: Tensor) -> Tensor:
        soft = tokens >= self.num_embeddings
        x = super().forward(tokens.masked_fill(soft, 0))
        vectors = F.embedding((tokens - self.num_embeddings).clamp(min=0), self._prompt[0].to(x.dtype))
        return torch.where(soft.unsqueeze(-1), vectors, x)


class SoftPromptModel(nn.Module):
    """A frozen language model with a trainable soft prompt.

    Only `prompt` (P, D) is trained and saved in `state_dict`. `load_state_dict` also accepts the
    weights of the language model, with the prefix `frozen.`.
    """

    def __init__(self, config: SoftPromptConfig, vocabulary: int) -> None:
        super().__init__()
        if config.backbone is None:
            raise ValueError("model.backbone is missing; set it, or set init.from to the run of a language model")
        self.config, self.vocabulary = config, vocabulary
        self.frozen = config.backbone.build(vocabulary)
        owner = self.frozen.embedding_owner()
        self.prompt = nn.Parameter(torch.empty(config.length, owner.embed.embedding_dim).normal_(std=0.02))
        owner.embed = SoftEmbedding(owner.embed, self.prompt)
        self.frozen.requires_grad_(False)
        self.frozen.eval()

    def train(self, mode: bool = True) -> "SoftPromptModel":
        """Set the training mode. The frozen language model stays in evaluation mode, without dropout."""
        super().train(mode)
        self.frozen.eval()
        return self

    def notes(self) -> list[str]:
        frozen = sum(parameter.numel() for parameter in self.frozen.parameters())
        return [f"{self.prompt.numel():,} parameters are trained; {frozen:,} of the language model are frozen"]

    def state_dict(self, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]
        state = super().state_dict(**options)
        return {name: tensor for name, tensor in state.items() if not name.startswith(FROZEN)}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        frozen = {name: tensor for name, tensor in super().state_dict().items() if name.startswith(FROZEN)}
        return super().load_state_dict({**frozen, **state_dict}, strict, assign)

    @torch.no_grad()
    def init_from_tokens(self, tokens: Tensor) -> None:
        """Set the prompt to the embeddings of tokens (P,)."""
        self.prompt.copy_(self.frozen.embedding_owner().embed.weight[tokens])

    # --- the `CausalLanguageModel` interface ------------------------------------------------------------------------

    def start(self, source: Tree = None, rows: int | None = None) -> DecodeState:
        """Return the state before the first token. The model reads the prompt after this token, which is END."""
        if source is not None:
            return self.frozen.start(source, rows)  # raises an error
        return DecodeState({"unread_prompt": self.prompt.new_zeros(rows or 1, 1)})

    def step(self, tokens: Tensor, state: DecodeState, mask: Tensor | None = None) -> StepOutput:
        if not _prompt_is_unread(state):
            return self.frozen.step(tokens, state, mask)
        return self.frozen.step(*self._insert_prompt(tokens, mask)[:3])

    def score(
        self, inputs: Tensor, targets: Tensor, state: DecodeState, mask: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """Return log p of each target (B, T), 0 where masked."""
        if not _prompt_is_unread(state):
            return self.frozen.score(inputs, targets, state, mask)
        tokens, start, real, first = self._insert_prompt(inputs, mask)
        position = torch.arange(inputs.shape[1], device=inputs.device)
        # The token after END is predicted at the last prompt vector.
        position = position + self.config.length * (position >= first)
        shifted = targets.new_zeros(tokens.shape).scatter(1, position, targets)
        scores, state = self.frozen.score(tokens, shifted, start, real)
        scores = scores.gather(1, position)
        return scores if mask is None else scores.where(mask, 0), state

    def _insert_prompt(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, DecodeState, Tensor | None, Tensor]:
        """Insert the prompt after the first real token of each row of tokens (B, T).

        Return the new tokens, the initial state of the language model, the mask, and the position of the
        first real token (B, 1).
        """
        (B, T), P = tokens.shape, self.config.length
        first = torch.zeros(B, 1, dtype=torch.long, device=tokens.device)
        if mask is not None:
            first = mask.to(torch.int8).argmax(dim=1, keepdim=True)
        position = torch.arange(T + P, device=tokens.device).expand(B, -1)
        is_prompt = (position > first) & (position <= first + P)
        source = torch.where(position > first + P, position - P, position).clamp(max=T - 1)
        extended = torch.where(is_prompt, self.vocabulary + position - first - 1, tokens.gather(1, source))
        real = None if mask is None else is_prompt | mask.gather(1, source)
        return extended, self.frozen.start(rows=B), real, first


def _prompt_is_unread(state: DecodeState) -> bool:
    return isinstance(state.hidden, dict) and "unread_prompt" in state.hidden
