"""Everything about turning text into speech: jobs, history, voices, text, audio, engines.

Imports neither `daemon` nor `ui`.
"""
