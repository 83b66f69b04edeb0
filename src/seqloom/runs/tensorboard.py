"""The curves of a training as an event file for TensorBoard.

torch's `SummaryWriter` opens its file by name at each flush, in a thread of its own: it follows links, and it fails
once somebody has removed the folder. This writer creates one file of an unpredictable name and keeps it open.
"""

import secrets
import time
from pathlib import Path
from typing import Any

from seqloom.core.files import create_file, disk_errors, make_directory


class EventWriter:
    """An event file in `folder`. What earlier files say of `purge_step` and later steps is no longer shown."""

    def __init__(self, folder: Path, purge_step: int | None = None):
        """Raise ImportError where TensorBoard is not installed."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        self._summary: Any = Summary
        make_directory(folder)
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{secrets.token_hex(8)}"  # read in this order
        with disk_errors(self.path):
            self._file = create_file(self.path)
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        point = self._summary.Value(tag=tag, simple_value=value)
        self._write(step=step, summary=self._summary(value=[point]))

    def flush(self) -> None:
        with disk_errors(self.path):
            self._file.flush()

    def close(self) -> None:
        with disk_errors(self.path):
            self._file.close()

    def _write(self, **content: Any) -> None:
        with disk_errors(self.path):
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
