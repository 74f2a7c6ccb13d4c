"""One session of the Python MCP client, driven by lines of JSON.

Reads commands from stdin, each with an "id" and an "op": list_tools, call (name, arguments, progress), cancel (target) or
ping. Answers each with {"id", "ok"} or {"id", "error"}, and tells of events: ready, list_changed and progress.
Commands run side by side on the one session, which ends with stdin.
"""

import json
import sys

import anyio
from mcp import Client, MCPError


def say(line):
    print(json.dumps(line), flush=True)


async def on_message(message):
    root = getattr(message, "root", message)
    if getattr(root, "method", None) == "notifications/tools/list_changed":
        say({"event": "list_changed"})


async def run(client, command, scopes):
    number = command["id"]

    async def on_progress(progress, total, message):
        say({"event": "progress", "call": number, "progress": progress, "total": total, "message": message})

    async def perform():
        match command["op"]:
            case "list_tools":
                tools, cursor = [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        return {"names": [tool.name for tool in tools]}
            case "call":
                callback = on_progress if command.get("progress") else None
                result = await client.call_tool(command["name"], command["arguments"], progress_callback=callback)
                return result.model_dump(mode="json", by_alias=True, exclude_none=True)
            case "ping":
                await client.send_ping()
                return {}
            case "cancel":
                scopes[command["target"]].cancel()
                return {}

    try:
        with anyio.CancelScope() as scope:
            scopes[number] = scope
            say({"id": number, "ok": await perform()})
    except MCPError as error:
        say({"id": number, "error": {"code": error.error.code, "message": error.error.message}})
    finally:
        scopes.pop(number, None)


async def commands():
    async for line in anyio.wrap_file(sys.stdin):
        yield json.loads(line)


async def main(url):
    async with Client(url, message_handler=on_message, cache=None) as client:
        say({"event": "ready", "protocol": client.protocol_version})
        scopes = {}
        async with anyio.create_task_group() as tasks:
            async for command in commands():
                tasks.start_soon(run, client, command, scopes)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
