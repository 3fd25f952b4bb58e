"""SciPy's own tests of softmax, log_softmax and logsumexp pass on ours, but for what ours lack."""

import json
import os
import re
from pathlib import Path

import pytest
import support
from scipy_plugin import MARK

pytest.importorskip("scipy", reason="the tests come with SciPy")

# What ours refuse on purpose, and the tests that ask for it; some do only with some parameters.
DIFFERENCES = {
    r"unexpected keyword argument 'b'": {
        "test_logsumexp_b", "test_logsumexp_sign", "test_logsumexp_sign_zero",
        "test_logsumexp_sign_shape", "test_logsumexp_shape", "test_logsumexp_b_zero",
        "test_logsumexp_b_shape", "test_dtypes_ab", "test_no_writeback", "test_device",
        "test_gh22903", "test_gh23548",
    },
    r"unexpected keyword argument 'return_sign'": {"test_logsumexp_complex_sign"},
    r"x has dtype complex(64|128), expected": {
        "test_dtypes_a", "test_gh21610", "test_gh21709_small_imaginary", "test_device",
        "test_gh22601_infinite_elements",
    },
}  # fmt: skip
REFUSALS = re.compile("|".join(DIFFERENCES))
MOST_PASS = 25  # of those that do not ask for any of this

CODE = """
import sys, pytest
sys.exit(pytest.main([
    "-c", sys.argv[1], "-p", "scipy_plugin", "-p", "no:cacheprovider", "-W", "ignore",
    "-q", "-s", "--tb=no", "--pyargs", "scipy.special.tests.test_logsumexp",
]))
"""


@pytest.fixture(scope="module", params=["numpy", "native"])
def outcomes(request, tmp_path_factory):
    """[test, error] of each test, in a process of its own: error is empty if it passed."""
    if request.param == "native" and support.native() is None:
        pytest.skip("this is a pure installation")
    settings = tmp_path_factory.mktemp("scipy") / "pytest.ini"
    settings.write_text("[pytest]\n")
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment["FAST_ATTENTION_BACKEND"] = request.param
    child = support.run_python(CODE, str(settings), **environment)
    lines = [line for line in child.stdout.splitlines() if line.startswith(MARK)]
    assert lines, child.stdout + child.stderr
    return [json.loads(line.removeprefix(MARK)) for line in lines]


def test_only_what_is_refused_on_purpose_fails(outcomes):
    failed = [(name, error) for name, error in outcomes if error]
    assert [failure for failure in failed if not REFUSALS.search(failure[1])] == []
    assert sum(not error for _, error in outcomes) >= MOST_PASS


@pytest.mark.parametrize("refusal", DIFFERENCES)
def test_every_listed_difference_fails_as_listed(outcomes, refusal):
    collected = {name for name, _ in outcomes}
    failed = {name for name, error in outcomes if re.search(refusal, error)}
    assert failed == DIFFERENCES[refusal] & collected
