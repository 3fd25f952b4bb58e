"""Run the suite once with each backend as the default, as every wheel is tested.

``python tests/both_backends.py [pytest argument ...]`` in the folder that holds the tests.
"""

import os
import subprocess
import sys

# Tests that choose a native instruction set themselves would only run once more.
RUNS = {"native": [], "numpy": ["-k", "not native-"]}


def main():
    """Run pytest for each backend; the exit code is that of the first run that fails."""
    for backend, selection in RUNS.items():
        print(f"--- default backend: {backend}", flush=True)
        command = [sys.executable, "-m", "pytest", *sys.argv[1:], *selection]
        environment = os.environ | {"FAST_ATTENTION_BACKEND": backend}
        code = subprocess.run(command, env=environment).returncode
        if code != 0:
            sys.exit(code)


if __name__ == "__main__":
    main()
