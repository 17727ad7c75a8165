"""`python -m tuplewire` runs the command `tuplewire`, which is in the package of the worker."""

import runpy

if __name__ == "__main__":
    runpy.run_module("tuplewire_service", run_name="__main__", alter_sys=True)
