"""The shape of the package: who may import whom, and what an installation holds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import fsdp_tui

ROOT = Path(fsdp_tui.__file__).parents[2]
BLOCK = """
import importlib, pkgutil, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
"""


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_screens_and_telemetry_work_without_torch() -> None:
    """`pip install fsdp-tui` alone is a viewer."""
    for package in ("fsdp_tui.telemetry", "fsdp_tui.tui"):
        run_python(BLOCK.format(blocked={"torch"}, package=package))


def test_telemetry_works_without_textual() -> None:
    """The hub and the ranks draw nothing."""
    run_python(BLOCK.format(blocked={"torch", "textual", "rich"}, package="fsdp_tui.telemetry"))


def test_runner_is_lazy() -> None:
    """The launcher does not pay for torch."""
    run_python("import sys, fsdp_tui.runner, fsdp_tui.runner.launch; assert 'torch' not in sys.modules")


def test_wheel_holds_every_module_and_nothing_generic(tmp_path: Path) -> None:
    """sdist -> wheel keeps every file of the four folders, all inside fsdp_tui."""
    pytest.importorskip("build", reason="the build frontend is a development requirement")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {"fsdp_tui/__init__.py", "fsdp_tui/__main__.py", "fsdp_tui/py.typed"}
    for folder in ("telemetry", "runner", "tui", "demo"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".tcss", ".c"):
                expected.add("fsdp_tui/" + path.relative_to(ROOT).as_posix())
    assert names == expected
