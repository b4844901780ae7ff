"""One gateway with clawstop in it for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from product import Product

from .gateway import Gateway
from .protected import protected
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
