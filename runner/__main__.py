"""One rank: `python -m fsdp_tui.runner SCRIPT args` or `python -m fsdp_tui.runner -m MODULE args`."""

from fsdp_tui.runner.bootstrap import main

if __name__ == "__main__":
    main()
