"""What will be needed before it is taken, as pure functions: memory of the model, environment of a child.

Imported by the supervisor, the CLI and the engines alike, so it imports none of them, and no torch.
"""
