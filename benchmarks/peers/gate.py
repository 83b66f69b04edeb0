"""A gate before every update of a training, so that several trainings in several processes take turns.

Whoever trains calls `arrive` when an update is about to begin. After every so many of them the gate says how long they
took, how much of the processor's time that was and how many tokens they read, and waits for its next turn. It speaks
one line of JSON at a time, on what was standard output when it was made; whatever else the process prints goes to
standard error from then on.

This file imports nothing of seqloom's, so that it serves in every environment.
"""

import json
import os
import sys
import time


class Done(Exception):
    """No more turns are wanted."""


class Gate:
    def __init__(self, steps: int) -> None:
        self._steps, self._done, self._tokens = steps, steps, 0
        self._began, self._worked = 0.0, 0.0
        self._voice = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._facts: dict[str, object] = {}

    def say(self, **facts: object) -> None:
        """What is worth knowing about the model, the package and its version: said before the first turn."""
        self._facts |= facts

    def arrive(self) -> None:
        """An update is about to begin: the one before it, its batch and all, is over."""
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
        """So many real target tokens, their ends included and padding not, are in this update."""
        self._tokens += tokens

    def _speak(self, said: dict[str, object]) -> None:
        self._voice.write(json.dumps(said) + "\n")
        self._voice.flush()
