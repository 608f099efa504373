"""Swap: root helper (`helper`, `folder`, `kernel`), pure `plan`, supervisor's end (`client`, `keeper`).

Nobody but the helper touches a swap file; its three modules import the standard library only.
"""
