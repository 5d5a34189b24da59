"""The command line. It uses the client, and `kedge.config` for the configuration files."""
