import asyncio

from mcp import Client, StdioServerParameters

READINGS = "day,celsius\nmon,21.5\ntue,19.0\nwed,23.4\nthu,18.2\n"
WARMEST = """\
import csv

rows = list(csv.DictReader(open("readings.csv")))
warmest = max(rows, key=lambda row: float(row["celsius"]))
mean = sum(float(row["celsius"]) for row in rows) / len(rows)
open("report.txt", "w").write(f"warmest: {warmest['day']}, mean: {mean:.2f}\\n")
"""


async def main() -> None:
    async with Client(StdioServerParameters(command="stn", args=["mcp"])) as station:

        async def call(tool: str, **arguments: object) -> dict[str, object]:
            answer = await station.call_tool(tool, arguments)
            if answer.is_error:
                raise SystemExit(answer.content[0].text)
            return answer.structured_content

        print(len((await station.list_tools()).tools), "tools")
        await call("sandbox_fs_write", path="readings.csv", content=READINGS)
        await call("sandbox_fs_write", path="warmest.py", content=WARMEST)
        done = await call("sandbox_exec", command="python warmest.py && ls", timeout_seconds=30)
        print("exit code", done["exit_code"], done["stdout"].split())
        print((await call("sandbox_fs_read", path="report.txt"))["content"], end="")
        await call("sandbox_close")


asyncio.run(main())
