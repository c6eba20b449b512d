"""The parts import one way: from left to right in this list, never back."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import vitsearch

ORDER = [
    "errors",
    "registry",
    "architecture",
    "cost",
    "records",
    "ranking",
    "spaces",
    "environment",
    "models",
    "data",
    "tasks",
    "proxies",
    "training",
    "export",
    "predictor",
    "latency",
    "throughput",
    "scoring",
    "benchmark",
    "evaluate",
    "correlation",
    "cross_validation",
    "search",
    "study",
    "methods",
    "report",
    "serve",
    "arguments",
    "options",
    "terminal",
    "bench_command",
    "training_command",
    "supernet_command",
    "search_command",
    "specialize_command",
    "report_command",
    "export_command",
    "discover_command",
    "identity_command",
    "latency_command",
    "space_command",
    "cli",
    "__main__",
]
TORCH_FREE = (
    "errors",
    "registry",
    "architecture",
    "cost",
    "records",
    "ranking",
    "spaces",
    "arguments",
    "options",
    "terminal",
    "training_command",
    "search_command",
    "specialize_command",
    "report",
    "report_command",
    "serve",
    "export_command",
    "identity_command",
    "latency_command",
    "space_command",
    "cli",
)
SOURCE = Path(vitsearch.__file__).parent


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def module_imports(tree: ast.AST, top_level: bool) -> set[str]:
    nodes = tree.body if top_level and isinstance(tree, ast.Module) else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def test_imports_point_one_way() -> None:
    checked = 0
    for file in SOURCE.rglob("*.py"):
        relative = file.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in ORDER, f"{own} has no place in the order of the parts"
        for name in module_imports(ast.parse(file.read_text()), top_level=False):
            target = part(name)
            if name.startswith("vitsearch.") and target in ORDER and (SOURCE / target).with_suffix("").name != own:
                assert ORDER.index(target) < ORDER.index(own), f"{relative} must not import {name}"
                checked += 1
    assert checked > 50


def test_everything_through_spaces_runs_without_torch() -> None:
    for file in SOURCE.rglob("*.py"):
        own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own in TORCH_FREE:
            names = module_imports(ast.parse(file.read_text()), top_level=True)
            assert not any(name.split(".")[0] in ("torch", "timm", "numpy") for name in names), file


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    return set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )


def test_importing_the_package_is_light() -> None:
    heavy = {"torch", "timm", "numpy", "sklearn", "pyarrow"}
    assert not loaded_by("import vitsearch") & heavy
    script = "from vitsearch.cli import main; main(['sample', 'autoformer-tiny', '--max-params', '6M', '--quiet'])"
    assert not loaded_by(f"import io; out, sys.stdout = sys.stdout, io.StringIO()\n{script}\nsys.stdout = out") & heavy


def test_public_names_are_there() -> None:
    assert 10 <= len(vitsearch.__all__) <= 18
    for name in vitsearch.__all__:
        assert getattr(vitsearch, name) is not None
    assert not {path.stem for path in SOURCE.iterdir()} & set(vitsearch.__all__), "a module would hide a public name"
