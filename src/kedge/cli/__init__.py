"""The command line. It imports the client and the wire, nothing deeper; the server only to serve."""
