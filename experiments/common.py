"""What every experiment writes beside its numbers."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import vitsearch
from vitsearch.latency.machine import processor

RESULTS = Path(__file__).parent / "results"


def circumstances(device: torch.device, commit: str | None = None) -> dict[str, Any]:
    """Machine, versions and commit."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return {
        "device": device.type,
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {processor()}",
        "threads": torch.get_num_threads(),
        "commit": commit or git("rev-parse", "--short", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "versions": {"vitsearch": vitsearch.__version__, "torch": torch.__version__},
    }


def command_line() -> str:
    """As it was given, but for where files were: of a path from the root its last part. The commit stands beside it."""
    given = iter(sys.argv[1:])
    words = ["python", f"experiments/{Path(sys.argv[0]).stem}.py"]
    for word in given:
        if word == "--commit":
            next(given)
        else:
            kind, colon, path = word.rpartition(":")
            elsewhere = Path(path).is_absolute() or ".." in Path(path).parts
            words.append(f"{kind}{colon}{Path(path).name}" if elsewhere else word)
    return shlex.join(words)


def write(name: str, found: dict[str, Any], folder: Path = RESULTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path
