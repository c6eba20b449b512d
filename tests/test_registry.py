from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_a_plugin_may_define_dataclasses(tmp_path: Path) -> None:
    plugin = tmp_path / "space.py"
    plugin.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from vitsearch.spaces import SPACES\n"
        "from vitsearch.spaces.isotropic import Isotropic\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class Mine(Isotropic):\n"
        "    note: str = 'mine'\n"
        "SPACES.add('mine', Mine(name='mine', embed_dim=(8,), depth=(1,), num_heads=(1,), mlp_ratio=(1.0,)))\n"
    )
    load_plugin(plugin)
    load_plugin(plugin)  # once is enough
    assert SPACES["mine"].size == 1


@pytest.mark.parametrize(
    "text", ["raise SystemExit(3)", "from vitsearch.spaces import *\nSPACES.add('pit', SPACES['pit-xs'])"]
)
def test_whatever_a_plugin_raises_is_its_fault(tmp_path: Path, text: str) -> None:
    plugin = tmp_path / "bad.py"
    plugin.write_text(text)
    with pytest.raises(VitsearchError, match=r"bad\.py' failed: (SystemExit: 3|VitsearchError: a space named 'pit')"):
        load_plugin(plugin)


ENTRY_POINTS = """Metadata-Version: 2.1
Name: {name}
Version: 1.0
"""


def install(folder: Path, name: str, code: str) -> None:
    """A package as pip leaves it: a module, and metadata with an entry point."""
    (folder / f"{name}.py").write_text(code)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(ENTRY_POINTS.format(name=name))
    (metadata / "entry_points.txt").write_text(f"[vitsearch.plugins]\n{name} = {name}\n")


def test_installed_packages_extend_and_a_broken_one_does_not_matter(tmp_path: Path) -> None:
    install(tmp_path, "broken_extension", "raise ValueError('boom')")
    install(
        tmp_path,
        "good_extension",
        "from vitsearch.spaces import SPACES\nfrom vitsearch.spaces.isotropic import Isotropic\n"
        "theirs = Isotropic(name='theirs', embed_dim=(8,), depth=(1, 2), num_heads=(1,), mlp_ratio=(1.0,))\n"
        "SPACES.add('theirs', theirs)\n",
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "vitsearch", "spaces", "theirs", "--json"]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert json.loads(ran.stdout)["size"] == 2
    assert "the plugin 'broken_extension' failed and is left out: ValueError: boom" in ran.stderr


def test_missing_packages_name_their_extra() -> None:
    with pytest.raises(MissingPackage, match=r"pip install 'vitsearch\[report\]'"):
        require("a_package_that_is_not_there", extra="report")
