"""Secrets left out of what is written down: of a command line, of texts and of named values."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

COMMAND = 2000  # characters of a command line
MASK = "***"
WORD = (  # a name that ends so holds a secret; `tokenizer`, `max_tokens` and `key_dim` do not
    r"(?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|(?<![a-z])key|token|secret|passw(?:or)?d|pwd|passphrase"
    r"|credentials?|auth)"
)
NAMED = re.compile(rf"(?i)^(-{{0,2}}[\w.+/-]*?{WORD})(?:=(.*))?$", re.S)
ADDRESS = re.compile(r"(?i)([a-z][\w+.-]{0,20}://)[^/\s@]{1,300}@")  # user and password, or a token, ahead of the host
QUERY = re.compile(rf"(?i)([?&;][\w.-]{0, 40}?(?:{WORD}|sig|signature)=)[^&;#\s]+")
INNER = re.compile(rf"(?i)([\"']?\b[\w.-]{{0,40}}?{WORD}[\"']?\s*[:=]\s*[\"']?)[^\s\"',;}}&?#]+")  # in a quoted mapping
BARE = re.compile(  # tokens that show what they are
    r"\b(?:hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abpr]-|AKIA|eyJ)[\w.-]{12,}|(?i:\bbearer\s+)[\w.~+/=-]{8,}"
)


def command() -> str:
    """Return the command line without secrets and without the folders of the home."""
    words = [str(word)[: 2 * COMMAND] for word in sys.argv] or ["python"]  # twice: no secret is cut where it shows
    words[0] = words[0] or "python"
    shown, follows = [], False
    for word in words:
        if follows and not word.startswith("--"):
            shown.append(MASK)
            follows = False
            continue
        named = NAMED.match(word)
        follows = named is not None and named.group(2) is None and word.startswith("-")
        shown.append(masked(word))
    return " ".join(shown).replace(str(Path.home()), "~")[:COMMAND]


def masked(text: str) -> str:
    """Return a text without the secrets that its form gives away."""
    named = NAMED.match(text)
    if named and named.group(2) is not None:
        return f"{named.group(1)}={MASK}"
    text = BARE.sub(MASK, ADDRESS.sub(rf"\g<1>{MASK}@", text))
    return INNER.sub(rf"\g<1>{MASK}", QUERY.sub(rf"\g<1>{MASK}", text))


def hidden(name: str, value: Any) -> Any:
    """Return a value that JSON can hold; a secret, by its name or its form, is masked."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    return MASK if NAMED.match(name) else masked(str(value))
