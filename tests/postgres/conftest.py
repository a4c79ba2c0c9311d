"""Engines and routers that end with their test, as the live tests have them."""

from tests.live.conftest import make_engine, make_router, pytest_runtest_makereport

__all__ = ["make_engine", "make_router", "pytest_runtest_makereport"]
