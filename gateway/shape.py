"""From what an engine yields to what clients see: always the full, valid sequence. Pure.

An engine may be ten lines that yield text deltas, or yield every event with its own ids, or yield rubbish. The shaper
supplies starts, ends and ids, renames repeated ids, drops what makes no sense, and cuts what is too large.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gateway.ids import new_id
from gateway.seal import Ending, OpenTurn
from gateway.values import bound, bound_text, error_of, name_of, number, text_of, usage_of, whole, word
from protocol.codec import clean_text
from protocol.messages import ABORT_ERROR, Usage, add_usage

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

Event = dict[str, Any]

_TEXTS = {"text-delta": "text", "reasoning-delta": "reasoning"}


class Shaper:
    """Shapes the events of one run. ``seen`` are the ids used in the session; the shaper adds to it."""

    def __init__(self, message_id: str, seen: set[str]) -> None:
        self.turn = OpenTurn(message_id)
        self.steering: set[str] = set()
        """Ids of messages that the engine was offered and may announce with ``message-added``."""
        self.more_messages = 0
        """Assistant messages beyond the one that the run's start brought."""
        self._seen = seen
        self._steps = 0
        self._fresh = True  # the message that the run's start brought has not been named by the engine yet
        self._names: dict[tuple[str, str], str] = {}  # (kind, the engine's id) -> the session's
        self._implicit: str | None = None  # the open part that deltas without id continue
        self._continues: str | None = None  # the type of delta that came last, if for that part: nothing came since
        self._tools: dict[str, Event] = {}  # call_id -> part_id, call_id, tool of an open call
        self._inputs: dict[str, list[str]] = {}  # call_id -> raw arguments so far
        self._finish: Event | None = None  # the engine's message-finish, held for run-finish
        self._run_finish: Event | None = None
        self._closing = False
        self._step_usage: Usage | None = None
        self._endings: dict[str, Event] = {}

    # -- while the run is alive

    def continued(self, event: Any) -> str | None:
        """Give the text of a plain delta that only goes on where the last one stopped; None: :meth:`feed` it.

        Most of what engines yield is that, and it needs nothing of what :meth:`feed` does.
        """
        kind = self._continues
        if kind is None or type(event) is not dict or event.get("type") != kind or "part_id" in event:
            return None
        text = event.get("text")
        return text if type(text) is str and text and len(text) <= 8192 and text.isascii() else None

    def again(self, text: str) -> Event:
        """Give the protocol's event for what was :meth:`continued`."""
        message_id, part_id = self.turn.message_id, self._implicit
        return {"type": self._continues, "message_id": message_id, "part_id": part_id, "text": text}

    def feed(self, event: Any) -> list[Event]:
        """Give the protocol's events for one of the engine's. Raises TypeError for what is no event at all."""
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise TypeError(f"an engine yields dicts with a type, not {type(event).__name__}")
        kind = event["type"]
        self._continues = None
        if self._closing:
            self._note_ending(kind, event)
            return []
        if kind in _TEXTS:
            return self._delta(kind, event)
        handler = _HANDLERS.get(kind)
        if handler is None:
            if kind not in _IGNORED:
                logger.warning("the engine yielded an unknown event type %r: dropped", kind[:80])
            return []
        out: list[Event] = []
        if kind not in _KEEPS_MESSAGE:
            self._reopen(out)
        handler(self, event, out)
        return out

    def _delta(self, kind: str, event: Event) -> list[Event]:
        part_kind = _TEXTS[kind]
        text = event.get("text")
        if not isinstance(text, str) or not text:
            return []
        name = name_of(event.get("part_id"))
        out: list[Event] = []
        if self._finish is not None:
            self._reopen(out)
        part_id = self._implicit
        if name is not None:
            part_id = self._named(name, "prt")
        elif part_id is None or self.turn.parts[part_id] != part_kind:
            part_id = self._last_open(part_kind)
        if part_id is None or self.turn.parts.get(part_id) != part_kind:
            self._close_implicit(out)
            part_id = self._open_part(part_kind, name, out)
            if name is None:
                self._implicit = part_id
        elif part_id != self._implicit:
            self._close_implicit(out)
        delta = {"type": kind, "message_id": self.turn.message_id, "part_id": part_id, "text": text}
        if len(text) > 8192:
            bound_text(delta)
        elif not text.isascii():
            delta["text"] = clean_text(text)
        out.append(delta)
        if part_id == self._implicit and "truncated" not in delta:
            self._continues = kind
        return out

    def _open_part(self, kind: str, name: str | None, out: list[Event]) -> str:
        part_id = self._assign(name, "prt")
        self.turn.parts[part_id] = kind
        out.append({"type": f"{kind}-start", "message_id": self.turn.message_id, "part_id": part_id})
        return part_id

    def _last_open(self, kind: str) -> str | None:
        return next((part_id for part_id, other in reversed(self.turn.parts.items()) if other == kind), None)

    def _close_implicit(self, out: list[Event]) -> None:
        part_id, self._implicit = self._implicit, None
        if part_id is not None:
            self._end_part(part_id, out)

    def _end_part(self, part_id: str, out: list[Event]) -> None:
        kind = self.turn.parts.pop(part_id, None)
        if kind is not None:
            out.append({"type": f"{kind}-end", "message_id": self.turn.message_id, "part_id": part_id})

    def _assign(self, name: str | None, prefix: str) -> str:
        """Give the session's id for an engine's: the same where it is new, another where the session has had it."""
        given = name_of(name)
        if given is None:
            return new_id(prefix)
        id_ = clean_text(given)
        if id_ in self._seen or len(id_) > 200:
            id_ = new_id(prefix)
        self._seen.add(id_)
        self._names[prefix, given] = id_
        return id_

    def _named(self, name: Any, prefix: str) -> str | None:
        """Find the session's id for one that the engine has given; each kind of id has names of its own."""
        given = name_of(name)
        return None if given is None else self._names.get((prefix, given))

    # -- messages and steps

    def _message_start(self, event: Event, out: list[Event]) -> None:
        if self._fresh and self._finish is None:
            self._fresh = False
            return
        self._finish_message(out)
        self._start_message(name_of(event.get("message_id")), out)

    def _start_message(self, name: str | None, out: list[Event]) -> None:
        self._fresh = False
        self.more_messages += 1
        self.turn.message_id = self._assign(name, "msg")
        self.turn.usage = None
        out.append({"type": "message-start", "message_id": self.turn.message_id, "role": "assistant"})

    def _reopen(self, out: list[Event]) -> None:
        """Something comes after the engine's message-finish: that one was not the last message."""
        if self._finish is not None:
            self._finish_message(out)
            self._start_message(None, out)

    def steer(self) -> list[Event]:
        """The run takes new user messages here: end the message, leave a mark for them, begin the next message."""
        self._continues = None
        out: list[Event] = []
        if self._finish is None:
            self._finish = {"finish_reason": "steered"}
        self._finish_message(out)
        out.append({"type": "message-added"})
        self._start_message(None, out)
        self._fresh = True  # an engine that announces the next message means this one
        return out

    def _message_added(self, event: Event, out: list[Event]) -> None:
        message = event.get("message")
        id_ = message.get("id") if isinstance(message, dict) else None
        if isinstance(id_, str) and id_ in self.steering:
            out.extend(
                {**shaped, "id": id_} if shaped["type"] == "message-added" else shaped for shaped in self.steer()
            )

    def _message_finish(self, event: Event, out: list[Event]) -> None:
        if self._finish is None:
            self._fresh = False
            self._finish = event

    def _finish_message(self, out: list[Event]) -> None:
        """Close the current message although the run goes on."""
        self._close_step(out)
        finish, self._finish = self._finish or {}, None
        out.append(
            {
                "type": "message-finish",
                "message_id": self.turn.message_id,
                "finish_reason": word(finish.get("finish_reason"), "stop"),
                "usage": usage_of(finish.get("usage")) or self.turn.usage,
                "error": error_of(finish.get("error")),
            }
        )

    def _step_start(self, event: Event, out: list[Event]) -> None:
        self._close_step(out)
        self._fresh = False
        self._steps += 1
        self.turn.step = self._steps
        out.append({"type": "step-start", "message_id": self.turn.message_id, "step": self._steps})

    def _step_finish(self, event: Event, out: list[Event]) -> None:
        if self.turn.step is None:
            self._step_start({}, out)
        self._close_step(out, event)

    def _close_step(self, out: list[Event], event: Event | None = None) -> None:
        """End open tools, parts and the step, as the message's or the step's end demands."""
        for call_id, started in list(self.turn.tools.items()):
            outcome = "unknown" if started else "not_run"
            text = "The step ended without a result of the tool"
            self._end_tool(
                {"type": "tool-error", "call_id": call_id, "error": text, "interrupted": False, "outcome": outcome}, out
            )
        self._implicit = None
        for part_id in list(self.turn.parts):
            self._end_part(part_id, out)
        if self.turn.step is not None:
            event = event or {}
            usage = usage_of(event.get("usage"))
            out.append(
                {
                    "type": "step-finish",
                    "message_id": self.turn.message_id,
                    "step": self.turn.step,
                    "finish_reason": word(event.get("finish_reason"), "stop"),
                    "usage": usage,
                }
            )
            self.turn.usage = add_usage(self.turn.usage, usage)
            self.turn.step = None

    # -- parts with ids of the engine's

    def _part_start(self, event: Event, out: list[Event]) -> None:
        self._close_implicit(out)
        name = name_of(event.get("part_id"))
        part_id = self._open_part(event["type"].removesuffix("-start"), name, out)
        if name is None:
            self._implicit = part_id

    def _part_end(self, event: Event, out: list[Event]) -> None:
        name = name_of(event.get("part_id"))
        if name is not None:
            part_id = self._named(name, "prt")
        else:
            part_id = self._implicit or self._last_open(event["type"].removesuffix("-end"))
        if part_id is not None:
            if part_id == self._implicit:
                self._implicit = None
            self._end_part(part_id, out)

    # -- tools

    def _open_tool(self, event: Event, out: list[Event]) -> Event:
        self._close_implicit(out)
        tool = word(event.get("tool"), "tool")
        call_id = self._assign(name_of(event.get("call_id")), "call")
        part_id = self._assign(name_of(event.get("part_id")), "prt")
        call: Event = {"message_id": self.turn.message_id, "part_id": part_id, "call_id": call_id, "tool": tool}
        self._tools[call_id] = call
        self.turn.tools[call_id] = False
        return call

    def _known(self, event: Event) -> Event | None:
        name = name_of(event.get("call_id"))
        if name is None:
            return next(iter(self._tools.values())) if len(self._tools) == 1 else None
        return self._tools.get(self._names.get(("call", name), ""))

    def _tool_input_start(self, event: Event, out: list[Event]) -> None:
        call = self._open_tool(event, out)
        self._inputs[call["call_id"]] = []
        out.append({"type": "tool-input-start", **call})

    def _tool_input_delta(self, event: Event, out: list[Event]) -> None:
        text = event.get("text")
        if not isinstance(text, str) or not text:
            return
        call = self._known(event)
        if call is None:
            self._tool_input_start(event, out)
            call = next(reversed(self._tools.values()))
        if call["call_id"] not in self._inputs:
            return  # the call is complete: too late for arguments
        delta = {"type": "tool-input-delta", **call, "text": text}
        bound_text(delta)
        self._inputs[call["call_id"]].append(delta["text"])
        out.append(delta)

    def _tool_call(self, event: Event, out: list[Event]) -> None:
        call = self._known(event) if name_of(event.get("call_id")) is not None else self._only_streaming()
        if call is None or call["call_id"] not in self._inputs:
            if call is not None and name_of(event.get("call_id")) is not None:
                return  # the same call twice
            call = self._open_tool(event, out)
        self._complete_call(call, event.get("input", {}), out)

    def _only_streaming(self) -> Event | None:
        """Give the call whose arguments are being streamed, if only one: a ``tool-call`` without id completes it."""
        return self._tools[next(iter(self._inputs))] if len(self._inputs) == 1 else None

    def _complete_call(self, call: Event, value: Any, out: list[Event]) -> None:
        self._inputs.pop(call["call_id"], None)
        self._close_implicit(out)
        done = {"type": "tool-call", **call}
        bound(done, "input", value)
        call["input"] = done["input"]
        out.append(done)

    def _call_ready(self, event: Event, out: list[Event]) -> Event | None:
        """Find the open call of an event; complete its arguments if the engine forgot to."""
        call = self._known(event)
        if call is None:
            logger.warning("the engine yielded %s for a call that is not open: dropped", event["type"])
            return None
        if call["call_id"] in self._inputs:
            self._complete_call(call, {"raw": "".join(self._inputs[call["call_id"]])}, out)
        return call

    def _tool_start(self, event: Event, out: list[Event]) -> None:
        call = self._call_ready(event, out)
        if call is not None and not self.turn.tools[call["call_id"]]:
            self.turn.tools[call["call_id"]] = True
            out.append({"type": "tool-start", "call_id": call["call_id"]})

    def _tool_progress(self, event: Event, out: list[Event]) -> None:
        call = self._call_ready(event, out)
        if call is not None:
            progress = {"type": "tool-progress", "call_id": call["call_id"]}
            bound(progress, "data", event.get("data"))
            out.append(progress)

    def _tool_ending(self, event: Event, out: list[Event]) -> None:
        call = self._call_ready(event, out)
        if call is not None:
            self._close_implicit(out)
            self._end_tool(self._ending_of(call["call_id"], event), out)

    def _end_tool(self, ending: Event, out: list[Event]) -> None:
        call_id = ending["call_id"]
        for request_id in [r for r in self.turn.approvals if self._approval_calls.get(r) == call_id]:
            self.turn.approvals.remove(request_id)
            out.append({"type": "approval-resolved", "request_id": request_id, "decision": "withdrawn"})
        self.turn.tools.pop(call_id, None)
        self._tools.pop(call_id, None)
        self._inputs.pop(call_id, None)
        out.append(ending)

    def _ending_of(self, call_id: str, event: Event) -> Event:
        ending: Event = {"type": event["type"], "call_id": call_id}
        if event["type"] == "tool-result":
            bound(ending, "output", event.get("output"))
            ending |= {"truncated": True} if event.get("truncated") is True else {}
            return ending
        error = event.get("error")
        ending["error"] = "The tool failed" if error is None else text_of(error)
        ending["interrupted"] = bool(event.get("interrupted", False))
        outcome = event.get("outcome")
        ending["outcome"] = outcome if outcome in ("not_run", "interrupted", "unknown", "failed") else "failed"
        return ending

    # -- approvals

    @property
    def _approval_calls(self) -> dict[str, str]:
        return {call["request_id"]: call_id for call_id, call in self._tools.items() if "request_id" in call}

    def _approval_request(self, event: Event, out: list[Event]) -> None:
        call = self._call_ready(event, out)
        if call is None or call.get("request_id") in self.turn.approvals:
            return
        request_id = call["request_id"] = self._assign(name_of(event.get("request_id")), "req")
        self.turn.approvals.append(request_id)
        request = {
            "type": "approval-request",
            "request_id": request_id,
            "call_id": call["call_id"],
            "tool": call["tool"],
        }
        bound(request, "input", event.get("input", call.get("input")))
        expires_at = whole(event.get("expires_at"))
        if expires_at is not None:
            request["expires_at"] = expires_at
        out.append(request)

    def _approval_resolved(self, event: Event, out: list[Event]) -> None:
        request_id = self._named(event.get("request_id"), "req") or event.get("request_id")
        if isinstance(request_id, str) and request_id in self.turn.approvals:
            self.turn.approvals.remove(request_id)
            decision = event.get("decision")
            decision = decision if decision in ("allow", "deny", "withdrawn", "expired") else "withdrawn"
            out.append({"type": "approval-resolved", "request_id": request_id, "decision": decision})

    def resolve(self, request_id: str, decision: str) -> Event:
        """A person has answered an open approval: give the event that says so."""
        self.turn.approvals.remove(request_id)
        return {"type": "approval-resolved", "request_id": request_id, "decision": decision}

    def engine_name(self, request_id: str) -> str:
        """Give the engine's own id for one of the session's."""
        named = (name for (kind, name), id_ in self._names.items() if kind == "req" and id_ == request_id)
        return next(named, request_id)

    # -- the rest

    def _retry(self, event: Event, out: list[Event]) -> None:
        out.append(
            {
                "type": "retry",
                "attempt": whole(event.get("attempt")) or 1,
                "delay_s": number(event.get("delay_s")) or 0,
                "error": error_of(event.get("error")),
            }
        )

    def _custom(self, event: Event, out: list[Event]) -> None:
        custom: Event = {"type": "custom", "name": word(event.get("name"), "custom")}
        if event.get("message_id") is not None:
            custom["message_id"] = self.turn.message_id
            self._close_implicit(out)
        bound(custom, "data", event.get("data"))
        out.append(custom)

    def _engine_run_finish(self, event: Event, out: list[Event]) -> None:
        self._run_finish = event

    # -- the end

    def begin_closing(self) -> None:
        """An abort was requested: from now on only what closes the turn is taken, and kept for :meth:`ending`."""
        self._closing = True
        self._continues = None
        self._finish = None

    def _note_ending(self, kind: str, event: Event) -> None:
        if kind in ("tool-result", "tool-error"):
            call = self._known(event)
            if call is not None:
                self._endings.setdefault(call["call_id"], self._ending_of(call["call_id"], event))
        elif kind == "step-finish":
            self._step_usage = usage_of(event.get("usage"))
        elif kind == "message-finish":
            self._finish = event
        elif kind == "run-finish":
            self._run_finish = event

    def aborted(self, base: Ending) -> Ending:
        """Complete an abort's ending with what the engine said while it closed."""
        finish = self._finish or {}
        settled = base.settled and bool((self._run_finish or {}).get("settled", True))
        return Ending(
            base.status,
            base.finish_reason,
            reason=base.reason,
            error=base.error,
            settled=settled,
            step_usage=self._step_usage,
            message_usage=usage_of(finish.get("usage")),
            tool_endings=self._endings,
        )

    def ended(self) -> Ending:
        """Give the ending of a run whose engine ended by itself."""
        finish = self._finish or {}
        last = self._run_finish or {}
        error = error_of(finish.get("error")) or error_of(last.get("error"))
        if error is not None:
            stopped = error["reason"] == ABORT_ERROR["reason"]
            return Ending(
                "aborted" if stopped else "failed",
                word(finish.get("finish_reason"), "aborted" if stopped else "error"),
                reason="policy" if stopped else None,
                error=ABORT_ERROR if stopped else error,
                settled=bool(last.get("settled", True)),
                message_usage=usage_of(finish.get("usage")),
            )
        return Ending(
            "completed",
            word(finish.get("finish_reason"), "stop"),
            settled=bool(last.get("settled", True)),
            message_usage=usage_of(finish.get("usage")),
        )


