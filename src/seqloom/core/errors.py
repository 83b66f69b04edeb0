"""Errors that a user can fix.

Every message says what must hold, what was received, and what to do. The command line prints the
message and exits with `exit_code`; it shows a traceback only with `--debug`.
"""

import errno
import signal

RESOURCE_ERRNOS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EROFS, errno.ENOLCK)
OOM_MESSAGES = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "could not create a memory")


class SeqloomError(Exception):
    """Base class of errors that the user can fix. Subclasses define the exit code."""

    exit_code = 1


class UsageError(SeqloomError):
    """The command, the recipe or an argument is invalid."""

    exit_code = 2


class DataError(SeqloomError):
    """A file or corpus is invalid or unsuitable."""

    exit_code = 3


class ChangedDataError(DataError):
    """The data differs from the training data of the run."""


class CheckpointError(SeqloomError):
    """A run directory or checkpoint is damaged, belongs to another program, or has another format."""

    exit_code = 4


class ResourceError(SeqloomError):
    """The machine lacks a resource: a GPU, disk space, memory, or an optional package."""

    exit_code = 5


class DivergedError(SeqloomError):
    """Training repeatedly produced non-finite values."""

    exit_code = 5


class Interrupted(SeqloomError):
    """The user or the system stopped the command (Ctrl-C, SIGTERM); the saved progress can be resumed."""

    exit_code = 75


class NotStarted(Interrupted):
    """A signal stopped the command before it had any progress to save. The exit code is 128 plus the signal number."""

    def __init__(self, message: str, number: int = signal.SIGINT):
        super().__init__(message)
        self.exit_code = 128 + number


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is an out-of-memory error of a GPU or of the machine, without importing torch."""
    has_name = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return has_name or (isinstance(error, RuntimeError) and any(message in str(error) for message in OOM_MESSAGES))
