"""Start a Spark session without output on the terminal: on this machine, or on an existing cluster.

Spark's log is written to a file, which is kept only after a failure; an error message then names
the file. Workers get the package (``rmqctl``) and its kernel from the driver. The Python of the
workers must have the dependencies of rmqctl (numpy, pyarrow, isal, construct).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqctl import kernel
from rmqctl.errors import JobError, RmqctlError, UnsupportedError, UsageError, require
from rmqctl.ext.spark.versions import has_source, require_jobs
from rmqctl.files.named import open_to_append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(__file__).resolve().parents[2]
_COMPANION = "pyspark_rocketmq"
_SOURCES = (".py", ".pyx", ".pxi", ".toml")
_MAX_TRIES = 4
"""Maximum number of times that a task is tried, on one machine or on a cluster."""
_LOCAL = re.compile(r"local(\[(\*|\d+)(?:\s*,\s*(\d+))?\])?$")
_MASTERS = ("spark://", "yarn", "k8s://", "local-cluster[")
NO_JAVA = ("Spark needs Java 17 or newer, but no Java was found: install a JRE (on Debian: apt "
           "install openjdk-17-jre-headless) or set JAVA_HOME; the local engine needs no Java")
_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


def workers_of(master: str) -> int | None:
    """Return the number of tasks that ``local[...]`` runs at a time; None for a cluster.
    Raises: UsageError.
    """
    match = _LOCAL.match(master.strip())
    if match is None:
        if not master.startswith(_MASTERS):
            raise UsageError(f"--master {master}: expected local[N], spark://HOST:PORT, yarn or "
                             "k8s://URL")
        return None
    threads = match[2] or "1"
    count = len(os.sched_getaffinity(0)) if threads == "*" else int(threads)
    if not count:
        raise UsageError(f"--master {master}: at least one worker is needed")
    return count


@contextlib.contextmanager
def session(master: str = "local[*]", *, conf: Mapping[str, str] | None = None,
            log: str | None = None) -> Iterator[SparkSession]:
    """Yield a Spark session, which is stopped at the end.

    ``conf``: settings of Spark, which override the default settings.
    ``log``: file for Spark's messages; by default a temporary file that is removed unless something
    fails.

    Raises:
    * UnsupportedError if Java is missing, JobError if the session does not start; the message
      contains the remedy
    * MissingExtraError if pyspark or pyarrow is missing
    * RefusedError or StoreIOError for the log
    """
    require("pyspark", "pyarrow")
    require_jobs()
    workers = workers_of(master)
    if log is not None:
        os.close(open_to_append(log))  # before another process opens it by name
    with contextlib.ExitStack() as held:
        folder = tempfile.mkdtemp(prefix="rmqctl-spark-")
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        own_log = log is not None
        file = log or _log_file()
        held.enter_context(_logging_to(file))
        try:
            settings = _settings(folder, file, workers, conf or {})
            spark = _start(master, workers, settings, file, held)
            if workers is None:
                spark.sparkContext.addPyFile(package_zip(folder))
                module = kernel.chosen()
                if module is not None:  # separately, because it cannot be loaded from the archive
                    spark.sparkContext.addFile(str(module.__file__))
            spark.rmqctl_log = file  # type: ignore[attr-defined]  # for whoever reports a failure
            yield spark
        except BaseException as error:
            # Keep the log if a message names it, and after unexpected errors.
            own_log = own_log or file in str(error) or (
                isinstance(error, Exception) and not isinstance(error, RmqctlError))
            raise
        finally:
            held.close()
            if not own_log:
                with contextlib.suppress(OSError):
                    os.unlink(file)


@contextlib.contextmanager
def _logging_to(file: str) -> Iterator[None]:
    """Write Python's log messages to the log file as well, because py4j and pyspark log a traceback
    at Ctrl-C.
    """
    handler = logging.FileHandler(file, delay=True)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def log_of(spark: Any) -> str | None:
    """Return the path of the log file of a session; None if another program started the session."""
    log: str | None = getattr(spark, "rmqctl_log", None)
    return log


def package_zip(folder: str) -> str:
    """Create an archive of this package for workers on which it is not installed; return its path.

    The archive contains the kernel's source, by which a worker recognizes that a compiled kernel
    belongs to this package.
    """
    target = os.path.join(folder, "rmqctl.zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for top in (PACKAGE, PACKAGE.parent / _COMPANION):
            for file in sorted(top.rglob("*")):
                if file.suffix in _SOURCES:
                    archive.write(file, file.relative_to(PACKAGE.parent))
    return target


def _log_file() -> str:
    fd, file = tempfile.mkstemp(prefix="rmqctl-spark-", suffix=".log")
    os.close(fd)
    return file


def _settings(folder: str, log: str, workers: int | None, given: Mapping[str, str]) -> dict[
        str, str]:
    """Return Spark's settings. docs/explanation/pipeline.md explains them."""
    log_settings = os.path.join(folder, "log4j2.properties")
    Path(log_settings).write_text(_LOG_SETTINGS.format(log=log), encoding="utf-8")
    java = f"-Dlog4j2.configurationFile=file:{log_settings}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"file:{folder}/warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.task.maxFailures": str(_MAX_TRIES),
    }
    if kernel.VARIABLE in os.environ:
        settings[f"spark.executorEnv.{kernel.VARIABLE}"] = os.environ[kernel.VARIABLE]
    if workers is not None:
        # The work is done in Python: a small heap and a compiler that starts fast are enough.
        java += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewRatio=1 -Xss4m"
        settings |= {"spark.driver.memory": "1g", "spark.driver.host": "127.0.0.1",
                     "spark.driver.bindAddress": "127.0.0.1",
                     "spark.python.daemon.module": "rmqctl.ext.spark.daemon"}
    own = given.get("spark.driver.extraJavaOptions")
    settings |= given
    settings["spark.driver.extraJavaOptions"] = f"{java} {own}" if own else java
    return settings


