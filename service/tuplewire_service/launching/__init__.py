"""Starting worker processes, watching them and ending them. Source: Storm's supervisor."""