_HANDLERS: dict[str, Callable[[Shaper, Event, list[Event]], None]] = {
    "message-start": Shaper._message_start,
    "message-finish": Shaper._message_finish,
    "message-added": Shaper._message_added,
    "step-start": Shaper._step_start,
    "step-finish": Shaper._step_finish,
    "text-start": Shaper._part_start,
    "text-end": Shaper._part_end,
    "reasoning-start": Shaper._part_start,
    "reasoning-end": Shaper._part_end,
    "tool-input-start": Shaper._tool_input_start,
    "tool-input-delta": Shaper._tool_input_delta,
    "tool-call": Shaper._tool_call,
    "tool-start": Shaper._tool_start,
    "tool-progress": Shaper._tool_progress,
    "tool-result": Shaper._tool_ending,
    "tool-error": Shaper._tool_ending,
    "approval-request": Shaper._approval_request,
    "approval-resolved": Shaper._approval_resolved,
    "retry": Shaper._retry,
    "custom": Shaper._custom,
    "run-finish": Shaper._engine_run_finish,
}

_KEEPS_MESSAGE = frozenset({"message-start", "message-added", "message-finish", "run-finish", "custom"})
"""Types that do not need an open message."""

_IGNORED = frozenset({"run-start", "abort-requested", "queued", "dequeued", "messages-removed"})
"""Types that are the session's to say; an engine that says them too does no harm."""
