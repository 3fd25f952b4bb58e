"""Fixtures that run a test on every backend and every instruction set of this machine."""

import pytest
import support

from fast_attention import _backend

collect_ignore = ["c", "platform"]  # scripts, some of which need what a test environment lacks


def _name(engine):
    return "-".join(part for part in engine if part)


def _activated(engine):
    backend, isa = engine
    with _backend.using(backend, isa):
        yield engine


@pytest.fixture(params=support.ENGINES, ids=_name)
def engine(request):
    """(backend, isa or None), active while the test runs."""
    yield from _activated(request.param)


@pytest.fixture(params=support.NATIVE_ENGINES, ids=_name)
def native_engine(request):
    """("native", isa), active while the test runs; skipped in a pure installation."""
    yield from _activated(request.param)


@pytest.fixture
def tile(request):
    """Query rows of a float32 tile of the engine of this test."""
    name = "native_engine" if "native_engine" in request.fixturenames else "engine"
    return support.tile_rows(request.getfixturevalue(name), "float32")
