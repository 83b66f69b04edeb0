"""Parallel training of the runs of a ladder, one process per run.

The parent sends a job to the standard input of a worker. The worker writes its events to standard output as lines of
JSON. Workers lock, checkpoint and evaluate like ordinary runs, so the ladder can resume after any failure. The parent
keeps the input open. When the input closes, for example because the parent has exited, workers save their progress and
exit.
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
from seqloom.ladder.plan import Variant
from seqloom.ladder.runs import LadderRun, RunEvent, train_run
from seqloom.tasks import task_info
from seqloom.train.events import Stopped, event_from_json, event_to_json
from seqloom.train.stop import Stop

POLL_SECONDS = 0.2  # interval between checks for a stop request


class Worker:
    """A process that trains one run, and a thread that forwards its messages."""

    def __init__(
        self, run: LadderRun, splits: Sequence[str], threads: int, messages: "queue.Queue[Any]", jobs: int = 1
    ) -> None:
        self.run = run
        self.broken: str | None = None  # an invalid last line of output
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # only the parent receives Ctrl-C; it stops the workers
        )
        folder = data_folder()
        job = {
            "recipe": to_mapping(run.recipe),
            "path": str(run.path),
            "splits": list(splits),
            "jobs": jobs,
            "data_dir": str(folder) if folder else None,
        }
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has exited; `end` reports the reason
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()
        threading.Thread(target=self.listen, args=(messages,), daemon=True).start()

    def listen(self, messages: "queue.Queue[Any]") -> None:
        """Forward each line of JSON, and None at the end."""
        assert self.process.stdout is not None
        line = b""
        try:
            for line in self.process.stdout:
                messages.put((self, json.loads(line)))
        except ValueError:  # an incomplete line: the process was killed while writing
            self.broken = line.decode(errors="replace").strip()
        finally:
            messages.put((self, None))  # the process has exited, or its output is damaged

    def end(self) -> SeqloomError | None:
        """Wait for the process. Return an error if the process failed without reporting an error."""
        if self.broken is not None:
            self.process.terminate()  # otherwise the process could block on its output forever
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # unread input is no longer needed
                if pipe is not None:
                    pipe.close()
        with self.errors as file:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines() or ["no message"]
        if code == 0 and self.broken is None:
            return None
        if code == -signal.SIGTERM and self.broken is None:  # stopped before its signal handler was installed
            return Interrupted("Stopped on request.")
        cause = f"signal {-code}" if code < 0 else lines[-1]
        cause += "" if self.broken is None else f", in the middle of a line: {self.broken[:80]!r}"
        return ResourceError(f"variant {self.run.variant.name}: the process of {self.run.path} failed: {cause}")


def train_in_parallel(
    runs: Sequence[LadderRun], splits: Sequence[str], stop: Stop, jobs: int
) -> Iterator[tuple[LadderRun, RunEvent]]:
    """Train several runs in parallel. Yield runs and events in the same form as `train_ladder`."""
    messages: queue.Queue[Any] = queue.Queue()
    threads = max(1, torch.get_num_threads() // jobs)
    waiting, running = deque[LadderRun](), list[Worker]()
    error: SeqloomError | None = None
    stopped: tuple[LadderRun, Stopped] | None = None
    ending = False  # whether the workers were asked to save and exit
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
                    prefix = "" if kind is Interrupted else f"variant {worker.run.variant.name}: "
                    error = error or kind(prefix + line["message"])
                case "stopped":
                    stopped = worker.run, Stopped(line["step"])  # yielded after all workers have saved
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


# --- worker process -------------------------------------------------------------------------------------------------


def main() -> int:
    """Train the run of the job on standard input, and write events as lines of JSON to standard output."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # other output goes to standard error
    line = b""
    # Unbuffered, because the rest belongs to the thread below
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    job = json.loads(line)
    recipe = build(task_info(job["recipe"]["task"]).recipe, job["recipe"])
    run = LadderRun(Variant("", {}, recipe), recipe.seed, Path(job["path"]), 1, 1)
    stop = Stop()

    def fail(kind: str, message: str) -> None:
        print(json.dumps({"event": "failed", "kind": kind, "message": message}), file=output)

    with use_data_folder(job["data_dir"]), stop.on_signals():
        threading.Thread(target=terminate_at_end_of_input, daemon=True).start()
        try:
            for event in train_run(run, job["splits"], stop, job["jobs"]):
                if event is None:
                    message: dict[str, object] = {"event": "finished before"}
                elif isinstance(event, str):
                    message = {"event": "diverged", "reason": event}
                else:
                    message = event_to_json(event)
                print(json.dumps(message), file=output)
        except SeqloomError as error:
            fail(type(error).__name__, str(error))
        except (MemoryError, torch.OutOfMemoryError):
            fail("ResourceError", "out of memory. Use fewer --jobs, or a smaller batch or model.")
    return 0


def terminate_at_end_of_input() -> None:
    """Stop when the parent process closes standard input or exits."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
