"""A gate before every optimizer step that makes several training processes alternate.

A training loop calls `arrive` before each step. After a fixed number of steps, the gate reports their duration, CPU
time and tokens, and waits for its next turn. It writes JSON lines to the original standard output. All other output of
the process is redirected to standard error. This file does not import seqloom, so that it works in every environment.
"""

import json
import os
import sys
import time


class Done(Exception):
    """Raised when there are no more turns."""


class Gate:
    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._tokens = steps, steps, 0
        self._began, self._worked = 0.0, 0.0
        self._voice = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._facts: dict[str, object] = {}

    def say(self, **facts: object) -> None:
        """Report the model, the package and its version before the first turn."""
        self._facts |= facts

    def arrive(self) -> None:
        """Mark the beginning of a step and the end of the previous step."""
        if self._done == self._steps:
            if self._began:
                seconds, worked = time.perf_counter() - self._began, time.process_time() - self._worked
                self._speak({"seconds": seconds, "worked": worked, "tokens": self._tokens})
            else:
                self._speak(self._facts)
            if sys.stdin.readline().strip() != "go":
                raise Done
            self._done, self._tokens = 0, 0
            self._began, self._worked = time.perf_counter(), time.process_time()
        self._done += 1

    def count(self, tokens: int) -> None:
        """Count the real target tokens of this step, including END and without padding."""
        self._tokens += tokens

    def _speak(self, said: dict[str, object]) -> None:
        self._voice.write(json.dumps(said) + "\n")
        self._voice.flush()
