"""Any Flower app, unchanged, in this process: no Ray, no SuperLink, no bundle.

:func:`fedsuite.engines.apps.simulate.simulate` is the door.
"""
