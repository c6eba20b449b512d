"""Names that users type, and the objects behind them.

A registry finds the files of its folder by itself, so adding an entry is adding a file. Other packages add
entries through the entry-point group ``vitsearch.plugins``; ``load_plugin`` runs one explicit file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from vitsearch.errors import UnknownName, VitsearchError

Entry = TypeVar("Entry")
ENTRY_POINT_GROUP = "vitsearch.plugins"
log = logging.getLogger("vitsearch")


def did_you_mean(name: str, known: list[str]) -> str:
    """` Did you mean 'dss'?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


class Registry(Generic[Entry]):
    """A mapping from name to entry that loads the modules of `package` when it is first asked."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._entries: dict[str, Entry] = {}
        self._discovered = False

    def add(self, name: str, entry: Entry) -> Entry:
        if name in self._entries and self._entries[name] is not entry:
            raise VitsearchError(f"a {self.kind} named {name!r} is registered already")
        self._entries[name] = entry
        return entry

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator form of `add`."""
        return lambda entry: self.add(name, entry)

    def __getitem__(self, name: str) -> Entry:
        self._discover()
        if name not in self._entries:
            known = self.names()
            raise UnknownName(f"no {self.kind} named {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._discover()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        self._discover()
        return sorted(self._entries)

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # set first: the modules below import this registry
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        load_entry_points()


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


_loaded_plugins: dict[str, dict[str, str]] = {}
_entry_points_loaded = False


def load_entry_points() -> None:
    """Import what installed packages offer in the group ``vitsearch.plugins``, once."""
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    _entry_points_loaded = True
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry_point.load()
        except (Exception, SystemExit) as error:  # one broken package must not take the others down
            log.warning("the plugin %r failed and is left out: %s", entry_point.name, _one_line(error))
            continue
        version = entry_point.dist.version if entry_point.dist else "unknown"
        _loaded_plugins[entry_point.name] = {"entry_point": entry_point.value, "version": version}


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers entries. Only ever called with a path the user typed."""
    file = Path(path)
    if file.suffix != ".py" or not file.is_file():
        raise VitsearchError(f"`--plugin` must be an existing .py file, but got {str(path)!r}")
    text = file.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    key = str(file.resolve())
    if key in _loaded_plugins:
        return
    spec = importlib.util.spec_from_file_location(f"vitsearch_plugin_{digest[:12]}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up while it is being run
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # foreign code: whatever it raises is reported as its fault
        del sys.modules[spec.name]
        raise VitsearchError(f"`--plugin` {str(path)!r} failed: {_one_line(error)}") from error
    _loaded_plugins[key] = {"file": file.name, "sha256": digest}


def loaded_plugins() -> list[dict[str, Any]]:
    """What has been loaded, for the record of a study."""
    return [dict(_loaded_plugins[key]) for key in sorted(_loaded_plugins)]
