"""`file.py:function`: the one place where code that the user names is run."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from autodual._errors import ArgumentError
from autodual.data.known import expanded, is_file, is_folder, visible


def is_factory(text: str) -> bool:
    """Whether this is file.py:factory."""
    return text.rpartition(":")[0].endswith(".py")


def named_function(text: str) -> Callable[..., Any]:
    """The function of file.py:function; the file is run. It can import its neighbours, as can the function when it is called."""
    file, colon, name = text.rpartition(":")
    if not colon or not name:
        raise ArgumentError(f"{text}: names no function; write it after a colon, as in {text.rstrip(':')}:factory")
    path = expanded(file)
    if not is_file(path):
        raise ArgumentError(f"{text}: there is no file {path}; check the path before the colon")
    module_name = f"autodual_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{text}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in it look themselves up there
    folder = path.resolve().parent
    try:
        with _neighbours(folder):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ArgumentError(f"{text}: running {path} raised {error_in_words(error)}; correct the file") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ArgumentError(f"{text}: {path} has no function {name!r}; define it, or correct the name after the colon")

    @functools.wraps(function, updated=())
    def beside(*arguments: Any) -> Any:
        with _neighbours(folder):
            return function(*arguments)

    return beside


OURS = __name__.partition(".")[0]
_LOADING = threading.RLock()
_LOADED: dict[Path, dict[str, ModuleType]] = {}
"""What the user's files have imported from their own folders, by folder: two folders may have modules of one name."""
_STAMPS: dict[Path, dict[Path, tuple[int, int]]] = {}
"""Time and size of those files when they were imported."""


@contextmanager
def _neighbours(folder: Path) -> Iterator[None]:
    """Inside, the files of this folder can be imported; outside, neither the folder is on the path nor its modules are known.

    A module that was imported from this folder before is found again, unless one of these files has changed since. Modules of these
    names from other places of the user's are put aside for as long; those of Python and of installed packages are not touched.
    """
    with _LOADING:
        if any(_stamp(file) != stamp for file, stamp in _STAMPS.get(folder, {}).items()):
            _LOADED.pop(folder, None)
            importlib.invalidate_caches()
        there = {path.stem if path.suffix == ".py" else path.name for path in _importable(folder)}
        aside = {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] in there - {OURS} and not _is_installed(module)
        }
        for name in aside:
            del sys.modules[name]
        sys.modules.update(_LOADED.get(folder, {}))
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            with suppress(ValueError):  # the user's code may have removed it
                sys.path.remove(str(folder))
            own = {
                name: module
                for name, module in sys.modules.items()
                if name.partition(".")[0] in there - {OURS} and folder in _places(module)
            }
            for name in own:
                del sys.modules[name]
            _LOADED[folder] = own
            files = {Path(module.__file__) for module in own.values() if module.__file__ is not None}
            _STAMPS[folder] = {file: _stamp(file) for file in files}
            sys.modules.update(aside)


def _importable(folder: Path) -> list[Path]:
    return [path for path in visible(folder) if path.suffix == ".py" or (path.name.isidentifier() and is_folder(path))]


def _places(module: ModuleType) -> list[Path]:
    """The folders above a module's file, or those of a package without one."""
    files = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))
    return [parent for file in files if file is not None for parent in (Path(file), *Path(file).parents)]


def _is_installed(module: ModuleType) -> bool:
    """Whether a module belongs to Python or to an installed package, or has no file."""
    above = _places(module)
    system = {Path(place) for place in sysconfig.get_paths().values()}
    return not above or any(place in system or place.name in ("site-packages", "dist-packages") for place in above)


def _stamp(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def error_in_words(error: BaseException) -> str:
    """Kind and message of an error of the user's code, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
