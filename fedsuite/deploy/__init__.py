"""Federations across machines: keys, folders to hand to each site, programs, status.

``fedsuite deploy init`` makes a folder for the SuperLink and one for each node;
``fedsuite deploy superlink`` and ``fedsuite deploy supernode`` run with them, and
``fedsuite deploy run`` and ``fedsuite deploy status`` talk to what runs. All of it uses
Flower's own programs, encrypted, with nodes known by their keys.
"""
