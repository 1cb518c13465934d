"""The agent's tools over MCP: a face over the client. It translates calls, bounds what a model gets to see, and decides
nothing; a sandbox belongs to the caller (a process, a token), never to an MCP session.

    inputs, results   one dataclass each for what a tool takes and answers: the schemas, descriptions and docs
    tools             the table of all tools; programs, files, sandboxes: what they do
    caller            whose call it is, and which sandboxes that caller may reach
    texts             results as text for a model; errors: failures that it can act on
    server            the MCP server over a table and a caller; stdio and http: its two transports
"""
