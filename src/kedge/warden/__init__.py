"""The process keeper: starts the processes of tools, kills whole process trees, and exits with the server.

    server (warden, keeper_client)  --socketpair-->  keeper  --fork-->  one overseer per tree  --fork, exec-->  the tool

The left side is asyncio. `keeper` and its imports (`overseer`, `child`, `namespace`, `subreaper`, `proc_fs`,
`landlock`, `mounts`, `network`, `seccomp`, `capabilities`, `sandbox_paths`, `libc`, `keeper_protocol`) run in a
separate small interpreter and use only the standard library.
"""
