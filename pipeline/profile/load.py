"""Builds a Config from its layers and remembers which layer each value came from (CONTRACTS 6).

profile TOML < cosyd.toml < `settings` table (runtime keys only) < COSYD_* < flags. All errors are
collected and raised at once, each with its dotted path. Pure but for reading the profile files that ship
with the package; callers read the user's file and the settings table.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pipeline.codes import CosydError
from pipeline.profile.config import Config
from pipeline.profile.problems import BadValue, not_toml, problem
from pipeline.profile.values import Threshold

PROFILES = ("cpu", "gpu-4g", "gpu-6g", "gpu-12g")
# Variables that are not configuration keys but share the prefix; set by the supervisor or the installer.
RESERVED_ENVIRONMENT = frozenset(
    {
        "COSYD_STATE_DIR",
        "COSYD_CONFIG",
        "COSYD_LINK_FD",
        "COSYD_LISTEN_FDS",
        "COSYD_INSTANCE",
        "COSYD_PARENT_PID",
        "COSYD_LANG",
        "COSYD_MODEL_DIR",
    }
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values: `name` is shown to people, `values` maps dotted keys to raw values."""

    name: str
    values: Mapping[str, object]
    runtime_only: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """A Config and, for each dotted key, the name of the layer it came from (`default` if none)."""

    config: Config
    origin: Mapping[str, str]


@cache
def known_keys() -> Mapping[str, dataclasses.Field[Any]]:
    """Every dotted key with its dataclass field."""
    found: dict[str, dataclasses.Field[Any]] = {}

    def walk(cls: type, prefix: str) -> None:
        hints = typing.get_type_hints(cls)
        for f in dataclasses.fields(cls):
            kind = hints[f.name]
            if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind is not Threshold:
                walk(kind, f"{prefix}{f.name}.")
            else:
                found[prefix + f.name] = f

    walk(Config, "")
    return found


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested TOML tables to dotted keys. Mapping-valued keys (engines.extra) stay whole."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        path = prefix + key
        field = known_keys().get(path)
        if isinstance(value, Mapping) and not (field is not None and field.metadata.get("mapping")):
            flat.update(flatten(value, path + "."))
        else:
            flat[path] = value
    return flat


def _coerce(field: dataclasses.Field[Any], value: object) -> Any:
    meta = field.metadata
    if meta.get("mapping"):
        if isinstance(value, str):
            pairs = [item.partition("=") for item in value.split(",") if item]
            if not all(equals for _, equals, _ in pairs):
                raise BadValue("not_pair")
            value = {name: text for name, _, text in pairs}
        if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in value.values()):
            raise BadValue("not_table")
        return types.MappingProxyType(dict(value))
    if parse := meta.get("parse"):
        result = parse(value)
    elif isinstance(field.default, bool):
        words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        result = words.get(str(value).lower())
        if result is None:
            raise BadValue("not_bool", value=repr(value))
    elif isinstance(field.default, int):
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise BadValue("not_whole", value=repr(value))
        try:
            result = int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            raise BadValue("not_whole", value=repr(value)) from None
    elif isinstance(field.default, float):
        try:
            result = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise BadValue("not_number", value=repr(value)) from None
        if math.isnan(result):
            raise BadValue("not_number", value="NaN")
    elif isinstance(field.default, tuple):
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, Iterable):
            raise BadValue("not_list", value=repr(value))
        result = tuple(str(item).strip() for item in items if str(item).strip())
    else:
        if not isinstance(value, str):
            raise BadValue("not_text", value=repr(value))
        result = value
    low, high, choices = meta.get("low"), meta.get("high"), meta.get("choices")
    if low is not None and result < low:
        raise BadValue("too_small", value=repr(value), least=f"{low:g}")
    if high is not None and result > high:
        raise BadValue("too_large", value=repr(value), most=f"{high:g}")
    if choices is not None and result not in choices:
        raise BadValue("no_choice", value=repr(value), choices=", ".join(choices))
    return result


def _unknown(place: str, key: str) -> dict[str, Any]:
    near = difflib.get_close_matches(key, known_keys(), n=1)
    if near:
        return problem(f"{place}: {key}", "unknown_key_near", near=near[0])
    return problem(f"{place}: {key}", "unknown_key")


def profile_layer(name: str) -> Layer:
    """The shipped profile `name` as the lowest layer. Raises CosydError(config_error) if there is none."""
    if name not in PROFILES:
        wrong = problem("profile", "no_choice", value=repr(name), choices=", ".join(PROFILES))
        raise CosydError("config_error", problems=[wrong])
    text = resources.files("pipeline.profile").joinpath(f"{name}.toml").read_text("utf-8")
    return Layer(f"profile {name}", flatten(tomllib.loads(text)))


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """COSYD_WEB__PORT=8000 sets `web.port`: two underscores for the dot."""
    values = {
        name[len("COSYD_") :].lower().replace("__", "."): value
        for name, value in environ.items()
        if name.startswith("COSYD_") and name not in RESERVED_ENVIRONMENT
    }
    return Layer("environment", values)


def file_layer(name: str, text: str) -> Layer:
    """A cosyd.toml as a layer. Raises CosydError(config_error) when it is not TOML."""
    try:
        return Layer(name, flatten(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise CosydError("config_error", problems=[not_toml(name, error)]) from None


def resolve(layers: Iterable[Layer]) -> Resolved:
    """Merge `layers`, the later over the earlier, on top of the profile that they choose.

    Raises CosydError(config_error, problems=[...]) with every problem, see `pipeline.profile.problems`.
    """
    upper = list(layers)
    problems: list[dict[str, Any]] = []
    name = "cpu"
    for layer in upper:
        if isinstance(chosen := layer.values.get("profile"), str):
            name = chosen
    try:
        stack = [profile_layer(name), *upper]
    except CosydError as error:
        problems += error.params["problems"]
        stack = upper
    values: dict[str, Any] = {}
    origin = dict.fromkeys(known_keys(), "default")
    for layer in stack:
        for key, raw in layer.values.items():
            field = known_keys().get(key)
            if field is None:
                problems.append(_unknown(layer.name, key))
            elif layer.runtime_only and not field.metadata.get("runtime"):
                problems.append(problem(f"{layer.name}: {key}", "not_runtime"))
            else:
                try:
                    values[key] = _coerce(field, raw)
                    origin[key] = layer.name
                except BadValue as error:
                    problems.append(error.at(f"{layer.name}: {key}"))
    if problems:
        raise CosydError("config_error", problems=problems)
    return Resolved(_build(Config, "", values), origin)


def _build(cls: type, prefix: str, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    given: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        kind = hints[f.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind is not Threshold:
            given[f.name] = _build(kind, f"{prefix}{f.name}.", values)
        elif prefix + f.name in values:
            given[f.name] = values[prefix + f.name]
    return cls(**given)


def to_json(config: Config) -> str:
    """The resolved configuration as JSON for children and the CLI; `from_json` is its inverse."""

    def plain(value: Any) -> Any:
        if isinstance(value, Threshold):
            return str(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, float) and math.isinf(value):
            return "always"
        if isinstance(value, Mapping):
            return dict(value)
        return value

    return json.dumps(plain(config), indent=1)


def from_json(text: str) -> Config:
    """Inverse of `to_json`. Raises CosydError(config_error) for anything else."""
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if not isinstance(tree, dict):
        raise CosydError("config_error", problems=[problem("effective", "not_table")])
    return resolve([Layer("effective", flatten(tree))]).config
