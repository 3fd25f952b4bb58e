"""The version, written here only; the build reads it without importing NumPy."""

__version__ = "0.1.0.dev0"
