"""The last life of a scene may be one of the engine in this process: see `run_project`."""

from tests.system.conftest import run_project

__all__ = ["run_project"]
