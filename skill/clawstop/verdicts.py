"""How a conversation stands after its gateway has gone.

By evidence only: its last entries, what the host noted of it, and our own journal. No model is
asked, nothing is changed. The journal goes before the host's notes, and those before the shape of
the entries: of a shape several stories may be true.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from .turns import Call, Entry


class State(StrEnum):
    FINISHED = "finished"
    CUT_OFF = "cut off"
    STOPPED = "stopped"
    WAITING = "waiting"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Tail:
    """The end of a conversation, as far as it matters."""

    last: Entry | None = None  # the last thing that a person, the agent or a tool said
    open: tuple[Call, ...] = ()  # tools that were asked for and have not answered
    damaged: bool = False  # something at the end is no entry

    @classmethod
    def of(cls, branch: Iterable[Entry]) -> Tail:
        """From the active branch, newest first; reads no further than it has to."""
        last: Entry | None = None
        answered: set[str] = set()
        for entry in branch:
            if not entry.said:
                continue
            last = last or entry
            if entry.role == "assistant":
                return cls(last, tuple(call for call in entry.calls if call.id not in answered))
            if entry.role == "user":
                break
            answered.add(entry.answers)
        return cls(last)


@dataclass(frozen=True)
class Evidence:
    """What is known of one session. What nobody knows is empty."""

    session: str
    tail: Tail | None = None  # None: it cannot be read, or there is nothing
    status: str = ""  # the host's word: running, done, failed, killed, timeout
    aborted: bool = False  # the host noted that its last run was aborted
    ended: float = 0.0  # when the host noted that its last run was over
    locked: bool = False  # a process that is dead holds its transcript
    resumed_by: str = ""  # another tool that says it will go on with it
    # our journal
    stopped: bool = False  # a person stopped it, and nothing has run since
    run: str = ""  # was alive when its gateway went
    asked: float = 0.0  # since when: what is older is of an earlier turn
    text: str = ""  # the person's message that it answered; without a run: that nobody has read
    problem: str = ""  # why something cannot be read


@dataclass(frozen=True)
class Verdict:
    state: State
    why: str
    open: tuple[Call, ...] = field(default=())  # tools whose effect nobody knows

    @property
    def cut_off(self) -> bool:
        return self.state is State.CUT_OFF


def judge(found: Evidence) -> Verdict:
    tail = found.tail or Tail()
    if found.resumed_by:
        return Verdict(State.WAITING, f"{found.resumed_by} goes on with it")
    if found.stopped:
        return Verdict(State.STOPPED, "a person stopped it")
    if found.text and is_trivial(found.text) and not has_worked(tail, found.asked):
        return Verdict(State.FINISHED, _TRIVIAL)
    noted = found.ended >= found.asked and found.status not in ("", "running")
    over = noted and not _given_up(found, tail)
    if found.run and not (over or _has_ended(tail, found.asked)):
        return Verdict(State.CUT_OFF, "a run was at work when its gateway went", tail.open)
    if found.text and not found.run:
        return Verdict(State.CUT_OFF, "a person's message was not read by any run", tail.open)
    by_host = _by_host(found, tail)
    if by_host:
        return by_host
    if found.problem or tail.damaged:
        return Verdict(State.UNKNOWN, found.problem or "its last entry is damaged")
    return _by_shape(tail)


def _given_up(found: Evidence, tail: Tail) -> bool:
    """2026.7 notes at its start that what it does not go on with has failed. A run that really has
    failed says so at its end."""
    return found.status == "failed" and not (tail.last and tail.last.stop == "error")


def _by_host(found: Evidence, tail: Tail) -> Verdict | None:
    """What the host noted, where that is clear."""
    if tail.last and tail.last.stop == "aborted":
        return Verdict(State.STOPPED, "the agent was aborted while it worked")
    if found.status == "running" or (found.locked and found.status != "killed"):
        if _has_ended(tail):
            return Verdict(State.FINISHED, "the agent had said its last word")
        if _is_trivial(tail):
            return Verdict(State.FINISHED, _TRIVIAL)
        word = "running" if found.status == "running" else "locked"
        return Verdict(State.CUT_OFF, f"the host left it {word}", tail.open)
    if found.status and _is_silent(tail):  # the host notes an abort for it
        return Verdict(State.FINISHED, "the agent chose to say nothing")
    if found.status == "killed":
        return Verdict(State.STOPPED, "the host noted that somebody aborted it")
    if found.status == "done" and tail.last and not tail.damaged:
        return Verdict(State.FINISHED, "the host noted that it was done")
    if found.status and not tail.last:
        return Verdict(State.UNKNOWN, found.problem or "the host noted a run, and nothing is there")
    if found.aborted:
        return Verdict(State.STOPPED, "the host noted that its last run was aborted")
    return None


def _by_shape(tail: Tail) -> Verdict:
    last = tail.last
    if last is None:
        return Verdict(State.FINISHED, "nothing was said")
    if last.role == "user":
        if _is_trivial(tail):
            return Verdict(State.FINISHED, _TRIVIAL)
        return Verdict(State.CUT_OFF, "a person's message was not answered")
    if last.role == "toolResult":
        return Verdict(State.CUT_OFF, "a tool had answered, and the agent had not", tail.open)
    if tail.open:
        return Verdict(State.CUT_OFF, "a tool was at work", tail.open)
    if last.stop == "error":
        return Verdict(State.FINISHED, "it ended with an error")
    if last.text.strip():
        return Verdict(State.FINISHED, "the agent had said its last word")
    return Verdict(State.CUT_OFF, "the agent had not said anything")


def has_worked(tail: Tail, since: float) -> bool:
    """Whether the agent took it for an order."""
    last = tail.last
    return last is not None and last.role != "user" and (last.at or 0.0) >= since


def _is_silent(tail: Tail) -> bool:
    last = tail.last
    said = last is not None and last.last_word and last.stop == "stop"
    return said and (last is None or last.text.strip() in ("", "NO_REPLY"))


def _has_ended(tail: Tail, since: float = 0.0) -> bool:
    last = tail.last
    spoken = last is not None and last.last_word and bool(last.text.strip())
    return spoken and (last is None or last.at is None or last.at >= since)


_TRIVIAL = "its last message asks for nothing"


def _is_trivial(tail: Tail) -> bool:
    return bool(tail.last and tail.last.role == "user" and is_trivial(tail.last.text))


def is_trivial(text: str) -> bool:
    """Whether a message wants no answer: thanks, a nod, an emoji."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = re.sub(r"[^\w\s]+", " ", plain)
    return bool(text.strip()) and (not words.strip() or _NODS.fullmatch(words) is not None)


_NODS = re.compile(
    r"""\s*(?:(?:
    ok|okay|k|fine|great|good|nice|cool|perfect|awesome|got\sit|thanks
    |thank\syou|a\slot|very\smuch|so\smuch|thx|ty|cheers|np|no\sproblem|never\smind|nvm|bye|good\snight
    |gn|hi|hello|hey|lol|ha|done|noted|understood|roger
    |好|好的|好吧|好滴|好哒|嗯|哦|噢|收到|明白|明白了|知道了|了解|谢谢|谢了|多谢|感谢|谢谢你|辛苦了
    |没事|不用了|没问题|哈|再见|拜拜|晚安|你好|厉害|不错|赞
    |ありがとう|감사합니다|고마워|gracias|vale|merci|danke|obrigad[oa]|grazie|спасибо|хорошо|ок
    )\s*)+""",
    re.VERBOSE,
)
