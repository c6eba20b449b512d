"""Prepare batches on a GPU beside the training: in a thread and a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, Protocol

import torch

from vitsearch.data.base import Batch

READY = 2  # batches that may wait
PATIENCE = 0.1  # seconds between two looks at whether anybody still wants batches


class Batches(Protocol):
    @property
    def steps_per_epoch(self) -> int: ...
    def batches(self, start: int = 0) -> Iterator[Batch]: ...


class Ahead:
    """The batches of another loader, made while the device works on those before."""

    def __init__(self, loader: Batches, device: torch.device) -> None:
        self.loader, self.device = loader, device
        self.steps_per_epoch = loader.steps_per_epoch

    def batches(self, start: int = 0) -> Iterator[Batch]:
        source = self.loader.batches(start)
        yield next(source)  # here, because torch compiles in one thread at a time, and the first batch compiles
        ready: Queue[Any] = Queue(READY)
        unwanted = Event()
        thread = Thread(target=self._fill, args=(source, ready, unwanted), daemon=True)
        thread.start()
        current = torch.cuda.current_stream(self.device)
        try:
            while True:
                found = ready.get()
                if isinstance(found, BaseException):
                    raise found
                batch, made = found
                current.wait_event(made)
                for tensor in batch:
                    tensor.record_stream(current)  # its memory is in use until this stream is through with it
                yield batch
        finally:
            unwanted.set()
            with_nothing_left(ready)
            thread.join()

    def _fill(self, source: Iterator[Batch], ready: Queue[Any], unwanted: Event) -> None:
        torch.set_num_threads(1)  # of this thread alone: its tensors on the CPU are too small for more
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self.device))
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(stream):
                for batch in source:
                    made = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    made.record(stream)
                    while not unwanted.is_set():
                        try:
                            ready.put((batch, made), timeout=PATIENCE)
                            break
                        except Full:
                            continue
                    if unwanted.is_set():
                        return
        except BaseException as error:  # the other thread raises it
            ready.put(error)


def with_nothing_left(ready: Queue[Any]) -> None:
    """Make room, so that a thread that waits to put something ends."""
    try:
        while True:
            ready.get_nowait()
    except Empty:
        return
