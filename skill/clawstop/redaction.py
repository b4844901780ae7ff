"""Secrets taken out of what is written down or shown. It errs on the side of taking too much."""

from __future__ import annotations

import re
from typing import Any

GONE = "[redacted]"
_NAMES = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|secret[_-]?key|account[_-]?key|auth[_-]?key|encryption[_-]?key|credentials?|authorization"
    r"|cookie|otp"
)
_QUOTED = r"\\?\"[^\"]*\"?|\\?'[^']*'?"  # a value in quotes, to the quote that closes it
# Every quantifier is over one class that the next part does not begin with: no text is slow.
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----[^-]*(?:-----END [A-Z ]*-----)?"), GONE),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.I), rf"\1 {GONE}"),
    # name = value, "name": "value", --name value; the name may end a longer one: PGPASSWORD
    (
        re.compile(
            rf"((?:{_NAMES})\\?[\"']?(?:\s*[=:]\s*|\s+(?=[^\s-])))"
            rf"(?:{_QUOTED}|[^\s\"'&}}\]]+)",
            re.I,
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"\b(sshpass\s+-p\s*)\S+"), rf"\1{GONE}"),
    (re.compile(r"(://)[^/\s:@]+(?=@)"), rf"\1{GONE}"),  # a token as the user of an address
    (re.compile(r"(://[^/\s:@]*:)[^@\s/]+(?=@)"), rf"\1{GONE}"),
    (re.compile(r"(\s(?:-u|--user)[= ]?[^\s:]+:)\S+"), rf"\1{GONE}"),
    (re.compile(r"\b(?:sk|rk|pk)[-_][\w-]{16,}"), GONE),  # model providers, payment providers
    (re.compile(r"\b(?:gh[a-z]|glpat|npm|hf|xox[a-z])[-_][\w-]{10,}"), GONE),
    (re.compile(r"\bgithub_pat_\w{10,}"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), GONE),
    (re.compile(r"\bAIza[\w-]{30,}"), GONE),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), GONE),  # JSON web token
    (re.compile(r"\b\d{6,12}:[\w-]{30,}"), GONE),  # Telegram bot
)


def redact(value: Any) -> Any:
    """The same value with every secret in its texts replaced."""
    if isinstance(value, str):
        for pattern, instead in _PATTERNS:
            value = pattern.sub(instead, value)
        return value
    if isinstance(value, dict):
        return {key: redact(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return value
