"""Time on this machine: measured for networks, predicted for all networks of a space."""

from vitsearch.latency.engines import ENGINES, check_engine
from vitsearch.latency.fitting import fit_latency
from vitsearch.latency.machine import note_other_machine
from vitsearch.latency.model import LATENCY, LatencyModel, read_latency
from vitsearch.latency.speed import Speed, SpeedLimits, read_speed
from vitsearch.latency.timing import Candidate, Timing, images_per_second, measure, timm_candidate

__all__ = [
    "ENGINES",
    "LATENCY",
    "Candidate",
    "LatencyModel",
    "Speed",
    "SpeedLimits",
    "Timing",
    "check_engine",
    "fit_latency",
    "images_per_second",
    "measure",
    "note_other_machine",
    "read_latency",
    "read_speed",
    "timm_candidate",
]
