"""Everything clawstop raises on purpose.

    ClawstopError            a message for a person: what happened, and the next step
    |-- UsageError           the caller asked for something that does not exist        exit 2
    |-- Ambiguous            several agents go by that name                            exit 4
    |-- NotPermitted         the caller may not do this                                exit 5
    |-- EngineUnreachable    no engine answers                                         exit 1
    |-- ProtocolError        the other side speaks something else                      exit 1
    |-- TranscriptError      an agent's memory cannot be read or changed               exit 1
    |   |-- GoneOn           it is not what it was any more                            exit 1
    |   `-- NotNow           only its gateway can, and that is not there               exit 1
    |       `-- Held         somebody else is writing to it                            exit 1
    |-- StoreError           the state database cannot be read or written              exit 1
    `-- SettingsError        a setting has an unknown name or a wrong type             exit 2

`exit_code` is what the command line leaves with; `code` is the same thing on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClawstopError(Exception):
    code = "failed"
    exit_code = 1


class UsageError(ClawstopError):
    code = "usage"
    exit_code = 2


class Ambiguous(ClawstopError):
    code = "ambiguous"
    exit_code = 4

    def __init__(self, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.choices = list(choices)  # in the order of their numbers in the message


class NotPermitted(ClawstopError):
    code = "not_permitted"
    exit_code = 5


class EngineUnreachable(ClawstopError):
    code = "unreachable"


class ProtocolError(ClawstopError):
    code = "protocol"


class TranscriptError(ClawstopError):
    code = "transcript"


class GoneOn(TranscriptError):
    code = "gone_on"


class NotNow(TranscriptError):
    code = "not_now"


class Held(NotNow):
    code = "held"
    later = "; it is tried again by itself for two minutes"  # said behind it where that is so


class StoreError(ClawstopError):
    code = "store"


class SettingsError(ClawstopError):
    code = "settings"
    exit_code = 2


BY_CODE: dict[str, type[ClawstopError]] = {
    kind.code: kind
    for kind in (
        ClawstopError,
        UsageError,
        Ambiguous,
        NotPermitted,
        EngineUnreachable,
        ProtocolError,
        TranscriptError,
        GoneOn,
        NotNow,
        Held,
        StoreError,
        SettingsError,
    )
}
