"""Signatures that list the keywords of `**settings`, for help(), notebooks and the API's pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def naming(keywords: type, defaults: Mapping[str, Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that replaces `**settings`, the last parameter, by keywords in the signature.

    keywords: the TypedDict for type checkers. defaults: the default of each keyword, as a plain value.
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
