"""See inside PyTorch FSDP training from the terminal."""


def __getattr__(name: str) -> str:
    """`__version__` is looked up when it is asked for: the machinery for it takes a tenth of the program's start."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("fsdp-tui")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    raise AttributeError(name)
