"""The SDK: a station's API for Python, over threads and over asyncio. The names for users stand in `station`."""
