"""Extensions: what users, repositories and plugins add to a workspace.

MCP servers, skills, commands, agents, hooks and language servers. Each part reads its files, reports its state, and
offers tools or texts to the agent. Nothing that comes from a repository acts before the user has trusted it.
"""
