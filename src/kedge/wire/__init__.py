"""What crosses a process boundary, shared by server and client. The older names the wire keeps live here only."""
