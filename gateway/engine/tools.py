"""Tools from typed functions: the schema comes from the annotations, and arguments are checked before the call."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints, overload

import pydantic
import pydantic_core

from gateway.engine.errors import ToolError
from gateway.engine.model import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

F = TypeVar("F", bound=Callable[..., Any])


class ToolContext:
    """What a tool may know of its call; a parameter annotated with this class receives it and is no argument."""

    def __init__(self, *, session_id: str, run_id: str, call_id: str, report: Callable[[Any], None]) -> None:
        self.session_id = session_id
        self.run_id = run_id
        self.call_id = call_id
        self._report = report
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
        if threading.get_ident() == self._loop_thread:
            self._report(data)
            return
        try:
            self._loop.call_soon_threadsafe(self._report, data)
        except RuntimeError:  # an abandoned tool whose loop is gone: nobody looks any more
            return

    def _abort(self) -> None:
        self._aborted.set()


class Tool:
    """A function that a model may call.

    ``reads`` says that it changes nothing: stopped, it ends ``interrupted`` and never ``unknown``. ``approval`` says
    that a person has to allow each call. Calling the tool calls the function.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        reads: bool = False,
        approval: bool = False,
    ) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))
        self.description = inspect.cleandoc(description or function.__doc__ or "")
        self.reads = reads
        self.approval = approval
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async, not "is it callable"
        )
        self._context_parameter, self._arguments = _argument_model(function, self.name)
        self.spec = ToolSpec(self.name, self.description, _schema(self._arguments))

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

    async def run(self, checked: Mapping[str, Any], context: ToolContext) -> Any:
        """Call the function, a sync one in a thread of its own, and give its result as JSON values."""
        keywords = dict(checked)
        if self._context_parameter is not None:
            keywords[self._context_parameter] = context
        if self.is_async:
            result = await self.function(**keywords)
        else:
            result = await _in_thread(lambda: self.function(**keywords), self.name)
        return pydantic_core.to_jsonable_python(result, serialize_unknown=True)


@overload
def tool(function: F, /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, reads: bool = False, approval: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    reads: bool = False,
    approval: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a tool: ``@tool`` or ``@tool(reads=True)``. Its docstring is what the model reads."""

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, name=name, description=description, reads=reads, approval=approval)

    return make(function) if function is not None else make


def as_tool(candidate: Tool | Callable[..., Any]) -> Tool:
    """Take a tool as it is, or make one from a plain function."""
    return candidate if isinstance(candidate, Tool) else Tool(candidate)


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


async def _in_thread(call: Callable[[], Any], name: str) -> Any:
    """Run ``call`` in a daemon thread of its own.

    Not the default executor: a tool that never returns would hold one of its few workers for ever, and the process
    would wait for it at exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # which a future refuses
            done.set_exception(RuntimeError("tool raised StopIteration"))
        else:
            done.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(call), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(deliver, *outcome)
        except RuntimeError:  # the loop is closed: the process is on its way out
            return

    threading.Thread(target=work, name=f"tool-{name}", daemon=True).start()
    return await done
