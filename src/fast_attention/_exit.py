"""How the commands end: their exit codes, and where a complaint goes."""

import sys

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130


def complain(command: str, message: str, code: int) -> int:
    """Print to standard error, below what the command has printed, and return `code`."""
    sys.stdout.flush()
    print(f"fast_attention {command}: {message}", file=sys.stderr)
    return code
