"""What can go wrong in a run, and the one place that turns it into the error on a message.

* :exc:`EngineError` - ends a run as ``failed`` (a tool's ends only its call)
    * :exc:`AbortError` - the person stopped the run; ends it as ``aborted``
    * :exc:`APIError` - the provider failed
    * :exc:`AuthError` - the provider refused the key
    * :exc:`RateLimitError` - the provider asks for patience
    * :exc:`ContextOverflowError` - the history no longer fits
    * :exc:`OutputLengthError` - the model hit its output limit
    * :exc:`ContentFilterError` - the provider withheld the answer
    * :exc:`ToolError` - a tool explains to the model (and to the person) why it failed
    * :exc:`UnknownError` - anything else
* :exc:`RunRefused` - a run that never started
    * :exc:`NotResumable` - there is nothing to continue
    * :exc:`SessionBusy` - the session already has a live run
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from gateway.redact import mask_known

if TYPE_CHECKING:
    from protocol.messages import ErrorReason, MessageError

log = logging.getLogger("gateway.engine")


class EngineError(Exception):
    """Base of every error that a message can carry.

    ``message`` is shown to the person, so it holds no secret. ``code`` and ``status_code`` are the provider's.
    ``retryable`` says whether the same request may succeed later; None means that nobody knows.
    """

    reason: ClassVar[ErrorReason] = "UnknownError"
    default_retryable: ClassVar[bool | None] = None

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status_code = status_code
        self.retryable = self.default_retryable if retryable is None else retryable


class AbortError(EngineError):
    """The run was stopped on request."""

    reason = "AbortError"

    def __init__(self, message: str = "Aborted") -> None:
        super().__init__(message)


class APIError(EngineError):
    """The provider failed; retried by default, since most of these pass."""

    reason = "APIError"
    default_retryable = True


class AuthError(EngineError):
    """The provider refused the credentials; never retried."""

    reason = "AuthError"
    default_retryable = False


class RateLimitError(EngineError):
    """The provider asks to wait, ``retry_after`` seconds where it said so."""

    reason = "RateLimitError"
    default_retryable = True

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        status_code: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, status_code=status_code, retryable=retryable)
        self.retry_after = retry_after


class ContextOverflowError(EngineError):
    """The history does not fit the model's window; never retried as it is."""

    reason = "ContextOverflowError"
    default_retryable = False


class OutputLengthError(EngineError):
    """The model stopped at its output limit; a resume continues the answer."""

    reason = "OutputLengthError"
    default_retryable = False


class ContentFilterError(EngineError):
    """The provider withheld the answer."""

    reason = "ContentFilterError"
    default_retryable = False


class ToolError(EngineError):
    """Raised by a tool; the message goes to the model and to the person word for word."""

    reason = "ToolError"
    default_retryable = False


class UnknownError(EngineError):
    """An exception nobody foresaw; its message is the class name and nothing else."""


class RunRefused(Exception):
    """Base of the refusals: raised by the first ``__anext__``, before any effect."""

    def __init__(self, session_id: str, message: str) -> None:
        super().__init__(message)
        self.session_id = session_id


class NotResumable(RunRefused):
    """The last turn is complete, or there is none: mode ``resume`` has nothing to continue."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, f"session {session_id} has no unfinished turn to resume")


class SessionBusy(RunRefused):
    """One session runs one turn at a time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id, f"session {session_id} already has a live run")


@dataclass(frozen=True, slots=True)
class AssistantMessageError:
    """The structured error on an assistant message."""

    reason: ErrorReason
    message: str | None = None
    code: str | None = None
    status_code: int | None = None
    retryable: bool | None = None

    def to_dict(self) -> MessageError:
        """Give the five fields as the protocol spells them."""
        return cast("MessageError", asdict(self))


class MessageErrorBuilder:
    """Turns an exception into the error on a message."""

    @staticmethod
    def build(error: BaseException | None, aborted: bool = False) -> AssistantMessageError:
        """Describe ``error``; with ``aborted`` it is never looked at, the answer is AbortError.

        An exception that is no :exc:`EngineError` may hold anything, a password in an address for one: only its
        class name leaves the process, the rest goes to the log.
        """
        if aborted or isinstance(error, AbortError):
            return AssistantMessageError(reason="AbortError", message="Aborted")
        if isinstance(error, EngineError):
            return AssistantMessageError(
                reason=error.reason,
                message=mask_known(error.message) or None,  # a provider may repeat the key that it refuses
                code=error.code,
                status_code=error.status_code,
                retryable=error.retryable,
            )
        if error is None:
            return AssistantMessageError(reason="UnknownError")
        log.error("run failed", exc_info=error)
        return AssistantMessageError(reason="UnknownError", message=type(error).__name__)
