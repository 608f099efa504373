"""The supervisor: launches and watches the service, guards memory, and offers the `cosyd` command.

May import `pipeline` (never its engines), never `ui`.
"""
