"""The default agent's tools: confined, bounded, and the shell only when switched on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.engine import ToolError, default_agent
from gateway.engine.files import MAX_NAMES, MAX_READ_BYTES, list_dir_tool, read_file_tool
from gateway.engine.models.scripted import Call
from gateway.engine.shell import shell_tool
from tests.engine.support import SESSION, agent_for, of, read, when

OUT = ["..", "../..", "/", "/etc", "inside/../..", "link", "link/deeper", "../root/../outside", "a\0b", "x" * 5000]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "inside").mkdir(parents=True)
    (outside / "deeper").mkdir(parents=True)
    (outside / "secret").write_text("secret")
    (root / "link").symlink_to(outside)
    (root / "way").symlink_to("inside")
    (root / "loop").symlink_to("loop")
    (root / "file").write_text("hello")
    (root / "inside" / "note").write_text("noted")
    return root


@pytest.mark.parametrize("path", OUT)
def test_list_dir_stays_below_its_root(root: Path, path: str) -> None:
    with pytest.raises(ToolError):
        list_dir_tool(root)(path)


@pytest.mark.parametrize("path", [*OUT, "link/secret", "../outside/secret", "loop", "inside", "nothing", "file/x"])
def test_read_file_stays_below_its_root(root: Path, path: str) -> None:
    with pytest.raises(ToolError):
        read_file_tool(root)(path)


def test_a_link_swapped_in_after_the_check_leads_nowhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at a path and opening it, the directory has become a link that leads out."""
    real = Path.resolve

    def swap(self: Path, strict: bool = False) -> Path:
        resolved = real(self, strict)
        if self.name == "note":
            (root / "inside").rename(root / "moved")
            (root / "inside").symlink_to(root.parent / "outside")
            (root.parent / "outside" / "note").write_text("secret")
        return resolved

    tool = read_file_tool(root)
    monkeypatch.setattr(Path, "resolve", swap)
    with pytest.raises(ToolError):
        tool("inside/note")


def test_list_dir_lists_and_leaves_out_what_is_usually_secret(root: Path) -> None:
    for name in (".env", "gateway.db", "gateway.db-wal", "tls.key"):
        (root / name).touch()
    assert list_dir_tool(root)() == ["file", "inside/", "link", "loop", "way"]
    assert list_dir_tool(root)("way") == ["note"]
    for name in (".env", "gateway.db", "tls.key", "inside/../.env"):
        with pytest.raises(ToolError):
            read_file_tool(root)(name)


def test_list_dir_says_that_there_is_more(tmp_path: Path) -> None:
    for number in range(MAX_NAMES + 5):
        (tmp_path / f"{number:05}").touch()
    names = list_dir_tool(tmp_path)()
    assert len(names) == MAX_NAMES + 1
    assert names[-1] == "…"


def test_read_file_reads_and_follows_links_that_stay_inside(root: Path) -> None:
    assert read_file_tool(root)("file") == {"path": "file", "size": 5, "text": "hello"}
    assert read_file_tool(root)("way/note")["text"] == "noted"
    assert read_file_tool(root)("file", 3)["text"] == "lo"
    assert read_file_tool(root)("file", 99) == {"path": "file", "size": 5, "text": ""}


def test_read_file_gives_a_large_file_piece_by_piece_and_cuts_no_letter(root: Path) -> None:
    whole = "aü€😀" * 30_000
    (root / "big").write_text(whole)
    pieces, offset = [], 0
    while True:
        piece = read_file_tool(root)("big", offset)
        assert len(piece["text"].encode()) <= MAX_READ_BYTES
        pieces.append(piece["text"])
        if "next_offset" not in piece:
            break
        offset = piece["next_offset"]
    assert "".join(pieces) == whole


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n\0\0\0", b"text\0more", b"\xff\xfe" * 100, b"fine" * 10 + b"\xff" * 9]
)
def test_read_file_tells_a_binary_apart(root: Path, data: bytes) -> None:
    (root / "blob").write_bytes(data)
    assert read_file_tool(root)("blob") == {"path": "blob", "size": len(data), "binary": True}


def test_read_file_does_not_wait_for_a_pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(ToolError, match="no file"):
        read_file_tool(root)("pipe")


def test_the_shell_is_off_unless_switched_on(tmp_path: Path) -> None:
    plain, switched = default_agent(root=tmp_path), default_agent(root=tmp_path, shell=True)
    assert set(plain._config.tools) == {"count", "time", "list_dir", "read_file"}
    assert set(switched._config.tools) - set(plain._config.tools) == {"shell"}
    assert switched._config.tools["shell"].policy == "ask"


async def shell(root: Path, command: str, **options: Any) -> Any:
    tool = shell_tool(root, policy="allow", **options)
    events = await read(agent_for([Call("shell", {"command": command})], "ok", tools=[tool]))
    return (of(events, "tool-result") or of(events, "tool-error"))[0]


async def test_the_shell_gives_code_and_output_and_knows_no_key(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = await shell(root, "cat file; echo $OPENAI_API_KEY; echo oops >&2; exit 3")
    assert result["output"] == {"exit_code": 3, "stdout": "hello\n", "stderr": "oops\n"}


async def test_the_shell_survives_a_gigabyte(root: Path) -> None:
    result = await shell(root, "head -c 1073741824 /dev/zero | tr '\\0' x; echo end")
    output = result["output"]
    assert output["truncated"] is True
    assert output["stdout"].startswith("x" * 1000)
    assert output["stdout"].endswith("xend\n")
    assert "bytes left out" in output["stdout"]
    assert len(output["stdout"]) < 70_000


async def test_a_command_past_its_time_is_stopped(root: Path) -> None:
    error = await shell(root, "trap '' TERM; sleep 1000", timeout_s=0.1)
    assert (error["error"], error["outcome"]) == ("Timed out after 0.1 s", "failed")


async def test_the_shell_shows_its_output_while_it_runs(root: Path) -> None:
    os.mkfifo(root / "gate")
    tool = shell_tool(root, policy="allow")

    def release() -> None:
        (root / "gate").write_text("go\n")

    command = {"command": "echo first; cat gate"}
    events = await read(agent_for([Call("shell", command)], "ok", tools=[tool]), on=when("tool-progress", release))
    assert of(events, "tool-progress")[0]["data"] == {"output": "first\n"}
    assert of(events, "tool-result")[0]["output"]["stdout"] == "first\ngo\n"


async def test_the_default_agent_asks_before_it_runs_a_command(root: Path) -> None:
    agent = default_agent(root=root, shell=True)
    agent._config.model.pace_s = 0  # type: ignore[attr-defined]  # it is the scripted one
    asked: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(read(agent, text="$ cat file", on=when("approval-request", lambda: asked.put_nowait(1))))
    await asked.get()
    run = agent._live[SESSION]
    assert run.calls is not None
    request = next(iter(run.calls._slots.values())).request_id
    await agent.respond(session_id=SESSION, run_id=run.context.run_id, request_id=request, decision="allow")
    events = await task
    assert of(events, "approval-request")[0]["input"] == {"command": "cat file"}
    assert of(events, "tool-result")[0]["output"]["stdout"] == "hello"
