"""What the offline model says: a small tour of the gateway, chosen by a word in the person's message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.engine.history import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

WELCOME = """\
Hello! I am the **scripted model**: I run offline, need no key, and always say the same thing. That makes me dull \
company and a good way to see what this gateway does.

You are watching the first thing already: this answer streams word by word. Every piece was stored before it was \
sent to you, so you may reload the page, close the laptop or lose the network in the middle of it, and you will come \
back to exactly the words you had, followed by the ones you missed.

Here is what you can try:

- Press **Stop** while I am talking. What I have said stays, and **Resume** makes me go on from there.
- Say `count to 20`: I use a slow tool that shows its progress. Stop it half way.
- Say `think`: I reason before I answer, and you can watch.
- Ask for the `time`, a `table` or some `code`; for the `files` here, or `read` one of them.
- Ask for a `long story`, and open a second tab while I tell it: both tabs follow along.
- Say `fail` to see what an error looks like.

When you have seen enough of me, start the gateway with your own agent: `gateway serve mymodule:agent`.
"""

THINKING = """\
The person wants to see me think. Let me look at this from two sides. First, reasoning is streamed like text, but it \
is a part of its own, so that it can be folded away. Second, if they press Stop right now, what I have thought so \
far is kept as it is, and it is not sent to the model again. So the best answer is a short one.
"""

THOUGHT = """\
I have thought about it. The lines above were my **reasoning**: a part of its own in the message, streamed while it \
was made. You can stop me there too; the unfinished thought stays in the transcript, and a resumed answer starts \
from what was said, not from what was merely thought.
"""

CODE = """\
Here is the smallest agent that this gateway can serve:

```python
async def echo(*, abort, mode, session_id, messages):
    for word in "Hello from ten lines of Python".split():
        yield {"type": "text-delta", "text": word + " "}
```

Save it as `mymodule.py` and run `gateway serve mymodule:echo`. The gateway supplies what is missing: ids, the start \
and the end of each part, durable storage, and the Stop button.
"""

TABLE = """\
This is how a run can end:

| status | what happened | can it be resumed? |
|---|---|---|
| `completed` | the model ended its turn | no |
| `aborted` | somebody pressed Stop | yes |
| `failed` | the provider or a tool broke the run | yes |
| `lost` | the server died in the middle | yes |

Whatever happens, each run ends with exactly one of these.
"""

FAILING = "I will now fail on purpose, in the middle of a "
RECOVERED = "sentence. There: the error stayed in the transcript, and Resume picked the sentence up where it broke."

SHOWN = 1000
"""How many characters of a long text are told."""

NO_SHELL = "I have no shell here. Start me with `gateway serve --shell`, and I will ask you before each command."

_STORY = (
    "Once there was a lighthouse keeper who talked to ships. She had no lamp to speak of, only a very long list"
    " of words, and she sent them out over the water one at a time.",
    "Most nights the sea was calm and the words arrived in the order in which they left. On other nights the fog"
    " rolled in between two words, and a ship would hear “steer” and nothing more. The captains learned to dread"
    " the fog, for half a sentence is worse than none.",
    "So the keeper began to write every word into a book before she spoke it. It cost her a drop of ink and the"
    " blink of an eye. When a ship came out of the fog and called, “The last word I heard was the four hundred and"
    " twelfth,” she turned to that page and read on from the next.",
    "A second ship came to listen, and a third. They did not slow her down: each had its own place in the book,"
    " and the keeper spoke to whoever was ready. A ship that had fallen asleep cost her nothing at all; when it"
    " woke, its page was still there.",
    "One evening a captain shouted, “Stop!” The keeper stopped at once, closed the sentence with a line in the"
    " margin, and noted who had asked. The words already spoken stayed in the book, for they had been heard. In"
    " the morning the captain came back and said, “Go on,” and she went on from the very word at which she had"
    " been stopped.",
    "Then came the storm that every story has. It took the roof, the lamp that she did not need, and for one"
    " night the keeper herself. When she returned, she opened the book before she did anything else. There she"
    " found a sentence without an end. She did not pretend that it had never begun; she wrote below it, “Here the"
    " storm came,” and the ships that had been listening knew where they stood.",
    "The keeper grew old and the list of words did not grow shorter. Younger keepers came and asked for her"
    " secret, expecting something about lenses. She showed them the book, and the pen beside it. “Write it down,”"
    " she said, “then say it. The rest is only weather.”",
    "And if you have read this far without pressing Stop, you may press it now: the story is over, and the button"
    " has nothing left to do.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer to one message: reasoning, text, perhaps a call and what is said after it, or a failure."""

    text: str
    reasoning: str = ""
    call: tuple[str, dict[str, Any]] | None = None
    breaks_after: str | None = None

    def after(self, result: str, is_error: bool) -> str:
        """Say something about the tool's result."""
        assert self.call is not None
        tool, arguments = self.call
        if is_error and not result.startswith(INTERRUPTED):
            return f"The tool `{tool}` gave no result: {result.rstrip('.')}."
        if is_error:
            return (
                f"The tool `{tool}` did not finish ({result}). I will not run it again by myself: I cannot know how far"
                " it came. Ask me once more if you want me to."
            )
        if tool == "count":
            return (
                f"Done: I counted to {arguments['n']}. While the tool ran you saw its progress, and Stop would have"
                " cancelled it, given it a moment to clean up, and kept this conversation valid."
            )
        return _told(result)


