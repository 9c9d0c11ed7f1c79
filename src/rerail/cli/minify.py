"""`rerail minify`: a long traceback made short."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

import click

from rerail.cli.settings import Problem, Settings

WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how PowerShell writes what `>` redirects


@click.command(name="minify")
@click.argument("file", metavar="FILE|-")
@click.pass_obj
def command(settings: Settings, file: str) -> None:
    """Shorten a long traceback to its first cause.

    It is read from a log file, or from the standard input (-). Your own frames, the message and all shapes stay. What
    holds no traceback is printed unchanged.
    """
    from rerail.diagnostics.tracebacks import minify_traceback, traceback_signature

    held = _read(file)
    text = _decoded(file, held)
    short = minify_traceback(text)
    if settings.as_json:
        settings.say(short, signature=traceback_signature(text), traceback=short)
    else:  # as bytes: what is no traceback leaves as it came
        click.echo(held if short == text else short.encode("utf-8", "surrogateescape"), nl=False)


def _read(file: str) -> bytes:
    if file == "-" and sys.stdin is None:
        raise Problem("there is no standard input; give the log as a file")
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError:
        raise Problem(f"there is no file {file!r}; give the log, or - for the standard input") from None
    except IsADirectoryError:
        raise Problem(f"{file!r} is a directory; give the log file in it") from None
    except OSError as error:
        raise Problem(
            f"{file!r} was not read: {error.strerror or error}; set its permissions, or give another log"
        ) from None


def _decoded(file: str, held: bytes) -> str:
    if held.startswith(WIDE):
        return held.decode("utf-16", "replace")
    if b"\0" in held:
        raise Problem(f"{file!r} is no text: it holds zero bytes; give the log, not the checkpoint")
    return held.decode("utf-8", "surrogateescape")
