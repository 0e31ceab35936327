"""The diagnosis of a machine: hardware, drivers and packages, and whether sdort works there.

Each check is a function from facts to findings. Facts about the machine come from files under a root
(:class:`sdort.machine.system.System`), those about the installed software from :mod:`sdort.doctor.software`.
"""
