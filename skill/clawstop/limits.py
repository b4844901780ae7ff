"""What a gateway's release, or its settings, keep clawstop from doing, in words for a person.

What the bridge can probe it tells as an ability that is False: `REDUCED` has what gives it back,
`LACKS` what nothing does. What shows itself only when people write is known from running a release,
by its number: `KNOWN`, which the table in docs/hosts.md is made of too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

NUMBERS = re.compile(r"\d+")
OLDEST = "2026.4.0"  # the plugin says so too: an older host has none of what it needs

# What is lost without an ability of the host, and what gives it back.
REDUCED = {
    "gate": (
        "no tool of a stopped run can be refused: the run is ended, and what it starts until then "
        "is killed; update OpenClaw"
    ),
    "messages": (
        "what people write is not seen: OpenClaw's own stop words and `clawstop stop` do stop, but "
        "a new message takes over from nothing, and what was stopped goes on only after `clawstop "
        "release`; update OpenClaw to 2026.4.5 or newer"
    ),
    "conversation": (
        "a run that may not be is ended at its start instead of before it, so a notice of the "
        "host may be seen; run: openclaw config set "
        "plugins.entries.clawstop.hooks.allowConversationAccess true"
    ),
    "turns": (
        "a run that may not be is ended at its start instead of before it, so a notice of the "
        "host may be seen; update OpenClaw"
    ),
    "events": (
        "when runs begin and end is not seen, so a stop on a page may go unnoticed; use `clawstop "
        "stop`, and update OpenClaw"
    ),
    "hooks_seen": (
        "which hooks this release has cannot be seen; `clawstop doctor --canary` shows whether a "
        "stop works"
    ),
    "channel_stops": (
        "a stop on a channel is not seen; use `clawstop stop`, and turn diagnostics on: "
        "openclaw config set diagnostics.enabled true"
    ),
    "page_stops": "a stop on a page is not seen while no run is alive; use `clawstop stop`",
    "outbound": "nobody is told on a channel what became of a stop; see `clawstop receipts`",
    "reply_registry": "the host may show a notice of its own for a run that was ended",
    "cages": (
        "a process that throws its environment away is found only while its parent lives, or if it "
        "was seen then; run the gateway as its systemd service, whose cgroup is its own"
    ),
    "memory": "a stopped task stays in the agent's memory; update OpenClaw",
    "harness_abort": "a subagent's run cannot be ended, only gated; update OpenClaw",
}

# What a release cannot, whatever is set.
LACKS = {
    "live_settings": "new settings hold after the gateway's next start",
    "host_transcripts": "our lines on a page are gone when it is loaded again",
    "deliveries": (
        "a message that was not delivered yet when a stop came may be sent after the gateway's "
        "next start"
    ),
}


class Limit(NamedTuple):
    """Of the releases from `since` on, and before `before`."""

    before: str
    why: str
    since: str = "0"

    def holds(self, version: str) -> bool:
        mine = number(version)
        return bool(mine) and number(self.since) <= mine < number(self.before)


def number(version: str) -> list[int]:
    """A beta counts as what it becomes."""
    return [int(part) for part in NUMBERS.findall(version.partition("-")[0])]


WAITS = Limit(
    "2026.7.1",
    "Telegram hands over only the host's own stop words while a run is at work; all else waits",
)
DROPS = Limit(
    "2026.7.1",
    "what waits behind a run is dropped when /stop ends that: it has to be said again",
    since="2026.5.28",
)
NOTICE = Limit(
    "2026.5.28",
    "the host's own line about a stop on Telegram passes no hook: it stands beside ours",
)
QUEUES = Limit(
    "2026.9.2",  # 2026.9.1-beta.1 has it, 2026.9.6 has not; nobody has run those between
    "behind somebody else's message, which waits for its turn, Telegram hands over only the host's "
    "own stop words: who gave the task may stop it, and not simply write",
)
ANYBODY = Limit(
    "2026.9.1",
    "in an open group the host obeys anybody's /stop and /new of Telegram's menu and ends the run; "
    "nothing is latched for it",
)
STUCK = Limit(
    "2026.7.1",
    "a stop word of somebody without the right to stop holds an open group on Telegram up, with or "
    "without clawstop; nothing is stopped by it",
    since="2026.5.28",
)
PREVIEWS = Limit(
    "2026.8.1",
    "Telegram's live previews stay on, whatever plugins want: up to two edits that were on their "
    "way still come, and then the preview goes",
)
HOLDS = Limit(
    "2026.6.1",
    "the host holds a transcript for a minute when a run is aborted in a tool, with or without "
    "clawstop: the next message waits so long, and a task is taken out of memory only then",
    since="2026.5.28",
)
REWRITES = Limit(
    "2026.5.12",
    "the host writes defaults of its own into a config that it changes: then uninstall leaves it, "
    "and names the copy from before",
)
WRONG = Limit(
    "2026.9.4",
    "when a new message takes over on Telegram, the host first says that something went wrong",
    since="2026.9.3",  # of its neighbours 2026.9.1 and 2026.9.6 do not; the others were not run
)
KNOWN = (WAITS, DROPS, NOTICE, QUEUES, ANYBODY, STUCK, PREVIEWS, HOLDS, REWRITES, WRONG)


def reduced(abilities: Mapping[str, Any]) -> list[str]:
    """What is lost, and how to get it back."""
    return [lost for ability, lost in REDUCED.items() if abilities.get(ability) is False]


def limits(abilities: Mapping[str, Any], version: str) -> list[str]:
    """What this release cannot at all."""
    lacks = [lack for ability, lack in LACKS.items() if abilities.get(ability) is False]
    return lacks + [limit.why for limit in KNOWN if limit.holds(version)]
