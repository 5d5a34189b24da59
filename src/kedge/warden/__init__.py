"""The process keeper: starts tools' processes, ends whole trees of them, and dies with the server.

    server (warden, process, link)  --socketpair-->  keeper  --fork-->  one overseer per tree  --fork, exec-->  the tool

The left side is asyncio. `keeper` and what it imports (`overseer`, `child`, `namespace`, `subreaper`, `processes`,
`landlock`, `mounts`, `capabilities`, `walk`, `libc`, `lines`) run in a small interpreter of their own, with nothing but
the standard library.
"""
