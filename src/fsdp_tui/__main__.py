"""`python -m fsdp_tui` is the `fsdp-tui` command."""

import sys

from fsdp_tui.tui.cli import main

if __name__ == "__main__":
    sys.exit(main())
