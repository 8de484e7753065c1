"""A SuperExec whose ClientApps start with torch and Flower loaded."""
