"""The examples for Kubernetes, Ansible and Python: what they run is run here, without a cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.test_examples import EXAMPLES, ROOT

yaml = pytest.importorskip("yaml")


def test_the_cron_job_runs_a_check_that_may_only_read(golden_copy: GoldenFolder, rmqctl: Runner,
                                                      tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "verify-cronjob.yaml").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/store"]["readOnly"]
    assert {mount["name"] for mount in mounts.values()} == {
        volume["name"] for volume in pod["volumes"]}
    for base, code in (("5.3.3/basic/store", 0), ("5.3.3/crash-crc/before", 1)):
        store = golden_copy(base)
        words = [word.replace("/store", str(store)) if word == "/store" else
                 word.replace("/state", str(tmp_path / store.parent.name)) for word in
                 container["args"]]
        run = rmqctl(*words).expect(code)
        assert bool(run.out) == bool(code)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ansible-playbook", path=os.path.dirname(sys.executable)) is None,
                    reason="no ansible-core here")
def test_the_playbook_fails_for_a_damaged_store_alone(golden_copy: GoldenFolder,
                                                      tmp_path: Path) -> None:
    program = tmp_path / "rmqctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    program.chmod(0o755)
    hosts = {"sound": golden_copy("5.3.3/basic/store"),
             "damaged": golden_copy("5.3.3/crash-crc/before")}
    inventory = tmp_path / "inventory.json"
    inventory.write_text(json.dumps({"brokers": {"hosts": {
        name: {"ansible_connection": "local", "rmqctl_program": str(program),
               "ansible_python_interpreter": sys.executable, "rmqctl_stores": [str(store)]}
        for name, store in hosts.items()}}}))
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-i", str(inventory),
         str(EXAMPLES / "ansible" / "verify.yml")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ANSIBLE_HOME": str(tmp_path / "ansible"),
             "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}, timeout=300)
    recap = dict(re.findall(r"^(\w+) +: .*failed=(\d)", done.stdout, re.MULTILINE))
    assert recap == {"sound": "0", "damaged": "1"}, done.stdout + done.stderr
    assert "body CRC mismatch" in done.stdout
    assert done.returncode == 2


@pytest.mark.long
def test_the_picture_of_delays_is_drawn(tmp_path: Path) -> None:
    for library in ("polars", "duckdb", "matplotlib"):
        pytest.importorskip(library)
    picture = tmp_path / "delays.png"
    done = subprocess.run([sys.executable, str(EXAMPLES / "python" / "delays.py"),
                           str(EXAMPLES / "store"), "--png", str(picture)], capture_output=True,
                          text=True, check=False, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT),
                               "MPLCONFIGDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "TP_fraud_Topic" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "library"), [("airflow_dag", "airflow.sdk"),
                                               ("dagster_assets", "dagster")])
def test_schedules_are_imported(name: str, library: str, tmp_path: Path) -> None:
    """Their library reads them without a complaint; nothing is run."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    path = EXAMPLES / "orchestration" / f"{name}.py"
    done = subprocess.run([sys.executable, "-W", "error::SyntaxWarning", str(path)],
                          capture_output=True, text=True, check=False, timeout=200,
                          env={**os.environ, "AIRFLOW_HOME": str(tmp_path),
                               "DAGSTER_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
