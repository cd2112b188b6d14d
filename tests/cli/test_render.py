"""`sps render`: a PathwaysJob in, its JobSet out, and all else as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from harness.deadlines import deadline
from shared_pathways_service.manifests.pathways_job import render_pathways_job

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "yamls" / "elastic-training.yaml"
OTHER = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: program
  creationTimestamp: 2026-01-01T00:00:00Z
data:
  train.py: |
    print("a")
    print("ä")
  quoted: "yes"
"""


def render(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return sps("render", *arguments, given=given)


def sps(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
        check=False,
        cwd=ROOT,
        encoding="utf-8",
    )


def example() -> Any:
    return yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))


def test_a_file_is_rendered_as_yaml_that_reads_the_same() -> None:
    done = render("-f", str(EXAMPLE))
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout) == render_pathways_job(example())


def test_json_for_programs() -> None:
    done = render("-f", str(EXAMPLE), "--json")
    assert json.loads(done.stdout) == render_pathways_job(example())


def test_several_documents_come_in_order_and_others_pass() -> None:
    text = f"---\n{OTHER}---\n{EXAMPLE.read_text(encoding='utf-8')}---\n"
    done = render("-f", "-", given=text)
    assert done.returncode == 0, done.stderr
    other, jobset = yaml.load_all(done.stdout, Loader=yaml.BaseLoader)
    # Also what YAML would take for a date or a truth.
    assert other == yaml.load(OTHER, Loader=yaml.BaseLoader)
    assert yaml.safe_load(done.stdout.split("---\n")[0])["data"]["quoted"] == "yes"
    assert jobset["kind"] == "JobSet"
    lines = render("-f", "-", "--json", given=text).stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["ConfigMap", "JobSet"]


def test_json_is_read_too() -> None:
    done = render("-f", "-", given=json.dumps(example()))
    assert yaml.safe_load(done.stdout) == render_pathways_job(example())


def test_wrong_fields_are_named() -> None:
    wrong = example()
    wrong["spec"]["workers"][0]["topology"] = "3x3"
    done = render("-f", "-", given=yaml.safe_dump(wrong))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: spec.workers[0].topology='3x3' is not valid")
    assert "4x8" in done.stderr


def test_what_is_no_manifest_is_said_in_one_line() -> None:
    for given, said in (("a: [", "line 1"), ("", "at least one object"), ("- 1", "document 1")):
        done = render("-f", "-", given=given)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    done = render("-f", "/nowhere.yaml")
    assert done.returncode == 1
    assert "/nowhere.yaml" in done.stderr


