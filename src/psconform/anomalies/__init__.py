"""Anomalies: what went unusually in a run, with whom and since when. They accuse nobody, and change no verdict."""

from .anomaly import Anomaly
from .detectors import DETECTORS, find_anomalies

__all__ = ["DETECTORS", "Anomaly", "find_anomalies"]
