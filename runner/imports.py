"""Being told when a module has been imported, before anybody else sees it.

What a script imports, and when, stays its own business: nothing is imported for it. A function that is replaced right
after its defining module has run is what every later `from ... import` gets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Told = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """Calls back once for each named module, after its code has run."""

    def __init__(self, told: dict[str, Told]) -> None:
        self._told = dict(told)

    def install(self) -> None:
        """Begins to listen; modules that are there already are told of at once."""
        for name in list(self._told):
            if name in sys.modules:
                self._tell(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._told:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._tell)
                return spec  # type: ignore[no-any-return]
        return None

    def _tell(self, module: ModuleType) -> None:
        told = self._told.pop(module.__name__, None)
        if told is not None:
            told(module)


class _Loader:
    """Stands in for a module's loader until it has run."""

    def __init__(self, loader: Any, told: Told) -> None:
        self._loader, self._told = loader, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._told(module)
