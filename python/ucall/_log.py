"""The package's log on standard error, as text or as JSON, each record by one write.

Processes that share standard error write whole records, so tracebacks of two workers do not
interleave.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Final

__all__ = ["write_to_stderr"]

log = logging.getLogger("ucall")


class _StderrHandler(logging.Handler):
    """Writes a record by one system call, unless the output takes less at once.

    It writes nothing where the program has configured the root logger.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if logging.root.handlers:
            return
        try:
            _write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)


def _write(text: str) -> None:
    stream = sys.stderr
    if stream is None:
        return
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError):  # It is no file, such as that of a test.
        stream.write(text)
        return
    stream.flush()
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            import select  # here, because it is rare

            select.select([], [descriptor], [])


class _TextFormatter(logging.Formatter):
    """Indents a record's further lines, and escapes control characters.

    The text of an exception may contain what a caller has sent.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        first, *others = super().format(record).split("\n")
        return "\n".join([_printable(first), *("  " + _printable(line) for line in others)])


class _JsonFormatter(logging.Formatter):
    """A JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # here, because only this format needs it

        seconds, millis = divmod(int(record.created * 1000), 1000)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        call: str | None = getattr(record, "ucall_call", None)
        if call is not None and isinstance(record.args, tuple):
            line["message"] = record.args[0]  # Without the call, which has its own members.
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line)
        # As it is, since an id may be a number that no float is.
        return text if call is None else f"{text[:-1]}, {call[1:]}"


def _printable(line: str) -> str:
    return "".join(it if it.isprintable() or it == "\t" else repr(it)[1:-1] for it in line)


_FORMATTERS: Final = {"text": _TextFormatter, "json": _JsonFormatter}
_handler = _StderrHandler()


def write_to_stderr(form: str) -> None:
    """Writes the package's own records to standard error from now on, as ``"text"`` or ``"json"``,
    unless the program configures the root logger."""
    _handler.setFormatter(_FORMATTERS[form]())
    if _handler not in log.handlers:
        log.addHandler(_handler)
    if log.level == logging.NOTSET and not logging.root.handlers:
        log.setLevel(logging.INFO)
