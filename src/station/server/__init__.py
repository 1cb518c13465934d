"""The ASGI app and the one composition root. A thin shell: it parses, asks a role, and encodes the answer."""
