"""Several runs of a ladder at once, each in a process of its own.

The parent sends an order on the other's standard input, and its events come back on standard output, a line of JSON
each. Locks, checkpoints and figures are those of ordinary runs, so whatever way a process ends the ladder can go on
from there. The parent keeps the input open: where it ends, however the parent was ended, the others save and leave.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from seqloom.config import build, to_mapping
from seqloom.core import errors
from seqloom.core.errors import Interrupted, ResourceError, SeqloomError
from seqloom.data.files import data_folder, use_data_folder
from seqloom.ladder.runs import Happening, Place, over, work
from seqloom.tasks import task_info
from seqloom.train.events import Stopped, event_from_json, event_to_json
from seqloom.train.stop import Stop

LOOK = 0.2  # seconds between looks at whether to stop


class _Worker:
    """A process that works on one run, and a thread that passes on what it says."""

    def __init__(
        self, place: Place, splits: Sequence[str], threads: int, said: "queue.Queue[Any]", jobs: int = 1
    ) -> None:
        self.place = place
        self.broken: str | None = None  # what it said last, if that was no answer
        self.complaints: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is for the parent, which then tells the others once
        )
        folder = data_folder()
        order = {
            "recipe": to_mapping(place.recipe),
            "path": str(place.path),
            "splits": list(splits),
            "jobs": jobs,
            "data_dir": str(folder) if folder else None,
        }
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already; `end` says why
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self._listen, args=(said,), daemon=True).start()

    def _listen(self, said: "queue.Queue[Any]") -> None:
        assert self.process.stdout is not None
        line = b""
        try:
            for line in self.process.stdout:
                said.put((self, json.loads(line)))
        except ValueError:  # half a line: it was ended while it wrote
            self.broken = line.decode(errors="replace").strip()
        finally:
            said.put((self, None))  # it has ended, or nothing it says can be understood any more

    def end(self) -> SeqloomError | None:
        """Wait for the process, and say what went wrong if it did not say so itself."""
        if self.broken is not None:
            self.process.terminate()  # or it might wait for ever to be listened to
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # what it did not read is of no use now
                if pipe is not None:
                    pipe.close()
        with self.complaints as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines() or ["no message"]
        if code == 0 and self.broken is None:
            return None
        if code == -signal.SIGTERM and self.broken is None:  # before it could listen
            return Interrupted("Stopped on request.")
        cause = f"signal {-code}" if code < 0 else lines[-1]
        cause += "" if self.broken is None else f", in the middle of a line: {self.broken[:80]!r}"
        return self.place.rung.named(ResourceError(f"the process of {self.place.path} ended: {cause}"))


def climb_together(
    places: Sequence[Place], splits: Sequence[str], stop: Stop, jobs: int
) -> Iterator[tuple[Place, Happening]]:
    said: queue.Queue[Any] = queue.Queue()
    threads = max(1, torch.get_num_threads() // jobs)
    waiting, running = deque[Place](), list[_Worker]()
    error: SeqloomError | None = None
    stopped: tuple[Place, Stopped] | None = None
    ending = False  # whether the others were told to stop
    for place in places:
        if over(place, splits):
            yield place, None
        else:
            waiting.append(place)
    try:
        while running or (waiting and not ending):
            while waiting and len(running) < jobs and not ending:
                running.append(_Worker(waiting.popleft(), splits, threads, said, jobs))
            if (stop.requested or error is not None) and not ending:
                ending = True
                _terminate(running)
            try:
                worker, line = said.get(timeout=LOOK)
            except queue.Empty:
                continue
            if line is None:
                running.remove(worker)
                wrong = worker.end()
                error = error or wrong
            elif line["event"] == "failed":
                error = error or _failure(worker.place, line)
            elif line["event"] == "stopped":
                stopped = worker.place, Stopped(line["step"])  # told when the others have saved too
            else:
                yield worker.place, _happening(line)
    finally:
        _terminate(running)
        for worker in running:
            worker.end()
    if stopped is not None and (error is None or isinstance(error, Interrupted)):
        yield stopped
    elif error is not None:
        raise error


def _terminate(running: Sequence[_Worker]) -> None:
    """Each saves what it has, and leaves."""
    for worker in running:
        worker.process.terminate()


def _happening(line: dict[str, Any]) -> Happening:
    if line["event"] == "finished before":
        return None
    return str(line["reason"]) if line["event"] == "diverged" else event_from_json(line)


def _failure(place: Place, line: Mapping[str, str]) -> SeqloomError:
    kind: type[SeqloomError] = getattr(errors, line["kind"], SeqloomError)
    return kind(line["message"]) if kind is Interrupted else place.rung.named(kind(line["message"]))


# --- in the other process -------------------------------------------------------------------------------------------


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    order = json.loads(_line())
    recipe = build(task_info(order["recipe"]["task"]).recipe, order["recipe"])
    stop = Stop()
    with use_data_folder(order["data_dir"]), stop.on_signals():
        threading.Thread(target=_leash, daemon=True).start()
        try:
            for happening in work(recipe, Path(order["path"]), order["splits"], stop, order["jobs"]):
                print(json.dumps(_in_words(happening)), file=answers)
        except SeqloomError as error:
            print(json.dumps({"event": "failed", "kind": type(error).__name__, "message": str(error)}), file=answers)
        except (MemoryError, torch.OutOfMemoryError):
            words = "out of memory. Run fewer at once (--jobs), or take a smaller batch or model."
            print(json.dumps({"event": "failed", "kind": "ResourceError", "message": words}), file=answers)
    return 0


def _line() -> bytes:
    """The order. Read byte by byte, for nothing of what follows may be taken along."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def _leash() -> None:
    """Nothing follows the order but the end of the input, when the parent is gone."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _in_words(happening: Happening) -> dict[str, Any]:
    if happening is None:
        return {"event": "finished before"}
    return {"event": "diverged", "reason": happening} if isinstance(happening, str) else event_to_json(happening)


if __name__ == "__main__":
    sys.exit(main())