def objects(*arguments: str) -> list[Any]:
    done = render(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def shown(*names: str) -> list[Any]:
    texts = [(ROOT / "yamls" / name).read_text(encoding="utf-8") for name in names]
    return [one for text in texts for one in yaml.safe_load_all(text)]


def test_the_rendered_manifest_is_what_an_operator_creates() -> None:
    service = ("service", "--slices", "tpuv6e:2x2=2", "--gcs_bucket", "gs://my-bucket")
    assert objects(*service) == shown("pathways-service.yaml")
    assert objects("tenant-rbac") == shown("tenant-rbac.yaml")
    assert objects("operator-rbac") == shown("operator-rbac.yaml")
    assert objects("priority-classes") == shown("priority-classes.yaml")
    hotswap = [f"hotswap/{name}-jax-trillium.yaml" for name in ("high", "low")]
    assert sorted(objects("hotswap"), key=str) == sorted(
        shown("priority-classes.yaml", *hotswap), key=str
    )


def test_slices_may_have_the_names_of_gke_and_of_xpk() -> None:
    named = [
        objects("service", "--slices", f"{name}=2")
        for name in ("tpuv6e:4x4", "ct6e-standard-4t:4x4", "v6e-16")
    ]
    assert named[0] == named[1] == named[2]
    [jobset] = named[0]
    head, worker = jobset["spec"]["replicatedJobs"]
    [rm] = head["template"]["spec"]["template"]["spec"]["containers"]
    assert {"--instance_type=tpuv6e:4x4", "--instance_count=2"} <= set(rm["args"])
    assert (worker["replicas"], worker["template"]["spec"]["completions"]) == (2, 4)


def test_upstreams_flags_name_the_same_service() -> None:
    ours = ("service", "--name=pw", "--slices=tpuv6e:4x4=2", "--max-restarts=30")
    [jobset] = objects(*ours)
    assert jobset["spec"]["failurePolicy"] == {"restartStrategy": "Recreate", "maxRestarts": 30}
    for slices in (
        ("--tpu_type", "v6e", "--topology", "4x4", "--num_slices", "2"),
        ("--tpu_type=ct6e-standard-4t", "--topology=4x4", "--num_slices=2"),
        ("--tpu-type=v6e-16", "--num-slices=2"),
        ("--tpu_type=tpuv6e:4x4", "--num_slices=2"),
    ):
        upstreams = ("service", "--jobset_name", "pw", *slices, "--max_restarts", "30")
        assert objects(*upstreams) == [jobset], slices


def test_upstreams_flags_that_do_not_go_together_are_refused() -> None:
    for words, said in (
        (("--slices=tpuv6e:4x4=2", "--num_slices=2"), "--slices"),
        (("--topology=4x4", "--num_slices=2"), "--tpu-type=None"),
        (("--tpu_type=v6e", "--topology=4x4"), "--num-slices=None"),
        (("--tpu_type=v6e", "--num_slices=2"), "--tpu-type='v6e'"),
        (("--tpu_type=v6e", "--topology=3x3", "--num_slices=2"), "--topology='3x3'"),
        (("--tpu_type=v9", "--topology=2x2", "--num_slices=2"), "--tpu-type='v9'"),
        (("--tpu_type=v6e", "--topology=2x2", "--num_slices=0"), "--num-slices"),
    ):
        done = render("service", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr


def test_a_service_is_deployed_by_upstreams_flags_too() -> None:
    slices = ("--tpu_type=v6e", "--topology=4x4", "--num_slices=2")
    upstreams = sps(
        "deploy", "--jobset_name=pw", *slices, "--gcs_bucket=gs://my-bucket", "--dry_run"
    )
    assert (upstreams.returncode, upstreams.stderr) == (0, "")
    ours = sps("deploy", "pw", "--slices=tpuv6e:4x4=2", "--gcs-bucket=gs://my-bucket", "--dry-run")
    assert yaml.safe_load(upstreams.stdout) == yaml.safe_load(ours.stdout)
    for named, said in (((), "NAME=None"), (("pw", "--jobset_name=pw"), "--jobset-name='pw'")):
        done = sps("deploy", *named, *slices, "--dry_run")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


def test_a_release_of_jax_picks_googles_images() -> None:
    for command in (("render", "service"), ("deploy", "pw", "--dry-run")):
        made = sps(*command, "--slices=tpuv6e:2x2=1", "--jax-version=0.12.0.1")
        assert (made.returncode, made.stderr) == (0, "")
        jobset = next(one for one in yaml.safe_load_all(made.stdout) if one["kind"] == "JobSet")
        images = {
            container["image"]
            for job in jobset["spec"]["replicatedJobs"]
            for container in job["template"]["spec"]["template"]["spec"]["containers"]
        }
        assert images == {"us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:jax-0.12.0.1"}


def test_rules_are_bound_to_the_named_subjects() -> None:
    made = objects(
        "tenant-rbac", "--namespace=a", "--user=ada", "--group=g", "--service-account=b:robot"
    )
    bindings = [one for one in made if one["kind"].endswith("Binding")]
    for one in bindings:
        assert [s["name"] for s in one["subjects"]] == ["ada", "g", "robot"]
        assert one["subjects"][2]["namespace"] == "b"
    assert [one["metadata"].get("namespace") for one in bindings] == ["a", None]


def test_what_does_not_go_together_is_refused() -> None:
    for words, said in (
        ((), "--file"),
        (("nonsense",), "tenant-rbac"),
        (("service",), "--slices"),
        (("hotswap", "--file", "x"), "--file"),
        (("hotswap", "--name", "x"), "--name"),
        (("tenant-rbac", "--slices", "tpuv6e:2x2=1"), "--slices=['tpuv6e:2x2=1']"),
        (("hotswap", "--spares", "0"), "--spares=0"),
        (("service", "--user", "ada"), "--user=['ada']"),
        (("hotswap", "--service-account", "robot"), "--service-account=['robot']"),
        (("--file", str(EXAMPLE), "--namespace", "a"), "--namespace='a'"),
        (("tenant-rbac", "--namespace", "Team A"), "--namespace='Team A'"),
        (("service", "--slices", "tpuv6e:2x2=1", "--namespace", "A"), "--namespace='A'"),
        (("tenant-rbac", "--service-account", "robot"), "NAMESPACE:NAME"),
    ):
        done = render(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr


def test_servers_outside_of_google_cloud_are_rendered_with_plaintext() -> None:
    made = render("service", "--slices=tpuv6e:2x2=1", "--insecure-server-credentials", "--json")
    assert made.returncode == 0, made.stderr
    for job in json.loads(made.stdout)["spec"]["replicatedJobs"]:
        [container] = job["template"]["spec"]["template"]["spec"]["containers"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        name = "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS"
        assert variables[name] == "grpc_insecure_override"
    alone = render("tenant-rbac", "--insecure-server-credentials")
    assert alone.returncode == 2
    assert "--insecure-server-credentials" in alone.stderr


def test_permissions_for_pages_are_rendered_on_request() -> None:
    [role, *_] = yaml.safe_load_all(render("operator-rbac", "--ui").stdout)
    assert any("deployments" in rule["resources"] for rule in role["rules"])
    [role, *_] = yaml.safe_load_all(render("operator-rbac").stdout)
    assert not any("deployments" in rule["resources"] for rule in role["rules"])
    for words, said in (
        (("tenant-rbac", "--ui"), "--ui-identity"),
        (("operator-rbac", "--ui", "--ui-audience=a"), "--ui-audience"),
        (("service", "--slices=tpuv6e:2x2=1", "--ui-audience=a"), "only with --ui"),
        (("service", "--slices=tpuv6e:2x2=1", "--ui"), "--ui-identity"),
    ):
        done = render(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr


def test_a_deploy_or_an_upgrade_refuses_options_of_a_page_before_it_asks_a_cluster() -> None:
    for words, said in (
        (("deploy", "pw", "--slices=tpuv6e:2x2=1", "--ui"), "--ui-identity"),
        (("deploy", "pw", "--slices=tpuv6e:2x2=1", "--ui-audience=a"), "only with --ui"),
        (("upgrade", "pw", "--ui-audience=a"), "only with --ui"),
        (("upgrade", "pw", "--no-ui", "--ui-url=https://a.example/"), "only with --ui"),
    ):
        done = sps(*words, "--context=no-such-context")
        assert (done.returncode, done.stdout) == (2, ""), words
        assert said in done.stderr
