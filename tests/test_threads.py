"""How many threads a call uses: argument, context, setting, environment, cores, affinity, quota."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import support

from fast_attention import _threads, get_num_threads, set_num_threads, threads

EIGHT = frozenset(range(8))
COUNT = "import fast_attention as f; print(f.get_num_threads())"
V2_MOUNT = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
V1_MOUNT = "33 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture(autouse=True)
def default_setting():
    yield
    set_num_threads(None)


def fake(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="surrogateescape")
    return tmp_path


def v2(path="/", mount=V2_MOUNT, files=()):
    found = {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": f"{mount}\n"}
    return found | {f"sys/fs/cgroup/{k}": v for k, v in dict(files).items()}


def v1(path="/", mount=V1_MOUNT, files=()):
    group = f"4:memory:/m\n3:cpu,cpuacct:{path}\n1:name=systemd:/s\n"
    found = {"proc/self/cgroup": group, "proc/self/mountinfo": f"{mount}\n"}
    return found | {f"sys/fs/cgroup/cpu,cpuacct/{k}": v for k, v in dict(files).items()}


def quota_v1(folder, quota, period):
    return {f"{folder}cpu.cfs_quota_us": f"{quota}\n", f"{folder}cpu.cfs_period_us": f"{period}\n"}


QUOTAS = {
    "v2 two CPUs": (v2(files={"cpu.max": "200000 100000\n"}), 2),
    "v2 without a limit": (v2(files={"cpu.max": "max 100000\n"}), None),
    "v2 without a period": (v2(files={"cpu.max": "250000\n"}), 2.5),
    "v2 half a CPU": (v2(files={"cpu.max": "50000 100000\n"}), 0.5),
    "v2 other period": (v2(files={"cpu.max": "150000 50000"}), 3),
    "v2 in a nested group": (v2("/a/b", files={"a/b/cpu.max": "100000 100000\n"}), 1),
    "v2 parent limits": (v2("/a/b", files={
        "a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}), 3),
    "v2 strictest of all": (v2("/a/b", files={
        "cpu.max": "700000 100000", "a/cpu.max": "200000 100000", "a/b/cpu.max": "500000 100000",
    }), 2),
    "v2 no file": (v2("/a", files={}), None),
    "v2 empty file": (v2(files={"cpu.max": ""}), None),
    "v2 nonsense": (v2(files={"cpu.max": "many 100000\n"}), None),
    "v2 zero": (v2(files={"cpu.max": "0 100000\n"}), None),
    "v2 zero period": (v2(files={"cpu.max": "100000 0\n"}), None),
    "v2 negative": (v2(files={"cpu.max": "-1 100000\n"}), None),
    "v2 mounted from its own group": (
        v2("/docker/x", V2_MOUNT.replace(" / /sys", " /docker/x /sys"),
           files={"cpu.max": "400000 100000\n"}), 4),
    "v2 in a private namespace": (v2("/../..", files={"cpu.max": "400000 100000\n"}), 4),
    "v2 hybrid without cpu": ({
        "proc/self/cgroup": "1:cpu:/a\n0::/x\n",
        "proc/self/mountinfo": f"{V2_MOUNT.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}\n"
        f"{V1_MOUNT}\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "600000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
    }, 6),
    "v2 unreadable": (v2(files={"cpu.max/is a folder": ""}), None),
    "v2 not text": (v2(files={"cpu.max": "\x00\udcff 100000\n"}), None),
    "v2 three words": (v2(files={"cpu.max": "200000 100000 7\n"}), None),
    "v2 fractions": (v2(files={"cpu.max": "1.5 1\n"}), None),
    "v2 numbers beyond 64 bits": (v2(files={"cpu.max": f"{10**30} 100000\n"}), None),
    "v2 group with a colon and a space": (
        v2("/a: b", files={"a: b/cpu.max": "100000 100000\n"}), 1),
    "v2 mount point with a space": (
        v2(mount=V2_MOUNT.replace("/sys/fs/cgroup", r"/sys/fs/c\040group"), files={}) | {
            "sys/fs/c group/cpu.max": "200000 100000\n"}, 2),
    "v2 below a group with a backslash": (
        v2(r"/m\x2d1.scope/a", V2_MOUNT.replace(" / /sys", r" /m\134x2d1.scope /sys"),
           files={"a/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}), 3),
    "v2 group with a NUL": (v2("/a\0b", files={"cpu.max": "100000 100000\n"}), 1),
    "v2 group that has been removed": (
        v2("/gone (deleted)", files={"cpu.max": "300000 100000\n"}), 3),
    "v1 and v2 both limit": (v1(files=quota_v1("", 400000, 100000)) | {
        "proc/self/cgroup": "3:cpu,cpuacct:/\n0::/\n",
        "proc/self/mountinfo": f"{V1_MOUNT}\n"
        f"{V2_MOUNT.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')}\n",
        "sys/fs/cgroup/unified/cpu.max": "200000 100000\n"}, 2),
    "v1 quota that is no number": (v1(files=quota_v1("", "max", 100000)), None),
    "v1 two CPUs": (v1(files=quota_v1("", 200000, 100000)), 2),
    "v1 without a limit": (v1(files=quota_v1("", -1, 100000)), None),
    "v1 nested": (v1("/docker/x", files=quota_v1("docker/x/", 150000, 100000)), 1.5),
    "v1 parent limits": (v1("/a/b", files=quota_v1("a/b/", -1, 100000)
                            | quota_v1("a/", 300000, 100000)), 3),
    "v1 mounted from its own group": (
        v1("/docker/x", V1_MOUNT.replace(" / /sys", " /docker/x /sys"),
           quota_v1("", 100000, 50000)), 2),
    "v1 seen from a container with the host's path": (
        v1("/docker/x", files=quota_v1("", 100000, 50000)), 2),
    "v1 no period": (v1(files={"cpu.cfs_quota_us": "100000"}), None),
    "v1 cpuset is another controller": ({
        "proc/self/cgroup": "3:cpuset:/\n",
        "proc/self/mountinfo": V1_MOUNT.replace("cpu,cpuacct", "cpuset") + "\n",
        "sys/fs/cgroup/cpuset/cpu.cfs_quota_us": "100000",
        "sys/fs/cgroup/cpuset/cpu.cfs_period_us": "100000",
    }, None),
    "no control groups": ({}, None),
    "empty files": ({"proc/self/cgroup": "", "proc/self/mountinfo": ""}, None),
    "broken lines": ({"proc/self/cgroup": "0\nx:y\n\n", "proc/self/mountinfo": "1 2\n - \n"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("files", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_quota_of_control_groups_is_read_in_every_shape(tmp_path, files, quota):
    assert _threads.cpu_quota(fake(tmp_path, files)) == quota


@pytest.mark.parametrize(
    ("limit", "count"), [("250000 100000", 2), ("50000 100000", 1), ("max 1", 8), ("9900000", 8)]
)
def test_threads_are_the_whole_cpus_of_the_quota_and_at_least_one(tmp_path, limit, count):
    root = fake(tmp_path, v2(files={"cpu.max": limit}))
    assert _threads.usable_cores(root, EIGHT)[0] == count


def topology(pairs, name="thread_siblings_list"):
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/{name}": f"{siblings}\n"
        for siblings in pairs
        for cpu in (int(c) for c in siblings.replace("-", ",").split(","))
    }


@pytest.mark.parametrize("name", ["thread_siblings_list", "core_cpus_list"])
@pytest.mark.parametrize(
    ("pairs", "cpus", "count"),
    [
        (["0,4", "1,5", "2,6", "3,7"], EIGHT, 4),
        (["0-1", "2-3", "4-5", "6-7"], EIGHT, 4),
        (["0-1", "2-3"], {0, 2}, 2),
        (["0-1", "2-3"], {0, 1}, 1),
        (["0", "1"], {0, 1}, 2),
        ([], {0, 1, 2}, 3),
        (["0-1"], {0, 1, 2, 3}, 3),
    ],
)
def test_threads_are_the_physical_cores_within_affinity(tmp_path, name, pairs, cpus, count):
    root = fake(tmp_path, topology(pairs, name))
    assert _threads.usable_cores(root, frozenset(cpus))[0] == count


def test_smaller_of_quota_and_affinity_counts(tmp_path):
    root = fake(tmp_path, v2(files={"cpu.max": "300000 100000"}))
    assert _threads.usable_cores(root, EIGHT)[0] == 3
    assert _threads.usable_cores(root, frozenset({5, 6}))[0] == 2


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"FAST_ATTENTION_NUM_THREADS": "3"}, 3),
        ({"FAST_ATTENTION_NUM_THREADS": " 5 ", "OMP_NUM_THREADS": "2"}, 5),
        ({"FAST_ATTENTION_NUM_THREADS": "", "OMP_NUM_THREADS": "6"}, 6),
    ],
)
def test_environment_counts_before_the_machine(tmp_path, environment, count):
    assert _threads.default_count(environment, tmp_path)[0] == count


def test_machine_counts_where_the_environment_says_nothing(tmp_path):
    root = fake(tmp_path, v2(files={"cpu.max": "100000 100000"}))
    assert _threads.default_count({}, root)[0] == 1


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "3,2", "1e3", "٣", "99999999999"])
def test_invalid_variable_is_an_error_that_says_what_is_valid(text):
    child = support.run_python(COUNT, FAST_ATTENTION_NUM_THREADS=text)
    assert child.returncode != 0
    assert "FAST_ATTENTION_NUM_THREADS" in child.stderr
    assert "ValueError" in child.stderr


@pytest.mark.parametrize("count", [1, 3, 17])
def test_variable_sets_the_default_of_a_process(count):
    child = support.run_python(COUNT, FAST_ATTENTION_NUM_THREADS=str(count))
    assert child.stdout == f"{count}\n", child.stderr


def test_affinity_of_the_process_limits_the_default():
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); " + COUNT
    if not hasattr(_threads.os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    child = support.run_python(code, OMP_NUM_THREADS=None)
    assert child.stdout == "1\n", child.stderr


def test_argument_wins_over_context_over_setting():
    set_num_threads(5)
    assert get_num_threads() == _threads.resolve(None) == 5
    with threads(3):
        assert get_num_threads() == 3
        with threads(7):
            assert get_num_threads() == 7
            assert _threads.resolve(2) == 2
        assert get_num_threads() == 3
    assert get_num_threads() == 5
    set_num_threads(None)
    assert get_num_threads() == _threads.current()[0]


def test_context_ends_with_an_exception():
    before = get_num_threads()
    with pytest.raises(KeyError), threads(before + 3):
        raise KeyError
    assert get_num_threads() == before


def test_context_belongs_to_its_thread():
    before = get_num_threads()
    with threads(before + 3), ThreadPoolExecutor(1) as pool:
        inherited = before + 3 if support.THREADS_INHERIT_CONTEXT else before
        assert pool.submit(get_num_threads).result() == inherited
        assert contextvars.copy_context().run(get_num_threads) == before + 3
    seen = []
    start, done = threading.Event(), threading.Event()

    def other():
        with threads(before + 9):
            start.set()
            done.wait(10)
            seen.append(get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    start.wait(10)
    assert get_num_threads() == before
    done.set()
    thread.join()
    assert seen == [before + 9]


def test_one_context_object_may_be_entered_twice():
    context = threads(4)
    with context:
        with context:
            assert get_num_threads() == 4
        assert get_num_threads() == 4


def test_blocks_that_end_in_another_order_each_end_their_own_limit():
    def block(n):
        with threads(n):
            yield

    before = get_num_threads()
    first, second = block(before + 2), block(before + 3)
    next(first), next(second)
    first.close()
    assert get_num_threads() == before + 3
    second.close()
    assert get_num_threads() == before


def test_block_that_ends_in_another_context_is_no_error():
    before = get_num_threads()
    context = threads(before + 2)
    contextvars.copy_context().run(context.__enter__)
    context.__exit__(None, None, None)
    assert get_num_threads() == before


@pytest.mark.parametrize("call", [set_num_threads, threads, _threads.resolve])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-2, ValueError), (1.0, TypeError), ("2", TypeError), (True, TypeError)],
)
def test_counts_must_be_positive_integers(call, value, error):
    with pytest.raises(error, match="at least 1"):
        call(value)
