"""A pytest plugin that gives SciPy's tests of softmax ours to test, and prints what became of each.

SciPy reduces over all axes by default, which the replacements do too. They are put into the module
of the tests once these are collected, when their decorators have done their work on SciPy's own.
"""

import json

import fast_attention

NAMES = ("softmax", "log_softmax", "logsumexp")
MARK = "outcome: "


def over_all_axes(name):
    function = getattr(fast_attention, name)

    def with_scipy_default(x, axis=None, **options):
        return function(x, axis, **options)

    return with_scipy_default


def pytest_collection_finish(session):
    for module in {item.module for item in session.items}:
        for name in NAMES:
            setattr(module, name, over_all_axes(name))


def pytest_runtest_makereport(item, call):
    if call.when == "call":
        error = "" if call.excinfo is None else call.excinfo.exconly()
        print("\n" + MARK + json.dumps([item.originalname, error]))
