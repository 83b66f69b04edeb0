"""Errors a user can act on.

Every message says what must hold, what arrived, and what to do. The command line prints it as it is
and leaves with `exit_code`; a traceback appears only with `--debug`.
"""

import errno
import signal

LACKING = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EROFS, errno.ENOLCK)  # what a machine can lack
NO_ROOM = ("can't allocate memory", "out of memory", "bad_alloc", "ALLOC_FAILED", "could not create a memory")


class SeqloomError(Exception):
    """The base class of errors that the user can fix. Subclasses have different exit codes."""

    exit_code = 1


class UsageError(SeqloomError):
    """The command, the recipe or an argument is wrong."""

    exit_code = 2


class DataError(SeqloomError):
    """A file or corpus cannot be used as it is."""

    exit_code = 3


class ChangedDataError(DataError):
    """The data of a run is not what it was trained on."""


class CheckpointError(SeqloomError):
    """A run directory or checkpoint is damaged, foreign, or of another format."""

    exit_code = 4


class ResourceError(SeqloomError):
    """The machine lacks what was asked for: a GPU, disk space, memory, an optional package."""

    exit_code = 5


class DivergedError(SeqloomError):
    """Training repeatedly produced non-finite numbers."""

    exit_code = 5


class Interrupted(SeqloomError):
    """Stopped on request (Ctrl-C, SIGTERM); the work so far is saved and can be resumed."""

    exit_code = 75


class NotStarted(Interrupted):
    """Stopped by a signal before there was anything to save, or to resume; 128 + its number, as shells count."""

    def __init__(self, message: str, number: int = signal.SIGINT):
        super().__init__(message)
        self.exit_code = 128 + number


def is_out_of_memory(error: BaseException) -> bool:
    """Of a GPU, or of the machine. Known by name, so that torch need not be imported to ask."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and any(words in str(error) for words in NO_ROOM))
