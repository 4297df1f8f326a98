"""The queue in PostgreSQL: Procrastinate's tables, through its JobManager, for threads.

A loop of its own in one thread does all the talking, so that every call ends after ``CALL_SECONDS`` whatever the
network does. Rows of tasks that are over are deleted: the ledger says what happened, the queue only what is to do.
Ages are the database's clock's; no time of this machine is sent to it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from procrastinate import PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job, Notification, Status
from procrastinate.manager import JobManager
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import make_url

from tuner_service.database_url import without_password
from tuner_service.engine.contract import Task, has_begun
from tuner_service.errors import DatabaseFull, DatabaseUnavailable

TASK_NAME = "tuner"
"""One kind of task: what is to be done is in its document."""
CALL_SECONDS = 8.0
"""A database that answers nothing for so long is taken for lost."""
GIVE_UP_SECONDS = 60.0
"""The same, while the ledger is written meanwhile."""
CONNECTION_SECONDS = 3.0
"""A call that gets no connection within this time fails: requests of people wait for it."""
RECONNECT_SECONDS = 2.0
FRESH_SECONDS = 1.0
"""A connection that was used so lately is used again without a question."""
CONNECTIONS = 4
KEEP_ALIVE: Mapping[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "tuner-queue",
}
"""A connection whose other end is gone must not look alive for two hours."""

_KEY_TAKEN = """
SELECT 1 FROM procrastinate_jobs WHERE queueing_lock = %(key)s AND status IN ('todo', 'doing') LIMIT 1
"""
_OF_JOB = """
SELECT id, queueing_lock AS key FROM procrastinate_jobs
 WHERE args->>'job_id' = %(job_id)s AND status IN ('todo', 'doing') ORDER BY status, id
"""
_DOING = """
SELECT id, abort_requested, args FROM procrastinate_jobs WHERE worker_id = %(worker)s AND status = 'doing'
"""
_WAITING = """
SELECT EXISTS (SELECT 1 FROM procrastinate_jobs WHERE queue_name = ANY(%(queues)s) AND status = 'todo') AS waits
"""
_BEAT = """
UPDATE procrastinate_workers SET last_heartbeat = now() WHERE id = %(worker)s RETURNING id
"""
_BEGIN = """
UPDATE procrastinate_jobs SET args = args || '{"begun": true}' WHERE id = %(id)s AND status = 'doing' RETURNING id
"""
_HOLDING = """
SELECT args FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'doing' ORDER BY id LIMIT 1
"""
_STILL_LOST = """
SELECT job.id FROM procrastinate_jobs AS job LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
 WHERE job.id = %(id)s AND job.status = 'doing'
   AND (worker.id IS NULL OR worker.last_heartbeat < now() - make_interval(secs => %(seconds)s))
   FOR UPDATE OF job SKIP LOCKED
"""
_T = TypeVar("_T")
_LAST_USED: MutableMapping[psycopg.AsyncConnection[Any], float] = weakref.WeakKeyDictionary()
"""Pooled connection → when it was given back (monotonic clock)."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A row of the queue that one worker took."""

    id: int
    task: Task
    begun: bool = True
    """As ``engine.contract.has_begun``."""


def queue_of(task: Task) -> str:
    """The queue of a task: one per device, and one per kind of artifact for compiling."""
    return compile_queue(task.compile_key) if task.queue == "compile" else device_queue(task.device_id)


def compile_queue(compile_key: str) -> str:
    """The queue of compile tasks with this key."""
    return f"compile:{compile_key}"


def device_queue(device_id: str) -> str:
    """The queue of a device's measuring slot."""
    return f"device:{device_id}"


