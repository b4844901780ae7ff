"""One gateway with clawstop in it for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest
from clawstop.limits import Limit
from product import Product

from .gateway import Gateway
from .install import host
from .protected import logs, met, protected
from .telegram import Telegram


@pytest.fixture(scope="session")
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="session")
def running(
    tmp_path_factory: pytest.TempPathFactory, telegram: Telegram
) -> Iterator[tuple[Gateway, Product]]:
    with protected(tmp_path_factory.mktemp("stop"), telegram=telegram) as both:
        yield both


Limited = Callable[[Limit], bool]


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> Limited:
    """`limit(WAITS)`: whether this release has that limit. Then the test asserts what can be had,
    and the table of releases shows the reason."""

    def holds(one: Limit) -> bool:
        if one.holds(host().version):
            request.node.user_properties.append(("limit", one.why))
            return True
        return False

    return holds


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A scenario that is marked `since` a release is none on an older one."""
    for mark in item.iter_markers("since"):
        release, why = mark.args
        if host().before(release):
            pytest.skip(f"before {release}: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Limits that were met on the way count; beside a failure stands what its gateways logged."""
    item.user_properties += [("limit", one.why) for one in met]
    met.clear()
    report = yield
    for name, both in item.funcargs.items() if report.failed else ():
        if isinstance(both, tuple) and isinstance(both[0], Gateway):
            report.sections.append((f"the gateway of {name!r}", logs(both[0])))
    return report
