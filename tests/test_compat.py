"""The modules of compat are imported only when asked for, and import none of their peers."""

import pytest
import support

PEERS = ("onnx", "torch", "jax")


def test_importing_the_package_imports_no_module_of_compat():
    code = "import sys, fast_attention; print(*[m for m in sys.modules if 'compat' in m])"
    done = support.run_python(code)
    assert done.returncode == 0, done.stderr
    assert "fast_attention.compat" not in done.stdout


@pytest.mark.parametrize("peer", PEERS)
def test_module_imports_neither_its_peer_nor_the_others(peer):
    code = f"""
import sys
import fast_attention.compat.{peer} as module
assert all(callable(getattr(module, name)) for name in module.__all__)
print(*sorted(set(sys.modules) & {{*{PEERS}, "ml_dtypes"}}))
"""
    done = support.run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
