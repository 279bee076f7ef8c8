"""`python -m fsdp_tui.demo`, alone or under torchrun."""

import sys

from fsdp_tui.demo.train import main

sys.exit(main())
