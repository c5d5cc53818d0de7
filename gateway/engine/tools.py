"""Tools from typed functions: the schema comes from the annotations, and arguments are checked before the call."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, get_type_hints, overload

import pydantic

from gateway.engine.bounds import MAX_OUTPUT_BYTES, MAX_PROGRESS_BYTES, bounded
from gateway.engine.errors import ToolError
from gateway.engine.model import ToolSpec
from gateway.engine.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Unpack

F = TypeVar("F", bound=Callable[..., Any])

Policy: TypeAlias = Literal["allow", "ask", "deny"]
"""Whether a call runs at once, asks a person first, or never runs."""


class ToolContext:
    """What a tool may know of its call; a parameter annotated with this class receives it and is no argument."""

    def __init__(self, *, session_id: str, run_id: str, call_id: str, report: Callable[[Any], None]) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.call_id = call_id
        self.answer: Any = None
        """What the person who allowed the call sent along as ``value``."""
        self._report = report
        self._newest: deque[Any] = deque(maxlen=1)
        self._reporting = False
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._aborted = threading.Event()

    @property
    def aborted(self) -> bool:
        """True once the run is being stopped: a tool in a thread, which nobody can cancel, may return early."""
        return self._aborted.is_set()

    def wait_aborted(self, timeout_s: float) -> bool:
        """Sleep in a tool's thread for ``timeout_s`` seconds or until the run is being stopped; True if it is."""
        return self._aborted.wait(timeout_s)

    def progress(self, data: Any) -> None:
        """Show how far the tool is: ``data`` (JSON) replaces what was shown before. From any thread, never waits."""
        shown, _ = bounded(data, MAX_PROGRESS_BYTES)
        if threading.get_ident() == self._loop_thread:
            self._report(shown)
            return
        self._newest.append(shown)
        if self._reporting:
            return  # what is on its way takes the newest along: a chatty thread cannot flood the loop
        self._reporting = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # an abandoned tool whose loop is gone: nobody looks any more
            return

    def _deliver(self) -> None:
        self._reporting = False
        if self._newest:
            self._report(self._newest.pop())

    def _abort(self) -> None:
        self._aborted.set()


class ToolOptions(TypedDict, total=False):
    """What ``@tool(…)`` takes, see :class:`Tool`."""

    name: str | None
    description: str | None
    reads: bool
    policy: Policy
    approval: bool
    timeout_s: float | None
    approval_timeout_s: float | None
    max_output_bytes: int


class Tool:
    """A function that a model may call. Calling the tool calls the function.

    Args:
        function: its parameters are the arguments, its docstring is what the model reads.
        name: default the function's.
        description: default the docstring.
        reads: it changes nothing: stopped, it ends ``interrupted`` and never ``unknown``.
        policy: ``allow`` (default), ``ask`` a person before each call, or ``deny`` (kept, but never run nor offered).
        approval: True is ``policy="ask"``.
        timeout_s: it is stopped after so many seconds of running; the wait for a person does not count.
        approval_timeout_s: a question that nobody answers within so many seconds has ``expired``.
        max_output_bytes: what its result may take; the rest is cut and the result marked ``truncated``.

    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        reads: bool = False,
        policy: Policy = "allow",
        approval: bool = False,
        timeout_s: float | None = None,
        approval_timeout_s: float | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> None:
        if policy not in ("allow", "ask", "deny"):
            raise ValueError(f"policy must be 'allow', 'ask' or 'deny', not {policy!r}")
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.description = inspect.cleandoc(description or function.__doc__ or "")
        self.reads = reads
        self.policy: Policy = "ask" if approval and policy == "allow" else policy
        self.timeout_s = timeout_s
        self.approval_timeout_s = approval_timeout_s
        self.max_output_bytes = max_output_bytes
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async, not "is it callable"
        )
        self._context_parameter, self._arguments = _argument_model(function, self.name)
        self.spec = ToolSpec(self.name, self.description, _schema(self._arguments))

    @property
    def stops(self) -> bool:
        """True where a running call can be told to stop: it can be cancelled, or looks at its context."""
        return self.is_async or self._context_parameter is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as it is."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validate a model's arguments; raises :exc:`ToolError` with a text from which the model can learn."""
        try:
            checked = self._arguments.model_validate(arguments)
        except pydantic.ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                for fault in error.errors(include_url=False, include_input=False)
            )
            raise ToolError(f"Invalid arguments: {faults}") from None
        return {name: getattr(checked, name) for name in type(checked).model_fields}

    async def run(self, checked: Mapping[str, Any], context: ToolContext) -> tuple[Any, bool]:
        """Call the function, a sync one in a thread of its own; gives its result as JSON, and whether it was cut."""
        keywords = dict(checked)
        if self._context_parameter is not None:
            keywords[self._context_parameter] = context
        if self.is_async:
            return bounded(await self.function(**keywords), self.max_output_bytes)
        return await in_thread(lambda: bounded(self.function(**keywords), self.max_output_bytes), self.name)


@overload
def tool(function: F, /) -> Tool: ...


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: ``@tool`` or ``@tool(reads=True)``. Its docstring is what the model reads."""

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, **options)

    return make(function) if function is not None else make


def as_tool(candidate: Tool | Callable[..., Any]) -> Tool:
    """Take a tool as it is, or make one from a plain function."""
    return candidate if isinstance(candidate, Tool) else Tool(candidate)


def offered(tools: Iterable[Tool]) -> tuple[ToolSpec, ...]:
    """Give what a model gets to see: all but the tools that it may never call."""
    return tuple(tool.spec for tool in tools if tool.policy != "deny")


def _argument_model(function: Callable[..., Any], name: str) -> tuple[str | None, type[pydantic.BaseModel]]:
    hints = get_type_hints(function, include_extras=True)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name}: parameter {parameter.name} must be a plain named one")
        annotation = hints.get(parameter.name, Any)
        if annotation is ToolContext:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (annotation, default)
    model: type[pydantic.BaseModel] = pydantic.create_model(
        f"{name}_arguments", __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )
    return context_parameter, model


def _schema(arguments: type[pydantic.BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)  # pydantic's capitalised parameter names: tokens without a meaning
    return schema
