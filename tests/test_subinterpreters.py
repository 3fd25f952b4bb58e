"""Subinterpreters (case K25): the import works there or is an ImportError, and nothing crashes.

NumPy itself refuses to be imported where interpreters do not share their lock. Where they do, some
versions (2.1 on Python 3.13) break by themselves: there is nothing to compute with.
"""

import pytest
import support

CREATE = """
import sys
try:
    import _interpreters as interpreters
    kinds = ["isolated", "legacy"]
    create = interpreters.create
except ImportError:
    import _xxsubinterpreters as interpreters
    kinds = [True, False]
    create = lambda kind: interpreters.create(isolated=kind)
inside = '''
import sys, warnings
warnings.simplefilter("ignore")  # NumPy's own, of its being in a subinterpreter
sys.path[:0] = {path!r}
try:
    import numpy as np
    np.ones((2, 2), "f4").max(-1)
except ImportError:
    numpy_works = None
except Exception:
    numpy_works = False
else:
    numpy_works = True
try:
    import fast_attention as f
except ImportError:
    found = "refused"
except Exception:
    if numpy_works:
        raise
    found = "broken"
else:
    found = "broken"
if numpy_works:
    x = np.ones((4, 300, 16), "f4")
    for _ in range(2):
        assert (abs(f.scaled_dot_product_attention(x, x, x, num_threads=3) - 1) < 1e-6).all()
    found = "works"
print({kind!r}, found, flush=True)
'''

def run(kind):
    interpreter = create(kind)
    failure = interpreters.run_string(interpreter, inside.format(path=sys.path, kind=kind))
    assert failure is None, failure
    interpreters.destroy(interpreter)
"""

AFTER = """
import numpy as np
import fast_attention as f

x = np.random.default_rng(0).standard_normal((4, 300, 16), dtype="f4")
expected = f.scaled_dot_product_attention(x, x, x, num_threads=3)
for kind in 2 * kinds:
    run(kind)
    assert (f.scaled_dot_product_attention(x, x, x, num_threads=3) == expected).all()
print("main works")
"""


FIRST = """
run(kinds[-1])  # a second one may crash inside NumPy
print("main ends")
"""


def lines_of(code):
    child = support.run_python("import _interpreters")
    if child.returncode != 0 and support.run_python("import _xxsubinterpreters").returncode != 0:
        pytest.skip("this Python has no subinterpreters")
    child = support.run_python(CREATE + code)
    assert child.returncode == 0, child.stderr
    return child.stdout.splitlines()


def test_import_in_a_subinterpreter_works_or_is_refused_and_the_main_one_goes_on():
    *inside, last = lines_of(AFTER)
    assert len(inside) == 4
    assert all(line.split()[1] in ("works", "refused", "broken") for line in inside)
    assert last == "main works"


def test_subinterpreter_that_shares_the_lock_may_be_the_one_that_computes():
    inside, last = lines_of(FIRST)
    assert inside.split()[1] in ("works", "broken")
    assert last == "main ends"
