"""How a rank becomes the script that it was started for.

The script sees what it would see under plain Python: argv, sys.path, `__main__`, exit code, and a traceback without our
frames. Under our launcher the rank dies with it, and its output goes to its own log file.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, TracebackType

from fsdp_tui.runner import foreign

PARENT = "FSDP_TUI_PARENT"
"""Pid of the process that must be our parent; set by `runner.agent`."""
LOGS = "FSDP_TUI_LOGS"
"""Folder for `rank-N.log`; set by `runner.launch`."""


def die_with_parent(expected: int) -> None:
    """Asks the kernel to kill this process when its parent is gone; ends it when that has happened already."""
    import ctypes

    pr_set_pdeathsig, sigkill = 1, 9
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, sigkill, 0, 0, 0)
    # The parent may have died before the call; then nobody will send the signal.
    if os.getppid() != expected:
        os._exit(1)


def _redirect(folder: str) -> None:
    """Sends stdout and stderr to this rank's log, one file in the order of writing."""
    path = os.path.join(folder, f"rank-{os.environ.get('RANK', '0')}.log")
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:  # better in the launcher's log than nowhere
        sys.stderr.write(f"fsdp-tui: {path}: {error.strerror}; the output goes here instead\n")  # in one write
        return
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _new_main() -> ModuleType:
    """A `__main__` without a name of ours in it."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    return main


def _run_script(path: str) -> None:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        text = f"can't open file {os.path.abspath(path)!r}: [Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: {text}", file=sys.stderr)
        sys.exit(2)
    from importlib.machinery import SourceFileLoader

    path = os.path.abspath(path)  # as Python itself does, but for argv
    main = _new_main()
    main.__file__ = path
    main.__dict__.update(__cached__=None, __loader__=SourceFileLoader("__main__", path))
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _run_module(name: str) -> None:
    import runpy

    _new_main()
    # What `python -m` itself calls: the module becomes `__main__`, its package and spec are set.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _hide_our_frames() -> None:
    """Makes the tracebacks of the script's own errors what they are without us, those of their causes too."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen: set[int] = set()
        waiting: list[BaseException | None] = [error]
        while waiting:
            one = waiting.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            waiting += [one.__cause__, one.__context__]
            one.__traceback__ = _without_ours(one.__traceback__)
        shown(kind, error, error.__traceback__)

    sys.excepthook = hook


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same frames without those of this package, nor what started the script as a module."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    scripts = [at for at, one in enumerate(frames) if one.tb_frame.f_code.co_filename == __file__]
    kept: TracebackType | None = None
    for one in reversed(frames[scripts[-1] + 1 :] if scripts else frames):
        if os.path.dirname(one.tb_frame.f_code.co_filename) != _HERE:
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


_HERE = os.path.dirname(__file__)


def main() -> None:
    """Becomes the script or module that the arguments name."""
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        die_with_parent(int(parent))
    folder = os.environ.pop(LOGS, None)
    if folder is not None:
        _redirect(folder)
    arguments = sys.argv[1:]
    as_module = arguments[:1] == ["-m"]
    if as_module:
        arguments = arguments[1:]
    if not arguments:
        print("usage: python -m fsdp_tui.runner SCRIPT [args] | -m MODULE [args]", file=sys.stderr)
        sys.exit(2)
    foreign.ensure_run(arguments, as_module=as_module)
    from fsdp_tui.runner import attach

    attached = attach.begin(foreign.run_file)
    sys.argv[:] = arguments
    error: BaseException | None = None
    try:
        _run_module(arguments[0]) if as_module else _run_script(arguments[0])
    except BaseException as raised:
        error = raised
        _hide_our_frames()
        raise
    finally:
        if attached is not None:
            attached.close(None if isinstance(error, SystemExit) else error, _exit_code(error))
        # It was asked to end here, whatever its handler of SIGTERM exits with.
        asked = attached is not None and attached.left and isinstance(error, SystemExit)
        foreign.leave(0 if asked else _exit_code(error), error)
        if asked:
            sys.exit(0)


def _exit_code(error: BaseException | None) -> int:
    """What Python exits with after this; a signal's own death has no code here."""
    if not isinstance(error, SystemExit):
        return 0 if error is None else 1
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
