"""Errors a user can cause, and the one way to ask for an optional package."""

from __future__ import annotations

import importlib
from types import ModuleType


class VitsearchError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


class BadSettings(VitsearchError):
    """Settings or a blueprint that do not describe a network that can be built."""


class UnknownName(VitsearchError):
    """A name that is in no registry."""


class NothingFits(VitsearchError):
    """Limits that no architecture of the space satisfies."""


class BadStudy(VitsearchError):
    """A study folder that is broken, locked, or not the one that was asked for."""


class TrainingFailed(VitsearchError):
    """A training that cannot go on; the text says why, and its last checkpoint is kept."""


class ProxyUndefined(VitsearchError):
    """A proxy has no value for this network; the text says why."""


class BadData(VitsearchError):
    """Files of a dataset that are missing, broken, or not what a dataset of that kind holds."""


class CorruptImage(BadData):
    """One image that cannot be decoded; the text names it."""


class MissingPackage(VitsearchError):
    """An optional package is needed and not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional package where it is used, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"`{module}` is needed here and not installed: pip install 'vitsearch[{extra}]' ({error})"
        ) from error