def _start(master: str, workers: int | None, settings: Mapping[str, str], log: str,
           held: contextlib.ExitStack) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _show_package()
    # pyspark's warnings about pandas versions do not help users of rmqctl.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from rmqctl.ext.spark import register

    if SparkContext._active_spark_context is not None:
        raise JobError("a Spark session is already active in this process")
    real = f"local[{workers},{_MAX_TRIES}]" if workers is not None else master
    settings_of_spark = SparkConf().setMaster(real).setAppName("rmqctl").setAll(
        list(settings.items()))
    out = held.enter_context(os.fdopen(open_to_append(log), "ab"))  # as long as Spark
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        launch: Any = launch_gateway
        gateway = launch(settings_of_spark, {"stdout": out, "stderr": out})
        held.callback(_end_gateway, gateway)
        context = SparkContext(conf=settings_of_spark, gateway=gateway)
        held.callback(_stop, context)
        spark = SparkSession(context)  # a cluster that does not answer is noticed only here
        if has_source():  # Spark's own search fails where Python's path contains a space
            register(spark)
    except Exception as error:  # noqa: BLE001  # from py4j, pyspark or the system
        raise _not_started(error, master, log) from None
    else:
        return spark
    finally:
        # SparkContext handles Ctrl-C itself; here the program does.
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _show_package() -> None:
    """Let Spark's Python processes on this machine find the package if it is not installed."""
    root = str(PACKAGE.parent)
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if root not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *folders])


def _not_started(error: Exception, master: str, log: str) -> Exception:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        return UnsupportedError(NO_JAVA)
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    if "UnsupportedClassVersionError" in text:
        return UnsupportedError(f"Spark needs Java 17 or newer; {java} is older")
    if "All masters are unresponsive" in text:
        return JobError(f"no cluster answers at {master} (Spark's log: {log})")
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return JobError(f"Spark did not start with --master {master}: {first} (its log: {log})")


def _stop(context: Any) -> None:
    with contextlib.suppress(Exception):
        context.stop()


def _end_gateway(gateway: Any) -> None:
    """End the Java process, and reset pyspark so that a later session can start a new process."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    with contextlib.suppress(Exception):
        process.stdin.close()  # at which the Java process ends
        try:
            process.wait(20)
        except Exception:  # noqa: BLE001  # any error: it must end
            process.kill()
            process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