def answer_to(question: str, tools: Mapping[str, dict[str, Any]]) -> Answer:
    """Choose the answer to ``question``, using only ``tools`` (name → JSON Schema of its arguments)."""
    asked = question.lower()
    reasoning = THINKING if re.search(r"\bthink", asked) else ""
    if question.lower().startswith("call ") and (named := _named_call(question[5:], tools)):
        return Answer(f"Let me call `{named[0]}`.\n\n", reasoning, named)
    if re.search(r"\bfail", asked):
        return Answer(FAILING + RECOVERED, reasoning, breaks_after=FAILING)
    if "count" in tools and re.search(r"\bcount", asked):
        number = re.search(r"\d+", asked)
        n = min(max(int(number.group()), 1), 1000) if number else 10
        return Answer(f"I will count to {n} with a tool that takes its time.\n\n", reasoning, ("count", {"n": n}))
    if "time" in tools and re.search(r"\btime\b", asked):
        return Answer("Let me look at the clock.\n\n", reasoning, ("time", {}))
    if "shell" in tools and (command := re.match(r"\s*\$\s*(\S.*)", question, re.DOTALL)):
        return Answer("Let me run that, if you allow it.\n\n", reasoning, ("shell", {"command": command[1].strip()}))
    if "read_file" in tools and (path := re.match(r"\s*read\s+(?:the\s+)?(?:file\s+)?([\w./-]+)\s*$", question, re.I)):
        return Answer(f"Let me read {path[1]}.\n\n", reasoning, ("read_file", {"path": path[1]}))
    if "list_dir" in tools and re.search(r"\b(files?|director(y|ies)|folders?|list_dir)\b", asked):
        return Answer("Let me look around.\n\n", reasoning, ("list_dir", {"path": "."}))
    if re.match(r"\s*\$\s*\S", question):
        return Answer(NO_SHELL, reasoning)
    if named := _named_call(question, tools):
        return Answer(f"Let me call `{named[0]}`.\n\n", reasoning, named)
    if re.search(r"\b(long|story)\b", asked):
        return Answer("\n\n".join(_STORY) + "\n", reasoning)
    shown = [text for word, text in (("table", TABLE), ("code", CODE)) if re.search(rf"\b{word}\b", asked)]
    if shown:
        return Answer("\n".join(shown), reasoning)
    if reasoning:
        return Answer(THOUGHT, reasoning)
    return Answer(WELCOME)


def _named_call(question: str, tools: Mapping[str, dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """Read ``weather Rome`` or ``weather {"city": "Rome"}`` as a call of an offered tool; None for anything else."""
    words = question.strip().split(None, 1)
    if not words or words[0] not in tools:
        return None
    name, rest = words[0], words[1] if len(words) > 1 else ""
    properties = tools[name].get("properties", {})
    if not rest:
        return None if tools[name].get("required") else (name, {})
    if rest.startswith("{"):
        try:
            return name, json.loads(rest)
        except ValueError:
            return None
    required = tools[name].get("required") or list(properties)
    if len(required) != 1:
        return None
    [only] = required
    return name, {only: rest if properties[only].get("type") == "string" else _value(rest)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _told(result: str) -> str:
    """Say a result in words; of one with a text in it (a file's, a command's) that text as it is."""
    try:
        value = json.loads(result)
    except ValueError:
        value = result
    if isinstance(value, list):
        return f"The answer is: {', '.join(map(_word, value))}."
    if not isinstance(value, dict):
        return f"The answer is: {_word(value)}."
    text = next((text for name in ("text", "stdout", "stderr") if (text := value.get(name))), None)
    if not isinstance(text, str):
        return f"The answer is: {', '.join(f'{name} {_word(each)}' for name, each in value.items() if each != '')}."
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    cut = text[:SHOWN].rstrip()
    more = f"\n\nThat was the beginning; it has {len(text):,} characters." if len(text) > SHOWN else ""
    return f"The answer is:\n\n{fence}\n{cut}\n{fence}\n{more}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
