"""See inside PyTorch FSDP training from the terminal."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fsdp-tui")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
