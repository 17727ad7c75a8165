"""Programs of which one leads: a lease, kept by Kubernetes, and what the one that has it does."""
