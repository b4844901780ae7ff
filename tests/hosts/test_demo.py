"""`clawstop demo --gateway` tells a true story."""

from __future__ import annotations

import pytest

from .demo import tell

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]


def test_the_demo_on_a_real_gateway_has_nothing_to_confess() -> None:
    story = tell()
    assert story.failures == []
    assert set(story.after.values()) == {0}
    assert len(story.receipt["processes"]) >= 2
