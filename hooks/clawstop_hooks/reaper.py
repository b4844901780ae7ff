"""Kills every process that the stopped sessions own, and verifies that each is dead."""

from clawstop import hookimpl, reaping
from clawstop.events import Stop


@hookimpl
def clawstop_reap(stop: Stop) -> list[reaping.Reaped]:
    reaped = reaping.reap(
        stop.owns, proofs=stop.proofs, spare=stop.spare, grace=stop.grace, signal=stop.signal
    )
    return [reaped]
