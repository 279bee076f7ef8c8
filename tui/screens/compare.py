from __future__ import annotations
from fsdp_tui.tui.keys import COMPARE, bindings_of
from fsdp_tui.tui.screens.base import View


class CompareScreen(View):
    KIND = COMPARE
    BINDINGS = bindings_of(COMPARE)

    def body(self):
        return []
