"""What comes over the wire, checked: a name from outside is data, and short."""

from __future__ import annotations

from typing import Any

from . import scopes
from .errors import UsageError

Params = dict[str, Any]


def text(params: Params, key: str, most: int = scopes.MAX_KEY) -> str:
    value = params.get(key, "")
    if not isinstance(value, str) or len(value) > most:
        raise UsageError(f"{key}: expected a short text, got {str(value)[:60]!r}")
    return value


def number(params: Params, key: str) -> int:
    value = params.get(key)
    if not isinstance(value, int):
        raise UsageError(f"{key}: expected a number, got {str(value)[:60]!r}")
    return value


def session_of(params: Params) -> str:
    return scopes.check_key(text(params, "session"))


def names(params: Params, key: str) -> list[str]:
    """A list of short texts; one alone is a list too."""
    value = params.get(key) or []
    return [text({key: one}, key) for one in ([value] if isinstance(value, str) else value)]
