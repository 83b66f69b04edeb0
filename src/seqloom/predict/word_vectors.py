"""Words as vectors: those of a word-vector model, or of any other model that reads whole words."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seqloom.classical.word_vectors.vectors import WordVectors as Model
from seqloom.core.errors import DataError, UsageError
from seqloom.data.word_questions import word_sets
from seqloom.data.word_vectors import Format, read_all_vectors, write_vectors
from seqloom.evaluate.word_similarity import Judged, as_metrics
from seqloom.evaluate.word_space import NearWord, WordSpace
from seqloom.predict.base import Prediction, Predictor
from seqloom.predict.batching import as_lines
from seqloom.predict.loader import load
from seqloom.runs.creation import refuse_existing
from seqloom.tasks.word_vectors import adopt, judge, plain_words, space_of
from seqloom.text import Words


@dataclass(frozen=True)
class WordReport:
    """How good word vectors are."""

    held_out: Mapping[str, float]  # on a split of the text; nothing where the run has none
    judged: Mapping[str, Judged]  # beside what people say
    missing: tuple[str, ...]  # the sets that are not there


@dataclass(frozen=True)
class NearestWords(Prediction):
    """A word and the words nearest to it, best first; none for a word without a vector."""

    word: str
    nearest: list[NearWord]

    def to_line(self) -> str:
        """word, cosine, the next word …"""
        return "\t".join(f"{near.word}\t{near.score:z.4f}" for near in self.nearest)

    def to_json(self) -> dict[str, object]:
        return {"word": self.word, "nearest": [asdict(near) for near in self.nearest], "unknown": list(self.unknown)}


class WordVectors(Predictor[NearestWords]):
    """Trained word vectors. Get them from `seqloom.load`, `seqloom.train_recipe` or `import_vectors`."""

    what: ClassVar[str] = "word vectors"
    used_by: ClassVar[str] = "`seqloom words` asks them, `seqloom evaluate` measures them"

    @cached_property
    def space(self) -> WordSpace:
        return word_space(self)

    def predict(
        self, lines: str | Iterable[str], *, batch_size: int = 1, window: int = 1, top: int = 10
    ) -> Iterator[NearestWords]:
        """Return the words nearest to the word of each line."""
        for line in as_lines(lines):
            word = line.strip()
            known = word in self.space.places or (self.space.lowercase and word.lower() in self.space.places)
            nearest = self.nearest(word, top) if known else []
            yield NearestWords(line, nearest, unknown=() if known or not word else (word,))

    def nearest(self, word: str, top: int = 10) -> list[NearWord]:
        """The words whose vectors point most nearly the same way, best first."""
        return self.space.similar(word, top)

    def analogy(self, a: str, b: str, c: str, top: int = 5) -> list[NearWord]:
        """What stands to c as b stands to a, best first."""
        return self.space.analogy(a, b, c, top)

    def evaluate(self, split: str = "dev") -> dict[str, float]:
        found = self.report(split)
        return {**found.held_out, **as_metrics(found.judged.items())}

    def report(self, split: str = "dev") -> WordReport:
        """All figures, with how sure they are; kept in the run for `compare`."""
        sets, held_out = word_sets(), {}
        judged = judge(self.space, sets)
        if self.run.recipe.get("data") is not None:
            held_out = self.task().held_out(self.model, split)
            self.save_metrics(split, {**held_out, **as_metrics(judged.items())})
        elif not judged:
            raise DataError(
                f"{self.name} was imported and has no text of its own, and the sets to measure it by "
                f"({', '.join(sets.missing)}) are not there. Set SEQLOOM_DATA to a folder that holds word_vectors_eval."
            )
        return WordReport(held_out, judged, tuple(sets.missing))


def word_space(trained: Predictor[Any]) -> WordSpace:
    """The vectors of the words that a model reads, whatever it was trained for."""
    tokenizer, model = trained.tokenizer, trained.model  # a run that is not about text says so here
    if isinstance(model, Model):
        return space_of(model, tokenizer, trained.name)
    if not isinstance(tokenizer, Words):
        raise UsageError(
            f"{trained.name} reads {tokenizer.kind}, not whole words, so its words have no vectors of their own. "
            "Take a run with tokenizer.kind=words."
        )
    rows = token_vectors(model, len(tokenizer))
    if rows is None:
        kind = trained.run.recipe["model"]["kind"]
        raise UsageError(f"{trained.name} has a model of kind {kind}, which has no vectors of words.")
    chosen = [id for id, word in enumerate(plain_words(tokenizer).tolist()) if word == id]
    words = [tokenizer.token(id) for id in chosen]
    words = [word[1:] if tokenizer.glued(word) else word for word in words]
    return WordSpace(words, rows[chosen].float().cpu().numpy(), tokenizer.config.lowercase, trained.name)


def token_vectors(model: object, vocabulary: int) -> Tensor | None:
    """The input vectors (V, D) of a network's tokens; of a translator those of its source."""
    if not isinstance(model, nn.Module):
        return None
    found = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding)
        and part.num_embeddings >= vocabulary
        and name.endswith("embed")
        and "spelling" not in name
    ]
    found.sort(key=lambda one: "target" in one[0])
    return found[0][1].weight.detach()[:vocabulary] if found else None


def import_vectors(file: str | Path, out: str | Path) -> WordVectors:
    """Make a run of a file in word2vec's text or binary format, as GloVe and fastText write them too."""
    refuse_existing(Path(out))
    words, vectors = read_all_vectors(Path(file))
    return WordVectors(adopt(words, torch.from_numpy(vectors), Path(out)), "cpu")


def export_vectors(run: str | Path, file: str | Path, form: Format = "text") -> WordSpace:
    """Write the word vectors of a run, those of any model that reads whole words, for other programs."""
    space = word_space(load(run, "cpu"))
    write_vectors(Path(file), space.words, space.vectors, form)
    return space
