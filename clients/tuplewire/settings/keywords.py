"""What `**settings` stands for, for those who ask Python itself: help(), notebooks, and the API's pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def naming(keywords: type, defaults: Mapping[str, Any]) -> Callable[[_Function], _Function]:
    """Let the signature of a function name each keyword in place of its `**settings`, which come last.

    keywords: the TypedDict that type checkers read. defaults: of each keyword, as people write it.
    """

    def named(function: _Function) -> _Function:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        for name, annotation in keywords.__annotations__.items():
            shown = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
            others.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=shown
                )
            )
        vars(function)["__signature__"] = signature.replace(parameters=others)
        return function

    return named
