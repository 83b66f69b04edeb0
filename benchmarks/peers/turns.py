"""Processes in separate environments that perform the same work alternately, and statistics of their speeds."""

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Contender:
    """A process with a `Gate`."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    facts: dict[str, Any] = field(default_factory=dict)
    alone: bool = False  # a process with one thread is measured by CPU time, which other load hardly affects
    speeds: list[float] = field(default_factory=list)  # tokens per second of each round

    @classmethod
    def start(cls, name: str, command: Sequence[str], log: Path, threads: int) -> "Contender":
        """Start the process and wait until it reaches its first step."""
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        with log.open("w") as stderr:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            )
        contender = cls(name, process, log, alone=threads == 1)
        contender.facts = contender._listen()
        return contender

    def turn(self) -> float:
        """Run the steps of a round and return the tokens per second."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        message = self._listen()
        return float(message["tokens"] / message["worked" if self.alone else "seconds"])

    def stop(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _listen(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"{self.name} failed: {_last_line(self.log)}")
        results: dict[str, Any] = json.loads(line)
        return results


class Failed(Exception):
    """Raised with the reason if a process fails."""


def take_turns(contenders: Sequence[Contender], rounds: int) -> None:
    """Run a warm-up round and `rounds` measured rounds. The order alternates between rounds."""
    for number in range(rounds + 1):
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            speed = contender.turn()
            if number:
                contender.speeds.append(speed)


@dataclass(frozen=True)
class Spread:
    """A median with minimum and maximum."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def format(self, form: str = ",.0f", unit: str = "") -> str:
        return f"{self.median:{form}}{unit} ({self.low:{form}}–{self.high:{form}})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the speed ratios of each round, in which both have the same load."""
    return Spread.of([expected / other for expected, other in zip(ours, theirs, strict=True)])


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Format a table. The first column is left-aligned, and the other columns are right-aligned."""
    widths = [max(len(row[position]) for row in (header, *rows)) for position in range(len(header))]
    lines = []
    for row in (header, *rows):
        first, *others = (
            cell.ljust(w) if not n else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *others]))
    return "\n".join(lines)


def write_result(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write the result as JSON if a path is given."""
    if path is not None:
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"
