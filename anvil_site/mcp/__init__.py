"""``anvil mcp``: the router's transitions and readings as tools of the Model Context Protocol."""
