"""Starting, watching and ending processes of this machine. Source: Storm's supervisor."""
