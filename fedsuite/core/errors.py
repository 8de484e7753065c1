"""Errors that fedsuite raises on purpose.

Each message is one line that names what is wrong, where, and what to do about it; the
command line prints it as it is, without a traceback.
"""

import signal


class FedsuiteError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(FedsuiteError):
    """An experiment that cannot be run: unknown key, wrong type, bad combination."""


class DataError(FedsuiteError):
    """Data that is missing, unreadable, or cannot be partitioned as asked."""


class RunError(FedsuiteError):
    """A run that cannot start, go on, or be resumed."""


class Stopped(KeyboardInterrupt):
    """A run that Ctrl-C ended: the message says where, and the command that goes on.

    Parameters
    ----------
    message
        One line.
    code
        The exit code of the command: 128 and the number of the signal that ended it.
    """

    def __init__(self, message: str, code: int = 128 + signal.SIGINT) -> None:
        super().__init__(message)
        self.code = code
