"""The two places where runs are: kept ones below `home()`, live ones below `runtime()`.

Apart from `telemetry.rundir` because each rank asks before its script runs, and must not have imported half a library then.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class RunError(Exception):
    """Something about a run directory that a person must hear; the message is one line."""


def home() -> Path:
    """Where runs are kept: FSDP_TUI_HOME, else `fsdp-tui` in the XDG data directory."""
    told = os.environ.get("FSDP_TUI_HOME")
    if told:
        return Path(told).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "fsdp-tui"


def runtime() -> Path:
    """Where live runs are: FSDP_TUI_RUNTIME_DIR, else in XDG_RUNTIME_DIR, else a private folder under the temporary one."""
    told = os.environ.get("FSDP_TUI_RUNTIME_DIR")
    if told:
        return Path(told).expanduser().absolute()
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        return Path(session) / "fsdp-tui"
    import tempfile

    return Path(tempfile.gettempdir()) / f"fsdp-tui-{os.getuid()}"


def make_runtime() -> Path:
    """Creates `runtime()`, or refuses one that others could tamper with.

    The sockets have no passwords: the folder's permissions are what keeps other users out.

    Raises:
        RunError: it is a link, or not ours, or others may enter (a folder named by FSDP_TUI_RUNTIME_DIR: may write).
    """
    path = runtime()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise RunError(
            f"cannot create {path}: {said(error)}; set FSDP_TUI_RUNTIME_DIR to a folder of your own"
        ) from None
    forbidden = 0o022 if os.environ.get("FSDP_TUI_RUNTIME_DIR") else 0o077
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is a link"
    elif found.st_uid != os.getuid():
        wrong = f"belongs to user {found.st_uid}"
    elif found.st_mode & forbidden:
        wrong = f"has mode {stat.S_IMODE(found.st_mode):04o}"
    else:
        return path
    raise RunError(f"{path} {wrong}: expected a folder of your own with mode 0700; fix it or set FSDP_TUI_RUNTIME_DIR")


def said(error: OSError) -> str:
    """What went wrong, in a few words."""
    known = {errno.ENOSPC: "the disk is full", errno.EROFS: "the file system is read-only"}
    return known.get(error.errno or 0) or (error.strerror or str(error)).lower()
