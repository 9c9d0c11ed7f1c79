"""`rerail minify`: a long traceback made short."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rerail.cli.settings import Problem, Settings


@click.command(name="minify")
@click.argument("file", metavar="FILE|-")
@click.pass_obj
def command(settings: Settings, file: str) -> None:
    """Shorten a long traceback to its first cause.

    It is read from a log file, or from the standard input (-). Your own frames, the message and all shapes stay. What
    holds no traceback is printed unchanged.
    """
    from rerail.diagnostics.tracebacks import minify_traceback, traceback_signature

    text = _read(file)
    short = minify_traceback(text)
    if settings.as_json:
        settings.say(short, signature=traceback_signature(text), traceback=short)
    else:  # as bytes: what is no traceback leaves as it came
        click.echo(short.encode("utf-8", "surrogateescape"), nl=False)


def _read(file: str) -> str:
    try:
        held = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise Problem(f"there is no file {file!r}; give the log, or - for the standard input") from None
    except IsADirectoryError:
        raise Problem(f"{file!r} is a directory; give the log file in it") from None
    except OSError as error:
        raise Problem(f"{file!r} was not read: {error.strerror or error}") from None
    if b"\0" in held:
        raise Problem(f"{file!r} is no text: it holds zero bytes; give the log, not the checkpoint")
    return held.decode("utf-8", "surrogateescape")
