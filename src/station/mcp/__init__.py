"""The agent's tools over MCP: a face over the client. It translates calls, bounds what a model gets to see, and decides
nothing; a sandbox belongs to the caller (a process, a token), never to an MCP session.

    inputs, answers   one dataclass each for what a tool takes and answers: the schemas, descriptions and docs
    tools             the table of all tools; programs, files, lifecycle: what they do
    caller            whose call it is; scope: which sandboxes that caller may reach
    call              one call and its reply; progress: what is told meanwhile
    replies           from what happened to a reply, with texts and hints; errors: failures that a model can act on
    server            the MCP server over the table and a caller; stdio and http: its two transports; docs: its page
"""
