import asyncio

import station


async def main() -> None:
    async with station.aconnect() as client:  # one connection for everything
        results = await asyncio.gather(*(client.run(f"print({n} ** 2)") for n in range(5)))
        print([result.stdout.strip() for result in results])

        sandbox = await client.open("async-example")
        print((await sandbox.exec(["uname", "-s"])).stdout.strip())
        await sandbox.delete()


asyncio.run(main())
