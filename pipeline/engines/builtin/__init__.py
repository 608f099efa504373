"""The built-in engine: hibari for English, espeak-ng for the rest. No GPU, no download (DESIGN 8)."""

from pipeline.engines.builtin.engine import BuiltinEngine

__all__ = ["BuiltinEngine"]
