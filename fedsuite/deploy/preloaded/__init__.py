"""ClientApps that begin with torch and Flower loaded: a process before SuperExec."""
