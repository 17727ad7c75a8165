"""The worker as a process: command line, configuration, control and health services, admin port."""
