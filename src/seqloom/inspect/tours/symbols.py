"""What the signs of a formula mean, in words: a beginner has seen none of them."""

import re
from collections.abc import Mapping

WEIGHTS = (
    "weights: a grid of numbers that the model has learned (a matrix). Each number that comes out is a weighted sum of "
    "all that go in"
)
BIAS = "one more learned number for each of these sums, added to it"
INDICES = (("ᵢ", "i"), ("ⱼ", "j"), ("ₜ", "t"))
SOFT = ("GELU", "SiLU", "SwiGLU")
SIGNS: list[tuple[str, str, str]] = [  # what gives it away in a formula, how it is shown, what it means
    (r"E\[", "E[id]", "the row of the lookup table that has this number"),
    (r"PE\(", "PE(j)", "the vector of place j"),
    (r"ⱼ", "ⱼ", "of token number j: 1, 2, 3 …"),
    (r"ₜ₋₁", "ₜ, ₜ₋₁", "now, at this token; and before, at the one before it"),
    (r"W₁", "W₁, W₂", WEIGHTS),
    (r"W(?!₁|₂)", "W", WEIGHTS),
    (r"\bb₁", "b₁, b₂", BIAS),
    (r"\bb\b", "b", BIAS),
    (r"\[[^\]]*;", "[a; b]", "one list of numbers put behind the other"),
    (r"⊙", "⊙", "multiply number by number: the first with the first, the second with the second …"),
    (r" · ", "a · b", "multiply number by number and add up all products: one number comes out"),
    *((f"Σ{index}", f"Σ{index}", f"add up what follows for every {letter}") for index, letter in INDICES),
    (r"Σ(?![ᵢⱼₜ])", "Σ", "add this up for all of them"),
    (r"exp\(", "exp(score)", "2.718… to the power of the score: never negative, and larger for a higher score"),
    (r"tanh", "tanh", "squeezes every number between −1 and 1"),
    (r"σ|sigmoid", "σ", "squeezes every number between 0 and 1"),
    (r"(?i)relu", "ReLU", "sets every negative number to 0"),
    *((name, name, "lets positive numbers through and nearly silences negative ones") for name in SOFT),
    (r"norm\(", "norm", "shifts and stretches a list of numbers until its mean is 0 and its spread 1"),
    (r" ← ", "x ← …", "x is replaced by what stands on the right"),
]


def explain_symbols(equation: str, letters: Mapping[str, str]) -> list[tuple[str, str]]:
    """What each sign of a formula means: `letters` of this stage first, then those that are the same everywhere."""
    own = {letter for letters_ in letters for letter in letters_.split(", ")}
    found = list(letters.items())
    if any(letter.startswith("W") for letter in letters):
        own.add("W")
    if any("ⱼ" in letter for letter in letters):
        own.add("ⱼ")  # its words say it
    return found + [(name, words) for sign, name, words in SIGNS if name not in own and re.search(sign, equation)]


def meaning(symbol: str) -> str:
    """What a sign that is the same everywhere means; nothing for one that is not."""
    return next((words for _, name, words in SIGNS if name == symbol), "changes every number by itself")
