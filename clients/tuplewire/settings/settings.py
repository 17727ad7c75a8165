"""The declaration, parsing and checking of settings.

A class of settings is a frozen dataclass that inherits from Settings. Each field is declared by setting()
with its kind: the allowed values and their text form. The declaration defines the check of new objects, the
readers of configurations and text, flags, variables, and docs/reference/settings.md. Used by config.py,
Spark's options, transports, workers and topologies. Owns no state. Thread-safe.
Design: docs/design/rows-and-memory.md (settings).
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from tuplewire.errors import ConfigError
from tuplewire.settings.storm_keys import accept_storm_key

ENVIRONMENT_PREFIX = "TUPLEWIRE_"
"""The prefix of Tuplewire's environment variables."""
KEY_PREFIX = "tuplewire."
"""The prefix of Tuplewire's own keys in a configuration."""
REQUIRED: Any = MISSING
"""The default of a setting that must be given."""

_MILLISECONDS = (".millis", ".ms", "_ms")
_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_SIZE = re.compile(r"([0-9][0-9_]*)\s*(?:([kmg])(?:i|ib)?|(b?))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a setting's values.

    metavar: the placeholder of a value in help. allowed: the allowed values, for errors and help. types: the
    Python types; a bool is not a number. convert: converts a typed value; raises ValueError or TypeError for
    an invalid one, or a ConfigError with a message for the user. parse: converts text to a value, which is
    checked afterwards. to_plain: converts a value for JSON. write: returns text for `parse`, if users write a
    value differently from `to_plain`.
    """

    metavar: str
    allowed: str
    types: type | tuple[type, ...]
    convert: Callable[[Any], Any] = lambda value: value
    parse: Callable[[str], Any] = str.strip
    to_plain: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], str] | None = None

    def check(self, value: Any) -> Any:
        """Return a typed value as it is stored. Raises ValueError or TypeError for an invalid one."""
        value = value.item() if hasattr(value, "dtype") else value  # a number of numpy's
        if not isinstance(value, self.types) or isinstance(value, bool) != (self.types is bool):
            raise TypeError
        return self.convert(value)

    def to_user_value(self, value: Any) -> Any:
        """Return a value as users write it: a string, a number or a bool."""
        return (self.write or self.to_plain)(value)


def in_range(minimum: float, maximum: float = math.inf) -> Callable[[Any], Any]:
    """Return a function that accepts numbers within bounds."""

    def read(value: Any) -> Any:
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return read


def integer(minimum: int = 1, maximum: int | None = None) -> Kind:
    """Return the kind of whole numbers within bounds."""
    allowed = f"a whole number from {minimum}" + ("" if maximum is None else f" to {maximum}")
    return Kind("COUNT", allowed, int, in_range(minimum, math.inf if maximum is None else maximum), int)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"{text!r} is not a size; write bytes, or 64KiB, 8MiB, 1GiB")
    return int(match[1]) * _UNITS[(match[2] or match[3] or "").lower()]


def _seconds(minimum: float, bounds: str) -> Kind:
    finite = in_range(minimum, sys.float_info.max)
    return Kind("SECONDS", f"a time in seconds, {bounds}", (int, float), finite, float)


SIZE = Kind("SIZE", "a number of bytes from 1", int, in_range(1), _parse_size)
"""Bytes; text may have a unit such as KiB."""
SECONDS = _seconds(math.ulp(0.0), "more than 0")
SECONDS_OR_ZERO = _seconds(0.0, "from 0")
SECONDS_OR_INF = Kind(
    "SECONDS_OR_INF", "a time in seconds or inf, more than 0", (int, float), in_range(math.ulp(0.0)), float
)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
BOOLEAN = Kind("BOOLEAN", "true or false", bool, parse=lambda text: _BOOLEANS.get(text.strip().lower()))


def _in_milliseconds(kind: Kind) -> Kind:
    return replace(
        kind,
        allowed=kind.allowed.replace("seconds", "milliseconds"),
        convert=lambda value: kind.convert(value / 1000),
        to_plain=lambda value: value * 1000,
    )


def choice(words: type[StrEnum] | Iterable[str], metavar: str = "NAME") -> Kind:
    """Return the kind of a word from a list; text is case-insensitive."""
    known: list[str] = list(words)

    def parse(text: str) -> str:
        return next((word for word in known if word.lower() == text.strip().lower()), text)

    allowed = f"one of {', '.join(known)}"
    return Kind(metavar, allowed, str, lambda value: known[known.index(value)], parse, str)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def string(metavar: str = "NAME") -> Kind:
    """Return the kind of non-empty strings."""
    return Kind(metavar, "a non-empty string", str, _not_empty)


ANY_TEXT = Kind("TEXT", "a text", str)
FILE = Kind("FILE", "the name of a file", str, _not_empty)


def list_of(kind: Kind, metavar: str, allowed: str) -> Kind:
    """Return the kind of lists of another kind."""
    return Kind(metavar, allowed, (list, tuple), lambda value: tuple(map(kind.check, value)), to_plain=list)


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting.

    name: the field. key: the key in a configuration. storm: Storm's key, which is also read; equal to key if
    it is the only one. secret: True to omit the value from errors.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    key: str
    storm: str
    secret: bool

    @property
    def flag(self) -> str:
        """The command line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def is_boolean(self) -> bool:
        """True if the value is a bool."""
        return self.kind is BOOLEAN

    def kind_at(self, key: str) -> Kind:
        """Return the kind for a key, which may be in milliseconds."""
        return _in_milliseconds(self.kind) if key.endswith(_MILLISECONDS) else self.kind

    def check(self, value: Any, label: str = "", key: str = "", *, text: bool = False) -> Any:
        """Return a value, or parsed text, as it is stored. Raises ConfigError, which starts with `label`."""
        if value is None and self.default is None:
            return None
        kind, label = self.kind_at(key), label or self.name
        try:
            return kind.check(kind.parse(value) if text else value)
        except (ValueError, TypeError, OverflowError) as error:
            if self.secret:
                problem = f"{label} must be {kind.allowed}; its value is secret and not shown"
                raise ConfigError(problem) from None
            if isinstance(error, ConfigError):
                raise ConfigError(f"{label}: {error}") from error
            raise ConfigError(f"{label} must be {kind.allowed}, not {value!r}") from None


def setting(
    kind: Kind,
    default: Any,
    help: str,  # noqa: A002
    *,
    key: str = "",
    storm: str = "",
    secret: bool = False,
) -> Any:
    """Declare a field of a class of settings. The default of `key` is Settings.default_key()."""
    declared = {"setting": Setting("", kind, default, help, key, storm, secret)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=declared, repr=not secret)
    return field(default=default, metadata=declared, repr=not secret)


def storm_setting(key: str, kind: Kind, default: Any, help: str, **more: Any) -> Any:  # noqa: A002
    """Declare a field that has only Storm's key."""
    return setting(kind, default, help, key=key, storm=key, **more)


def setting_like(settings: type[Settings], name: str, help: str = "") -> Any:  # noqa: A002
    """Declare a field as in another class. help: a different description."""
    other = settings_of(settings)[name]
    return setting(other.kind, other.default, help or other.help, storm=other.storm)


def nested(settings: type[Settings]) -> Any:
    """Declare a field with settings of another class, read from the same configuration."""
    return field(default_factory=settings, metadata={"nested": settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The base of all classes of settings. An object has only valid values.

    PREFIX: for the keys of fields without a key. REFUSED: more prefixes with which an unknown key is an
    error. PASSED: keys that another class reads; not prefixes.
    """

    PREFIX: ClassVar[str] = ""
    REFUSED: ClassVar[tuple[str, ...]] = ()
    PASSED: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, declared in settings_of(type(self)).items():
            object.__setattr__(self, name, declared.check(getattr(self, name), name))
        for name, kind in nested_of(type(self)).items():
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} must be {kind.__name__}, not {getattr(self, name)!r}")
        self._check()

    def _check(self) -> None:
        """Raise ConfigError for values that contradict each other."""

    @classmethod
    def default_key(cls, name: str) -> str:
        """Return the key of a field that is declared without a key."""
        return cls.PREFIX + name

    @classmethod
    def _complete(cls, values: dict[str, Any]) -> None:
        """Add values that depend on the current time."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Create from keywords. Raises ConfigError with the nearest known names for an unknown one."""
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown_error(f"setting {name!r}", name, known)
        return cls(**values)

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Self:
        """Read the settings from a configuration, by Tuplewire's or Storm's keys. None means not set.

        Other keys are ignored, except Storm's keys without a meaning here: see storm_keys. Raises ConfigError
        for an invalid value, a setting under two keys, and an unknown key with the prefix of a known one.
        """
        known = keys_of(cls)
        elsewhere = {*cls.PASSED, *(key for kind in nested_of(cls).values() for key in keys_of(kind))}
        ours = (*cls.REFUSED, *{key[: key.rindex(".") + 1] for key in known if key.startswith(KEY_PREFIX)})
        values = read_keys(conf.items(), known, ours, elsewhere)
        for name, kind in nested_of(cls).items():
            values[name] = kind.from_conf(conf)
        cls._complete(values)
        return cls(**values)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
    ) -> Self:
        """Read variables such as TUPLEWIRE_TLS_CA, named after the fields. An empty one means not set.

        The fields in `flags` take precedence. The default `environment` is os.environ. Raises ConfigError.
        """
        variables = os.environ if environment is None else environment
        read = {
            name: each.check(variables[each.variable], each.variable, text=True)
            for name, each in settings_of(cls).items()
            if variables.get(each.variable)
        }
        return cls(**{**read, **(flags or {})})

    def conf(self) -> dict[str, Any]:
        """Return the values that are not defaults, as a plain configuration for from_conf()."""
        conf: dict[str, Any] = {}
        for name, declared in settings_of(type(self)).items():
            value = getattr(self, name)
            if value != declared.default:
                conf[declared.key] = declared.kind_at(declared.key).to_plain(value)
        for name in nested_of(type(self)):
            conf.update(getattr(self, name).conf())
        return conf


def settings_of(settings: type[Settings]) -> Mapping[str, Setting]:
    """Return the settings of a class by name."""
    return {
        each.name: replace(declared, name=each.name, key=declared.key or settings.default_key(each.name))
        for each in fields(settings)
        if (declared := each.metadata.get("setting"))
    }


def nested_of(settings: type[Settings]) -> Mapping[str, type[Settings]]:
    """Return the nested classes of settings of a class by field name."""
    return {each.name: each.metadata["nested"] for each in fields(settings) if "nested" in each.metadata}


def keys_of(settings: type[Settings]) -> Mapping[str, Setting]:
    """Return the settings of a class by each of their keys."""
    return {key: each for each in settings_of(settings).values() for key in (each.key, each.storm) if key}


def read_keys(
    items: Iterable[tuple[str, Any]],
    known: Mapping[str, Setting],
    ours: str | tuple[str, ...],
    elsewhere: Collection[str] = (),
    *,
    text: bool = False,
    source: str = "",
) -> dict[str, Any]:
    """Return the values of known keys by setting name. None means not set. Errors: see from_conf().

    ours: the prefixes of keys that are an error if they are unknown. elsewhere: keys that another class
    reads. text: True if strings are parsed, as in files. source: text after keys in errors, like ` in FILE`.
    """
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for key, value in items:
        declared = known.get(key)
        if declared is None:
            if key in elsewhere or accept_storm_key(str(key), value):
                continue
            if str(key).startswith(ours):
                raise unknown_error(f"setting {key!r}{source}", key, [*known, *elsewhere])
        elif value is not None:
            name, label = declared.name, f"{key}{source}"
            if name in labels:
                raise ConfigError(f"{labels[name]} and {label} are the same setting: keep one")
            labels[name] = label
            parsed = text and isinstance(value, str) and not declared.is_boolean
            values[name] = declared.check(value, label, key, text=parsed)
    return values


def unknown_error(label: str, wrong: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name, with the nearest known names, or else all candidates.

    Names with the same prefix up to the last dot are compared by the rest.
    """
    names = sorted(known)
    beginning = wrong[: wrong.rfind(".") + 1]
    alike = [name for name in names if name.startswith(beginning)]
    beginning, names = (beginning, alike) if alike else ("", names)
    ends = [name.removeprefix(beginning) for name in names]
    end = wrong.removeprefix(beginning)
    near = [each for each in ends if each.startswith(end)] or difflib.get_close_matches(end, ends, cutoff=0.7)
    meant = " or ".join(beginning + each for each in near[:3])
    advice = f"did you mean {meant}?" if near else f"known are: {', '.join(names)}"
    return ConfigError(f"unknown {label}; {advice}")
