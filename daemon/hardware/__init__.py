"""What this machine is: facts read without root, and what follows from them.

Pure: `facts` (the values), `pci`, `nvidia` and `system` (parsers), `fit` (which card, torch, class),
`driver` (which driver would suit), beside `pipeline.planning.torch_choice`. Shell: `host` (files, commands),
`nvml` (a child that asks the driver), `reader` (facts of a host). `python -m daemon.hardware` prints it all
as JSON, for the installer and its roles; `cosyd doctor` and `cosyd admin profile` call the same functions.
"""