class PostgresQueue:
    """Thread-safe. Every method raises DatabaseProblem; nothing connects before the first call."""

    def __init__(self, database_url: str) -> None:
        self._conninfo = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.place = without_password(self._conninfo)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, task: Task) -> bool:
        """Adds a task; False when its key waits or runs already."""
        return self._ask(self._submit(task))

    def in_flight(self, job_id: str) -> frozenset[str]:
        """Keys of a job's waiting and running tasks."""
        return frozenset(row["key"] for row in self._ask(self._all(_OF_JOB, job_id=job_id)))

    def withdraw(self, job_id: str) -> None:
        """Deletes a job's waiting tasks."""
        self._ask(self._cancel(job_id, running=False))

    def cancel(self, job_id: str) -> None:
        """Deletes a job's waiting tasks and asks the workers of its running ones to stop."""
        self._ask(self._cancel(job_id, running=True))

    def holder(self, device_id: str) -> Task | None:
        """The task that runs on a device."""
        rows = self._ask(self._all(_HOLDING, queue=device_queue(device_id)))
        return Task.from_document(rows[0]["args"]) if rows else None

    def register(self) -> int:
        """A new worker's number."""
        return self._ask(lambda: self._manager.register_worker())

    def unregister(self, worker: int) -> None:
        """The worker is gone. Only for one that runs nothing: what it ran would count as lost."""
        self._ask(lambda: self._manager.unregister_worker(worker))

    def beat(self, worker: int) -> bool:
        """A sign of life; False when the worker was given up as gone."""
        return bool(self._ask(self._all(_BEAT, worker=worker)))

    def fetch(self, worker: int, queues: Sequence[str]) -> Fetched | None:
        """Takes the next task of these queues: by priority, then in order of submission."""
        job = self._ask(lambda: self._manager.fetch_job(queues=list(queues), worker_id=worker))
        if job is None:
            return None
        assert job.id is not None
        return Fetched(id=job.id, task=Task.from_document(job.task_kwargs))

    def begin(self, row_id: int) -> bool:
        """Notes that a task that was taken is performed from now on; False when it was given up, or is gone."""
        return bool(self._ask(self._all(_BEGIN, id=row_id)))

    def waits(self, queues: Sequence[str]) -> bool:
        """Whether a task waits in one of these queues."""
        return bool(self._ask(self._all(_WAITING, queues=list(queues)))[0]["waits"])

    def finish(self, row_id: int) -> None:
        """Deletes a row that was taken; one that is gone already is no fault."""
        self._ask(self._finish(row_id))

    def doing(self, worker: int) -> Mapping[int, tuple[Task, bool]]:
        """Rows that a worker has taken → the task, and whether it was asked to stop."""
        rows = self._ask(self._all(_DOING, worker=worker))
        return {row["id"]: (Task.from_document(row["args"]), row["abort_requested"]) for row in rows}

    def lost(self, seconds: float) -> list[Fetched]:
        """Running tasks whose workers gave no sign of life for so long."""
        jobs = self._ask(lambda: self._manager.get_stalled_jobs(seconds_since_heartbeat=seconds))
        return [
            Fetched(id=job.id, task=Task.from_document(job.task_kwargs), begun=has_begun(job.task_kwargs))
            for job in jobs
            if job.id is not None
        ]

    def give_up(self, row_id: int, seconds: float, then: Callable[[], None]) -> bool:
        """Deletes a lost task after ``then()``; False when its worker came back or ended it, or another gives it up.

        The row stays locked meanwhile, so that no two do it, and none does it by half: what ``then`` raises leaves it.
        """
        return self._ask(self._give_up(row_id, seconds, then), seconds=GIVE_UP_SECONDS)

    def forget_workers(self, seconds: float) -> None:
        """Deletes the rows of workers that gave no sign of life for so long."""
        self._ask(lambda: self._manager.prune_stalled_workers(seconds))

    def listen(self, queues: Sequence[str], *, on_task: Callable[[], None], on_stop: Callable[[int], None]) -> None:
        """From now on calls ``on_task()`` when one of these queues got a task, and ``on_stop(row id)`` when a running
        one is to stop. Both must be quick. Notices may get lost; the connection is made again whenever it breaks."""

        async def hear(*, channel: str, notification: Notification) -> None:
            if notification["type"] == "job_inserted":
                on_task()
            else:
                on_stop(notification["job_id"])

        async def listen() -> None:
            while True:
                with contextlib.suppress(ConnectorException, psycopg.Error, OSError):
                    await self._manager.listen_for_jobs(on_notification=hear, queues=list(queues))
                await asyncio.sleep(RECONNECT_SECONDS)

        async def begin() -> None:
            self._listener = asyncio.get_running_loop().create_task(listen())

        self._ask(begin)

    def close(self) -> None:
        """Closes every connection. Calls that come later raise DatabaseUnavailable."""
        with self._lock:
            self._closed = True
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._close(loop), loop)
            thread.join(CALL_SECONDS)

    def _ask(self, question: Callable[[], Coroutine[Any, Any, _T]], *, seconds: float = CALL_SECONDS) -> _T:
        async def bounded() -> _T:
            async with asyncio.timeout(seconds):
                return await question()

        with self._lock:
            if self._closed:
                raise DatabaseUnavailable("the queue was closed")
            if self._loop is None:
                self._loop = self._open()
            answer = asyncio.run_coroutine_threadsafe(bounded(), self._loop)
        with self._typed():
            return answer.result()

    @contextlib.contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as error:
            raise DatabaseFull(f"no space left for the database {self.place}: {error}") from error
        except (ConnectorException, psycopg.Error, OSError, TimeoutError) as error:
            cause = error.__cause__ if isinstance(error, ConnectorException) else error
            text = " ".join(str(cause or error).split()) or f"no answer within {CALL_SECONDS:g} s"
            raise DatabaseUnavailable(f"the queue in {self.place} cannot be used: {text}") from error
        except concurrent.futures.CancelledError:
            raise DatabaseUnavailable("the queue was closed") from None

    def _open(self) -> asyncio.AbstractEventLoop:
        """The loop, running, with the pool on it: no connection is waited for."""
        loop = asyncio.new_event_loop()

        def run() -> None:
            loop.run_forever()
            loop.close()

        async def begin() -> None:
            self._pool = AsyncConnectionPool(
                self._conninfo,
                kwargs=dict(KEEP_ALIVE),
                min_size=1,
                max_size=CONNECTIONS,
                timeout=CONNECTION_SECONDS,
                # Given up soon, so that the next call tries at once: the pool's own pauses grow without bound.
                reconnect_timeout=RECONNECT_SECONDS,
                reset=_used,
                check=_check_idle,
                configure=_commit_each,
                open=False,
            )
            await self._pool.open(wait=False)
            self._connector = PsycopgConnector()
            await self._connector.open_async(self._pool)
            self._manager = JobManager(self._connector)

        self._thread = threading.Thread(target=run, name="queue", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(begin(), loop).result()
        return loop

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._listener is not None:
                await _ended(self._listener)
            with contextlib.suppress(psycopg.Error, OSError):
                await self._pool.close(timeout=1.0)
            # After the pool, which waits for tasks of its own: what is left is asked by somebody who waits.
            await _ended(*(task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()))
        finally:
            loop.call_soon(loop.stop)

    def _all(self, query: Any, **arguments: Any) -> Callable[[], Coroutine[Any, Any, list[dict[str, Any]]]]:
        return lambda: self._connector.execute_query_all_async(query, **arguments)

    def _submit(self, task: Task) -> Callable[[], Coroutine[Any, Any, bool]]:
        job = Job(
            queue=queue_of(task),
            priority=-task.priority,  # Procrastinate's larger runs first
            lock=None,
            queueing_lock=task.key,
            task_name=TASK_NAME,
            task_kwargs=task.document(),
        )

        async def submit() -> bool:
            async with self._pool.connection() as connection, connection.transaction():
                # Procrastinate's own rule is about waiting tasks only; ours covers the running ones.
                await connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))", {"key": task.key}
                )
                taken = await connection.execute(_KEY_TAKEN, {"key": task.key})
                if await taken.fetchone() is not None:
                    return False
                await self._manager.defer_job_async(job, connection=connection)
            return True

        async def refused() -> bool:
            try:
                return await submit()
            except AlreadyEnqueued:
                return False

        return refused

    def _cancel(self, job_id: str, *, running: bool) -> Callable[[], Coroutine[Any, Any, None]]:
        async def cancel() -> None:
            # Waiting ones first: a slot that becomes free takes the next.
            for row in await self._all(_OF_JOB, job_id=job_id)():
                await self._manager.cancel_job_by_id_async(row["id"], abort=running, delete_job=True)

        return cancel

    def _finish(self, row_id: int) -> Callable[[], Coroutine[Any, Any, None]]:
        async def finish() -> None:
            try:
                await self._manager.finish_job_by_id_async(row_id, status=Status.SUCCEEDED, delete_job=True)
            except ConnectorException as error:
                if not isinstance(error.__cause__, psycopg.errors.RaiseException):
                    raise

        return finish

    def _give_up(
        self, row_id: int, seconds: float, then: Callable[[], None]
    ) -> Callable[[], Coroutine[Any, Any, bool]]:
        async def give_up() -> bool:
            async with self._pool.connection() as connection, connection.transaction():
                lost = await connection.execute(_STILL_LOST, {"id": row_id, "seconds": seconds})
                if await lost.fetchone() is None:
                    return False
                await asyncio.to_thread(then)
                await connection.execute("DELETE FROM procrastinate_jobs WHERE id = %(id)s", {"id": row_id})
            return True

        return give_up


async def _commit_each(connection: psycopg.AsyncConnection[Any]) -> None:
    """Most calls are one statement: two round trips less for each."""
    await connection.set_autocommit(True)


async def _used(connection: psycopg.AsyncConnection[Any]) -> None:
    _LAST_USED[connection] = time.monotonic()


async def _check_idle(connection: psycopg.AsyncConnection[Any]) -> None:
    """A round trip less for a call: what answered a moment ago is not asked whether it is still there."""
    if time.monotonic() - _LAST_USED.get(connection, -math.inf) >= FRESH_SECONDS:
        await AsyncConnectionPool.check_connection(connection)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
