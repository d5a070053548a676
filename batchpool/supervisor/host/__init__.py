"""The host: listening sockets, systemd, signals."""
