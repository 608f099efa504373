"""The synthesis service people and programs talk to: page, OpenAI API, doors.

May import `pipeline` (never its engines), never `daemon`. The supervisor starts it as `python -m ui`.
"""
