"""`cosyd update`: a new environment beside the old one, tried, switched to in one step, and back by itself.

`layout` is where environments lie (pure), `build` makes one, `trial` tries it, `switch` changes over. The old
version decides about the new one, up to the end: all of this runs from the environment that is left.
"""
