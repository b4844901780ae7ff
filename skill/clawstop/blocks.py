"""Our block in an AGENTS.md: between two marks, with a version and a sum of what we wrote.

Everything here is bytes to bytes. What stands outside the marks stays as it is, and a block that is
taken out leaves the file as it was before it came. A block that a person has edited is theirs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

BEGIN = b"<!-- clawstop:begin"
END = b"<!-- clawstop:end -->"
MARK = re.compile(
    rb"^<!-- clawstop:begin version=(\d{1,6}) lead=([0-2]) sum=([0-9a-f]{12}) -->\r?$", re.M
)
LAST = re.compile(rb"^<!-- clawstop:end -->[ \t]*(?:\r?\n|\Z)", re.M)


class Damaged(ValueError):
    """There is something of a block, but not one whole block."""


@dataclass(frozen=True)
class Block:
    begin: int  # where it begins in the file, with the empty lines that came with it,
    start: int  # without them,
    end: int  # and where the file goes on
    version: int
    lead: int  # line ends that came with it
    eol: bytes
    edited: bool  # by somebody else


def find(data: bytes) -> Block | None:
    begins = [*MARK.finditer(data)]
    ends = [*LAST.finditer(data)]
    if not data.count(BEGIN) and not data.count(END):
        return None
    whole = len(begins) == len(ends) == 1 and begins[0].end() < ends[0].start()
    if not whole or data.count(BEGIN) != 1 or data.count(END) != 1:
        raise Damaged("its marks are not one pair, each on a line of its own")
    mark, last = begins[0], ends[0]
    begin, eol = mark.start(), _eol(mark)
    lead = int(mark[2])
    for _ in range(lead):
        # Only an empty line is ours: the end of somebody's line stays, where there was one.
        if data[:begin].endswith(eol if lead == 2 else b"\n" + eol):
            begin -= len(eol)
    body = data[mark.end() : last.start()]
    edited = _sum(body) != mark[3].decode()
    return Block(begin, mark.start(), last.end(), int(mark[1]), int(mark[2]), eol, edited)


def put(data: bytes, text: str, version: int) -> bytes:
    """With the block, at the end, or in the place of the one that is there."""
    there = find(data)
    eol = b"\r\n" if b"\r\n" in data[: data.find(b"\n") + 1] else b"\n"
    if there:
        lead, eol = there.lead, there.eol
        before, after = data[: there.start], data[there.end :]
    else:
        lead = 0 if not data else 1 if data.endswith(b"\n") else 2
        before, after = data + eol * lead, b""
    body = b"\n" + text.strip().encode() + b"\n"
    mark = f"<!-- clawstop:begin version={version} lead={lead} sum={_sum(body)} -->"
    block = mark.encode() + body + END + b"\n"
    return before + block.replace(b"\n", eol) + after


def take(data: bytes) -> bytes:
    """Without the block."""
    there = find(data)
    if not there:
        return data
    before, after = data[: there.begin], data[there.end :]
    glued = after and before and not before.endswith(b"\n")
    if glued:  # somebody wrote on below it: their line stays a line
        before += there.eol
    return before + after


def _eol(mark: re.Match[bytes]) -> bytes:
    return b"\r\n" if mark[0].endswith(b"\r") else b"\n"


def _sum(body: bytes) -> str:
    """Of what it says: line ends may have been changed with those of the whole file."""
    return hashlib.sha256(body.replace(b"\r\n", b"\n").strip()).hexdigest()[:12]
