"""The SDK over asyncio: by hand. `_sync` is generated from it by scripts/unasync.py."""
