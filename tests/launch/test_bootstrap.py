"""A script under `python -m fsdp_tui.runner` is what it is under plain Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.conftest import until

SCRIPTS = {
    "says where it is": (
        "import sys, json\n"
        "print(json.dumps([__name__, __file__, sys.argv, sys.path, sys.modules['__main__'].__dict__ is globals(),"
        " __spec__ and __spec__.name, __package__, sorted(globals())]))"
    ),
    "raises": "def f():\n    raise ValueError('x')\n\nf()\n",
    "raises from": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('y') from e\n",
    "raises while handling": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}['k']\n",
    "is no Python": "def f(:\n",
    "exits with 3": "import sys; print('out'); sys.exit(3)",
    "exits with a text": "import sys; sys.exit('bad luck')",
    "exits with None": "raise SystemExit",
    "exits late": "import atexit, threading\natexit.register(lambda: print('atexit', x))\nx = 5\n"
    "threading.Thread(target=lambda: print('thread', x)).start()",
    "has a hook of its own": "import sys\nsys.excepthook = lambda k, e, t: print('hook', e, t.tb_frame.f_code.co_name)\n1 / 0\n",
    "spawns": (
        "import multiprocessing as mp\ndef f(x):\n    return x + 1\n\n"
        "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as p:\n        print(p.map(f, [1]))\n"
    ),
    "pickles": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "imports its neighbour": "import neighbour; print(neighbour.__file__)",
    "is killed": "import os, signal; print('bye', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "prints bytes": "import sys; sys.stdout.buffer.write(b'\\x00\\xff')",
    "raises in backward": (
        "import torch\n"
        "class F(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: x * 2)\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        raise ValueError('in backward')\n"
        "model = torch.nn.Linear(3, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(3):\n"
        "    loss = model(torch.ones(2, 3)).sum()\n"
        "    try:\n"
        "        (loss if step < 2 else F.apply(loss)).backward()\n"
        "    except ValueError as error:\n"
        "        raise RuntimeError('outer') from error\n"
        "    optimizer.step()\n"
    ),
    "raises in a closure": (
        "import torch\n"
        "model = torch.nn.Linear(3, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def closure():\n"
        "    loss = model(torch.ones(2, 3)).sum()\n"
        "    loss.backward()\n"
        "    return 1 / done\n"
        "done = 1\n"
        "optimizer.step(closure)\n"
        "done = 0\n"
        "optimizer.step(closure)\n"
    ),
    "reads its source": "import inspect\ndef f(): pass\nprint(inspect.getsource(f))",
}


def run(words: list[str], folder: Path) -> tuple[int, bytes, bytes]:
    done = subprocess.run([sys.executable, "-u", *words], cwd=folder, capture_output=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(places: Path) -> Iterator[Path]:
    """A working directory; nothing that the runs of its scripts have started is left in the end."""
    (places / "sub").mkdir()
    (places / "sub" / "neighbour.py").write_text("")
    yield places
    until(lambda: not list(places.glob("rt/*")), "the keepers have ended")


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_what_it_is_under_plain_python(folder: Path, text: str) -> None:
    """Exit code, stdout and stderr, to the byte."""
    (folder / "sub" / "script.py").write_text(text)
    plain = run(["sub/script.py", "-x", "a b"], folder)
    ours = run(["-m", "fsdp_tui.runner", "sub/script.py", "-x", "a b"], folder)
    assert ours == plain


@pytest.mark.parametrize("name", ["says where it is", "raises", "exits with 3", "pickles"])
def test_a_module_is_what_it_is_under_plain_python(folder: Path, name: str) -> None:
    """`-m`, also of a package's module."""
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "inner.py").write_text(SCRIPTS[name])
    assert run(["-m", "fsdp_tui.runner", "-m", "pack.inner", "-x"], folder) == run(["-m", "pack.inner", "-x"], folder)


@pytest.mark.parametrize("words", [["missing.py"], ["-m", "no_such_module"]])
def test_what_is_not_there_is_said_as_python_says_it(folder: Path, words: list[str]) -> None:
    """The same words and code."""
    code, out, err = run(["-m", "fsdp_tui.runner", *words], folder)
    plain_code, plain_out, plain_err = run(words, folder)
    assert (code, out) == (plain_code, plain_out)
    assert err.splitlines()[-1] == plain_err.splitlines()[-1]


def test_without_a_script_it_says_what_it_wants(folder: Path) -> None:
    """Usage, and code 2."""
    code, _, err = run(["-m", "fsdp_tui.runner"], folder)
    assert (code, err[:6]) == (2, b"usage:")
