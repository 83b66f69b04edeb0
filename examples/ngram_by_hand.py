"""A Kneser–Ney trigram model of three sentences: its discounts, a distribution and its ARPA file.

Run it: python examples/ngram_by_hand.py
"""

import tempfile
from pathlib import Path

import torch

from seqloom.classical.ngram import NGramConfig
from seqloom.classical.ngram.arpa import write_arpa
from seqloom.classical.ngram.kneser_ney import kneser_ney
from seqloom.text import WordsConfig, encode_documents, train_tokenizer

SENTENCES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat"]

tokenizer = train_tokenizer(WordsConfig(), SENTENCES)
stream = encode_documents(tokenizer, SENTENCES)  # each sentence followed by END (0)
model = kneser_ney(stream.numpy(), NGramConfig(order=3), len(tokenizer))
for order, (discounts, fallback) in enumerate(zip(model.discounts.tolist(), model.fallback.tolist(), strict=True), 1):
    origin = "default values, because the text is too small to estimate them" if fallback else "from the text"
    print(f"order {order}: D_1, D_2, D_3+ = {[round(d, 3) for d in discounts]}, {origin}")

context = "sat on the"
prompt = torch.tensor([[tokenizer.end, *tokenizer.encode(context)]])
probabilities = model.step(prompt, model.start(rows=1)).log_probs[0].exp()
print(f"\nafter {context!r}:")
for token in probabilities.argsort(descending=True).tolist()[:6]:
    print(f"  {tokenizer.token(token):6} {probabilities[token]:.4f}")
print(f"  all {len(tokenizer)} together: {probabilities.sum():.6f}")

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "cats.arpa"
    write_arpa(model, [tokenizer.token(token) for token in range(len(tokenizer))], file)
    print("\nthe ARPA file begins:\n" + "\n".join(file.read_text(encoding="utf-8").split("\n")[:9]))
