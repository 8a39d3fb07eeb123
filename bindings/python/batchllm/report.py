"""Reports: what a job did, as one HTML page."""

from __future__ import annotations

import html
import os
import threading
from typing import Union

from . import native
from .errors import refuse_pickle
from .predictions import Prediction


class Report:
    """A page that shows what was shared, token batches and KV pages over time, lengths, finish reasons, errors and the
    slowest groups.

        results = engine.generate(prompts, report=True)
        results.report().save("job.html")

    In a notebook, it displays itself. It contains words of the prompts, so it is as confidential as they are.
    """

    def __init__(self, title: str = "batchllm") -> None:
        self.title = title
        self.seconds = 0.0
        """How long the whole job took; 0: the time spent in steps."""
        self._native = native.batchllm_report_create_empty()
        self._lock = threading.Lock()

    def add_fact(self, name: str, value: object) -> None:
        """Adds a line to the page's list of facts; using a name again replaces its value. At most 64."""
        with self._lock:
            native.batchllm_report_add_fact(self._native, name, str(value))

    def add_prediction(self, prediction: Prediction) -> None:
        """Adds a result of `Plan.predict`, shown beside the achieved figures. If several are added, the page shows
        their sums."""
        with self._lock:
            native.batchllm_report_add_prediction(self._native, prediction._native)

    def to_html(self) -> str:
        """The page as one self-contained HTML file of less than 1 MB."""
        with self._lock:
            return native.batchllm_report_html_of(self._native, self.title, self.seconds)

    def save(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the page atomically: an existing file is replaced or left as it was."""
        with self._lock:
            native.batchllm_report_save_to(self._native, self.title, self.seconds, os.fspath(path))

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame, which isolates its styles and runs no scripts."""
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe sandbox="" srcdoc="{page}" style="width:100%;height:900px;border:0"></iframe>'

    def __repr__(self) -> str:
        return f"Report({self.title!r})"

    __reduce_ex__ = refuse_pickle
