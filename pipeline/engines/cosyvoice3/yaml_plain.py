"""cosyvoice3.yaml as plain data: constructor tags become values, nothing is imported or called.

HyperPyYAML writes `!new:`, `!name:`, `!apply:` (constructors) and `!ref` (references). A tagged mapping
becomes a `Tagged` with its arguments, a reference is resolved against the top level. Used by `config` alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipeline.engines.cosyvoice3.errors import problem

MAX_BYTES = 1 << 18
"""The official file has 10 KB."""
MAX_REFERENCES = 64
"""Lookups that one value may need: references to products of references would take for ever."""
_REFERENCE = re.compile(r"<([A-Za-z_][\w.]*)>")


@dataclass(frozen=True, slots=True)
class Tagged:
    """`!new:a.b.C` with its arguments. `tag` keeps the text after the exclamation mark; it is never
    executed."""

    tag: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reference:
    """`!ref <name>` or a product such as `<a> * <b>`."""

    text: str


@cache
def _loader() -> Any:
    """A SafeLoader that turns unknown tags into data. Aliases stay shared objects, so they cannot blow up;
    merge keys (`<<`) would, copying what they merge, and HyperPyYAML's files have none.
    Made when it is needed: a start from the converted cache reads no YAML."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys are not read", node.start_mark
                )

    def tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
        if node.tag.startswith("!ref"):
            return Reference(str(loader.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else "")
        if isinstance(node, yaml.MappingNode):
            return Tagged(suffix, loader.construct_mapping(node, deep=True))
        return Tagged(suffix)

    PlainLoader.add_multi_constructor("!", tagged)
    return PlainLoader


def parse_plain(text: str, file: str = "cosyvoice3.yaml") -> Mapping[str, Any]:
    """The top-level mapping. Raises EngineUnavailable(bad_yaml)."""
    import yaml

    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise problem("bad_yaml", file, "larger than 256 KiB")
    try:
        tree = yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError) as error:
        raise problem("bad_yaml", file, str(error)) from error
    if not isinstance(tree, dict):
        raise problem("bad_yaml", file, "no mapping at the top")
    return tree


def resolve(tree: Mapping[str, Any], value: Any) -> Any:
    """Replace references: `<a>` by the value of `a`, products of numbers by their value. Unknown ones, loops
    and what refers to more than MAX_REFERENCES become None."""
    return _resolve(tree, value, [MAX_REFERENCES])


def _resolve(tree: Mapping[str, Any], value: Any, left: list[int]) -> Any:
    if not isinstance(value, Reference):
        return value
    names = _REFERENCE.findall(value.text)
    left[0] -= 1 + len(names)
    if left[0] < 0:
        return None
    values = [_resolve(tree, tree.get(name), left) for name in names]
    if _REFERENCE.fullmatch(value.text.strip()):
        return values[0]
    factors: list[float] = []
    for part in value.text.split("*"):
        match = _REFERENCE.fullmatch(part.strip())
        number = values[names.index(match[1])] if match else _number(part)
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        factors.append(number)
    product: float = 1
    for factor in factors:
        product *= factor
    return product


def _number(text: str) -> float | None:
    try:
        return int(text)
    except ValueError:
        return None


def lookup(tree: Mapping[str, Any], path: str) -> Any:
    """The resolved value at a dotted `path` through mappings and constructor arguments; None when absent."""
    here: Any = tree
    for name in path.split("."):
        here = resolve(tree, here)
        if isinstance(here, Tagged):
            here = here.arguments
        if not isinstance(here, Mapping) or name not in here:
            return None
        here = here[name]
    return resolve(tree, here)
