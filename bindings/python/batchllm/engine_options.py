"""An engine's options: Python values -> the native struct."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from . import native
from .errors import InvalidArgumentError, need_directory
from .plan import ENLARGE, level_count, named

# What the value of an engine option must be, by the type of its default.
_EXPECTED = {type(None): "a text or None", int: "a whole number", float: "a number"}


def _device_list(devices: Union[str, int, Sequence[int], None]) -> Optional[str]:
    if devices is None or isinstance(devices, str):
        return devices
    return str(devices) if isinstance(devices, int) else ",".join(map(str, devices))


def _backend_options(options: Union[str, Mapping[str, object], None]) -> Optional[str]:
    if options is None or isinstance(options, str):
        return options
    return ",".join(f"{key}={int(value) if isinstance(value, bool) else value}" for key, value in options.items())


# Options that the struct spells differently.
_SPELLED: dict[str, Callable[[Any], Any]] = {
    "devices": _device_list,
    "backend_options": _backend_options,
    "enlarge": lambda value: named("enlarge", ENLARGE, value),
    "levels": level_count,
}


def native_options(**given: Any) -> native.batchllm_engine_options:
    """The struct with these values of its fields. Raises for a value of the wrong type, with the option's name."""
    need_directory(given["model_dir"])
    options = native.batchllm_engine_options()
    for name, value in given.items():
        if name in _SPELLED:
            value = _SPELLED[name](value)
        kind = type(getattr(options, name))
        try:
            setattr(options, name, index(value) if kind is int else value)
        except OverflowError:
            most = f"it is from 0 to {_most(name)}" if kind is int else "a number that fits is expected"
            raise InvalidArgumentError(f"{name} is {value!r}: {most}") from None
        except TypeError:
            raise TypeError(f"{name} is {value!r}: {_EXPECTED[kind]} is expected") from None
    return options


def _most(name: str) -> int:
    """The largest value of a field of whole numbers."""
    options = native.batchllm_engine_options()
    for bits in (64, 63):
        with suppress(OverflowError):
            setattr(options, name, (1 << bits) - 1)
            return (1 << bits) - 1
    return (1 << 31) - 1
