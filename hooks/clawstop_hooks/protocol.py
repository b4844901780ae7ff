"""Sees that every agent is told, in its AGENTS.md, what a stop means for it."""

import logging

from clawstop import agentsmd, hookimpl
from clawstop.events import Roll

log = logging.getLogger("clawstop.protocol")


@hookimpl
def clawstop_agents(roll: Roll) -> None:
    for report in agentsmd.sync(roll.agents, roll.protocol, roll.folder):
        if report.did in agentsmd.CHANGED or not report.ok:
            log.info("%s: %s %s", report.file, report.did, report.why)
