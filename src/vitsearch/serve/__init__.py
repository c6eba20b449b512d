"""Studies in a browser, live and read-only: `serve_studies("runs")`."""

from vitsearch.serve.app import make_app
from vitsearch.serve.run import serve_studies

__all__ = ["make_app", "serve_studies"]
