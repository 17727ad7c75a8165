"""Signatures and docstrings with the keywords of `**settings`, for help(), notebooks and the API's pages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, cleandoc, signature
from typing import Any, ForwardRef, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SETTINGS = "    **settings: "
"""The start of the line in a docstring that expand_keywords() replaces."""
_MAX_COLUMNS = 100


def expand_keywords(
    keywords: type, defaults: Mapping[str, Any], helps: Iterable[tuple[str, str]] = ()
) -> Callable[[_Function], _Function]:
    """Return a decorator that replaces `**settings`, the last parameter, by keywords in the signature.

    If the docstring has a line for `**settings`, it gets a description of each keyword instead. keywords: the
    TypedDict for type checkers. defaults: plain values. helps: names and descriptions.
    """
    wrapped = textwrap.TextWrapper(_MAX_COLUMNS, initial_indent=" " * 4, subsequent_indent=" " * 8)
    described = "".join(f"{wrapped.fill(f'{name}: {text}.')}\n" for name, text in helps)

    def decorate(function: _Function) -> _Function:
        own = signature(function)
        *others, _ = own.parameters.values()
        for name, annotation in keywords.__annotations__.items():
            shown = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
            others.append(Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=shown))
        vars(function)["__signature__"] = own.replace(parameters=others)
        before, found, after = cleandoc(function.__doc__ or "").partition(_SETTINGS)
        if found:
            function.__doc__ = before + described + after.partition("\n")[2]
        return function

    return decorate
