from __future__ import annotations

from pathlib import Path

import pytest

from vitsearch.errors import MissingPackage, UnknownName, VitsearchError, require
from vitsearch.registry import Registry, load_plugin
from vitsearch.spaces import SPACES


def test_unknown_names_suggest_a_near_one() -> None:
    with pytest.raises(UnknownName, match=r"no space named 'autoformer-tinny'. Did you mean 'autoformer-tiny'\?"):
        SPACES["autoformer-tinny"]


def test_a_name_can_be_taken_once() -> None:
    registry: Registry[object] = Registry("thing", "vitsearch.spaces")
    registry.add("one", object())
    with pytest.raises(VitsearchError, match="'one' is registered already"):
        registry.add("one", object())


def test_plugin_must_be_a_python_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.py", tmp_path / "plugin.txt"):
        with pytest.raises(VitsearchError, match=r"`--plugin` must be an existing \.py file"):
            load_plugin(path)


def test_a_failing_plugin_is_named(tmp_path: Path) -> None:
    plugin = tmp_path / "broken.py"
    plugin.write_text("1 / 0\n")
    with pytest.raises(VitsearchError, match=r"broken.py' failed: ZeroDivisionError"):
        load_plugin(plugin)


def test_missing_packages_name_their_extra() -> None:
    with pytest.raises(MissingPackage, match=r"pip install 'vitsearch\[report\]'"):
        require("a_package_that_is_not_there", extra="report")
