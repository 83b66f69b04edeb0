"""Bidirectional language models in use: they make vectors of texts, and other models begin with them."""

from seqloom.api.trained import Trained


class BidirectionalLM(Trained):
    """A trained bidirectional language model (ELMo)."""

    what = "a bidirectional language model"
    used_by = "`seqloom embed` makes vectors with it, and init.from begins with it"
