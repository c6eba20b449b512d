"""Hand a network over: to timm, as ONNX, or as one file of plain torch; each with a card, each compared."""

from vitsearch.export.handover import Handover, inherited, trained, untrained
from vitsearch.export.write import FORMATS, Exported, export, export_subnet, export_timm, export_trained

__all__ = [
    "FORMATS",
    "Exported",
    "Handover",
    "export",
    "export_subnet",
    "export_timm",
    "export_trained",
    "inherited",
    "trained",
    "untrained",
]
