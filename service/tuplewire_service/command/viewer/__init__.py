"""What `tuplewire top` shows: looks at every worker of a cluster, as rows, and the live page of them."""
