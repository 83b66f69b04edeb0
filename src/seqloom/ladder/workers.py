"""Several runs of a ladder at once, each in a process of its own.

The parent sends an order on the other's standard input, and its events come back on standard
output, a line of JSON each. Locks, checkpoints and figures are those of ordinary runs, so whatever
way a process ends the ladder can go on from there. The parent keeps the input open: where it ends,
however the parent was ended, the others save and leave.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import torch

from seqloom.config import build, to_mapping
from seqloom.core import errors
from seqloom.core.errors import Interrupted, ResourceError, SeqloomError
from seqloom.data.files import data_folder, use_data_folder
from seqloom.ladder.plan import Rung
from seqloom.ladder.runs import Happening, LadderRun, work
from seqloom.tasks import task_info
from seqloom.train.events import Stopped, event_from_json, event_to_json
from seqloom.train.stop import Stop

POLL_SECONDS = 0.2  # between looks at whether to stop


class Worker:
    """A process that works on one run, and a thread that passes on what it says."""

    def __init__(
        self, run: LadderRun, splits: Sequence[str], threads: int, messages: "queue.Queue[Any]", jobs: int = 1
    ) -> None:
        self.run = run
        self.broken: str | None = None  # what it said last, if that was no answer
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is for the parent, which then tells the others once
        )
        folder = data_folder()
        order = {
            "recipe": to_mapping(run.recipe),
            "path": str(run.path),
            "splits": list(splits),
            "jobs": jobs,
            "data_dir": str(folder) if folder else None,
        }
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already; `end` says why
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self.listen, args=(messages,), daemon=True).start()

    def listen(self, messages: "queue.Queue[Any]") -> None:
        """Pass on each line of JSON, and None at the end."""
        assert self.process.stdout is not None
        line = b""
        try:
            for line in self.process.stdout:
                messages.put((self, json.loads(line)))
        except ValueError:  # half a line: it was ended while it wrote
            self.broken = line.decode(errors="replace").strip()
        finally:
            messages.put((self, None))  # it has ended, or nothing it says can be understood any more

    def end(self) -> SeqloomError | None:
        """Wait for the process, and say what went wrong if it did not say so itself."""
        if self.broken is not None:
            self.process.terminate()  # or it might wait for ever to be listened to
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # what it did not read is of no use now
                if pipe is not None:
                    pipe.close()
        with self.errors as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines() or ["no message"]
        if code == 0 and self.broken is None:
            return None
        if code == -signal.SIGTERM and self.broken is None:  # before it could listen
            return Interrupted("Stopped on request.")
        cause = f"signal {-code}" if code < 0 else lines[-1]
        cause += "" if self.broken is None else f", in the middle of a line: {self.broken[:80]!r}"
        return ResourceError(f"rung {self.run.rung.name}: the process of {self.run.path} ended: {cause}")


def climb_together(
    runs: Sequence[LadderRun], splits: Sequence[str], stop: Stop, jobs: int
) -> Iterator[tuple[LadderRun, Happening]]:
    """Train several runs at once, yielding what happens to them as `climb` does."""
    messages: queue.Queue[Any] = queue.Queue()
    threads = max(1, torch.get_num_threads() // jobs)
    waiting, running = deque[LadderRun](), list[Worker]()
    error: SeqloomError | None = None
    stopped: tuple[LadderRun, Stopped] | None = None
    ending = False  # whether the others were told to stop: each saves what it has, and leaves
    for run in runs:
        if run.is_over(splits):
            yield run, None
        else:
            waiting.append(run)
    try:
        while running or (waiting and not ending):
            while waiting and len(running) < jobs and not ending:
                running.append(Worker(waiting.popleft(), splits, threads, messages, jobs))
            if (stop.requested or error is not None) and not ending:
                ending = True
                for worker in running:
                    worker.process.terminate()
            try:
                worker, line = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if line is None:
                running.remove(worker)
                failure = worker.end()
                error = error or failure
                continue
            match line["event"]:
                case "failed":
                    kind: type[SeqloomError] = getattr(errors, line["kind"], SeqloomError)
                    of_rung = "" if kind is Interrupted else f"rung {worker.run.rung.name}: "
                    error = error or kind(of_rung + line["message"])
                case "stopped":
                    stopped = worker.run, Stopped(line["step"])  # told when the others have saved too
                case "finished before":
                    yield worker.run, None
                case "diverged":
                    yield worker.run, str(line["reason"])
                case _:
                    yield worker.run, event_from_json(line)
    finally:
        for worker in running:
            worker.process.terminate()
        for worker in running:
            worker.end()
    if stopped is not None and (error is None or isinstance(error, Interrupted)):
        yield stopped
    elif error is not None:
        raise error


# --- in the other process -------------------------------------------------------------------------------------------


def main() -> int:
    """Work on the run that is ordered on standard input; answers are lines of JSON on standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):  # nothing of what follows may be taken along
        line += byte
    order = json.loads(line)
    recipe = build(task_info(order["recipe"]["task"]).recipe, order["recipe"])
    run = LadderRun(Rung("", {}, recipe), recipe.seed, Path(order["path"]), 1, 1)
    stop = Stop()

    def fail(kind: str, message: str) -> None:
        print(json.dumps({"event": "failed", "kind": kind, "message": message}), file=answers)

    with use_data_folder(order["data_dir"]), stop.on_signals():
        threading.Thread(target=terminate_at_end_of_input, daemon=True).start()
        try:
            for happening in work(run, order["splits"], stop, order["jobs"]):
                if happening is None:
                    message: dict[str, object] = {"event": "finished before"}
                elif isinstance(happening, str):
                    message = {"event": "diverged", "reason": happening}
                else:
                    message = event_to_json(happening)
                print(json.dumps(message), file=answers)
        except SeqloomError as error:
            fail(type(error).__name__, str(error))
        except (MemoryError, torch.OutOfMemoryError):
            fail("ResourceError", "out of memory. Run fewer at once (--jobs), or take a smaller batch or model.")
    return 0


def terminate_at_end_of_input() -> None:
    """Stop when the parent is gone: nothing follows the order but the end of the input."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
