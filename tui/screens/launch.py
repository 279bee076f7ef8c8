from __future__ import annotations
from fsdp_tui.tui.keys import LAUNCH, bindings_of
from fsdp_tui.tui.screens.base import View


class LaunchScreen(View):
    KIND = LAUNCH
    BINDINGS = bindings_of(LAUNCH)

    def body(self):
        return []
