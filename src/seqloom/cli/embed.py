"""Texts as vectors, with any trained model that reads text."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from seqloom.cli._input import open_lines
from seqloom.cli._options import BATCH_SIZE, Batch, Device, Pooling, TextRun, Texts
from seqloom.cli._output import Notes, check_answers, unknown_seen
from seqloom.core.errors import UsageError
from seqloom.core.words import counted


def embed(
    run: TextRun,
    texts: Texts = None,
    pooling: Pooling = "mean",
    normalize: Annotated[bool, typer.Option("--normalize", help="Make every vector 1 long.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the vectors here, .npy. [default: the output, which must be a file]")
    ] = None,
    batch: Batch = BATCH_SIZE,
    device: Device = "auto",
) -> None:
    """A vector for each line, as NumPy reads them: `seqloom embed runs/X < lines.txt > vectors.npy`."""
    check_answers(out, "vectors")
    if out is None and sys.stdout.isatty():
        raise UsageError("Vectors are for a file, not for a terminal: name one, --out vectors.npy, or > vectors.npy.")
    import numpy as np

    from seqloom.predict.loader import load

    model = load(run, device)
    stream = sys.stdout.buffer if out is None else None
    lines, _ = open_lines(texts, batch, None)
    notes = Notes()
    kept = list(unknown_seen(lines, model, notes))
    vectors = model.embed(kept, pooling, normalize=normalize, batch_size=batch)
    content = io.BytesIO()
    np.save(content, vectors)
    if stream is not None:
        stream.write(content.getvalue())
    elif out is not None:
        from seqloom.core.files import write_atomic

        write_atomic(out, content.getvalue())
        print(f"{out} has {counted(len(vectors), 'vector')} of {vectors.shape[1]} numbers.")
    notes.show()
    blank = sum(not line.strip() for line in kept)
    if blank:
        typer.echo(f"note: {counted(blank, 'blank line')} of {len(kept):,} became zeros", err=True)
