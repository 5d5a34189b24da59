"""Bridges: side processes that host the libraries of MCP and of the Language Server Protocol.

These libraries take a second to import and tens of megabytes, and other programs decide what they must parse. So the
server never loads them. It starts a bridge for a workspace when it needs one, as a process of the warden, and both
sides exchange the small messages of `bridge.protocol`. A bridge that hangs, dies or uses too much memory costs the
calls that it was serving, and nothing else.
"""
