"""Configuration and hardware profiles: `Config` (values), `resolve` (layers to values)."""

from pipeline.profile.config import Config
from pipeline.profile.load import PROFILES, Layer, Resolved, from_json, resolve, to_json

__all__ = ["PROFILES", "Config", "Layer", "Resolved", "from_json", "resolve", "to_json"]
