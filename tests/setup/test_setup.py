"""Set-up does its work once; a failure ends with one line: the cause and the next step."""

import os
import subprocess
import threading

import pytest
from scratch_clone import last_line, write_wheel


def assert_one_clear_line(result, *parts: str) -> None:
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for part in ("towpath: ", *parts):
        assert part in lines[0]


# ---- successful runs ----

def test_a_second_run_does_nothing(clone):
    first = clone.setup()
    assert first.returncode == 0, first.stderr
    assert "[2/4]" in first.stdout and "[3/4]" in first.stdout
    assert "1 MB to fetch" in first.stdout
    assert (clone.xla / "libtensorflow_cc.so.2").stat().st_size == 1000
    assert (clone.xla / "include/xla/shape.h").exists()
    assert (clone.root / "build/build.ninja").exists()

    second = clone.setup()
    assert second.returncode == 0
    assert second.stdout == "" and second.stderr == ""


def test_only_xla_is_unpacked_from_the_wheel(clone):
    clone.copy_ready_venv()
    assert clone.setup().returncode == 0
    unpacked = {str(path.relative_to(clone.xla))
                for path in clone.xla.rglob("*") if path.is_file()}
    assert unpacked == {"libtensorflow_cc.so.2", "libtensorflow_framework.so.2",
                        "include/xla/shape.h", "towpath-manifest"}
    assert sorted(os.listdir(clone.cache / "towpath")) == ["xla-2.21.0"]


def test_changed_requirements_recreate_the_venv(clone):
    clone.copy_ready_venv()
    write_wheel(clone.wheels, "tinypkg", "2.0", "py3-none-any",
                {"tinypkg.py": b"value = 2\n"})
    clone.pin_requirements("tinypkg==2.0")
    again = clone.setup()
    assert again.returncode == 0 and "[2/4]" in again.stdout
    value = subprocess.run(
        [clone.root / ".venv/bin/python", "-c", "import tinypkg; print(tinypkg.value)"],
        capture_output=True, text=True, check=True)
    assert value.stdout == "2\n"


def test_two_clones_set_up_at_once_share_one_download(clone):
    """Both succeed; the second waits for the lock, and then has nothing to do."""
    clone.copy_ready_venv()
    assert clone.setup().returncode == 0
    for name in ("one", "two"):
        subprocess.run(["cp", "-a", clone.root, clone.root.parent / name], check=True)
    subprocess.run(["rm", "-r", clone.xla], check=True)
    results = {}

    def run(name: str) -> None:
        results[name] = subprocess.run(
            [clone.root.parent / name / "scripts/setup.sh"],
            env=clone.environment, capture_output=True, text=True, check=False)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.returncode for result in results.values()] == [0, 0], results
    steps = sum("[3/4]" in result.stdout for result in results.values())
    assert steps == 1


def test_tow_xla_dir_moves_xla(clone, tmp_path):
    clone.copy_ready_venv()
    result = clone.setup(TOW_XLA_DIR=str(tmp_path / "mine"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "mine/libtensorflow_cc.so.2").exists()
    assert not (clone.cache / "towpath").exists()


def test_tow_xla_dir_with_other_files_is_refused(clone, tmp_path):
    clone.copy_ready_venv()
    precious = tmp_path / "mine/thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    result = clone.setup(TOW_XLA_DIR=str(precious.parent))
    assert_one_clear_line(result, "TOW_XLA_DIR", "empty or a new folder")
    assert precious.exists()


def test_a_missing_cache_folder_is_reported(clone):
    clone.copy_ready_venv()
    del clone.environment["XDG_CACHE_HOME"], clone.environment["HOME"]
    assert_one_clear_line(clone.setup(), "no cache folder", "TOW_XLA_DIR")


def test_pip_configuration_of_the_user_is_used(clone):
    """Here pip.conf names the folder of wheels; in other tests PIP_* variables do."""
    clone.copy_ready_venv()
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        del clone.environment[name]
    configuration = clone.root.parent / "pip.conf"
    configuration.write_text(f"[global]\nno-index = true\nfind-links = {clone.wheels}\n")
    result = clone.setup(PIP_CONFIG_FILE=str(configuration))
    assert result.returncode == 0, result.stderr


# ---- Debian packages ----

# Reports every package as installed, except cmocka's.
DPKG_QUERY_WITHOUT_CMOCKA = """
shift 3
for package; do
    [ "$package" = libcmocka-dev ] || echo "installed $package"
done
exit 1"""


def test_missing_package_prints_the_command_to_run(clone):
    clone.fake("dpkg-query", DPKG_QUERY_WITHOUT_CMOCKA)
    clone.fake("apt-get", "echo must not be run; exit 9")
    result = clone.setup(TOW_SETUP_UID="1000")
    assert_one_clear_line(result, "packages are missing", "sudo apt-get install -y")
    assert last_line(result).endswith("--no-install-recommends libcmocka-dev")


def test_missing_package_is_installed_when_run_as_root(clone):
    clone.copy_ready_venv()
    clone.fake("dpkg-query", DPKG_QUERY_WITHOUT_CMOCKA)
    clone.fake("apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{clone.root}/apt-calls')
    result = clone.setup(TOW_SETUP_UID="0")
    assert result.returncode == 0, result.stderr
    assert "[1/4]" in result.stdout and "libcmocka-dev" in result.stdout
    update, install = (clone.root / "apt-calls").read_text().splitlines()
    assert update.startswith("noninteractive") and update.endswith("update")
    assert install.startswith("noninteractive") and " -y " in install
    assert install.endswith("libcmocka-dev")


def test_failed_installation_names_the_cause_and_the_next_step(clone):
    clone.fake("dpkg-query", DPKG_QUERY_WITHOUT_CMOCKA)
    clone.fake("apt-get", "echo E: Failed to fetch something >&2; exit 100")
    result = clone.setup(TOW_SETUP_UID="0")
    assert_one_clear_line(result, "cannot be reached", "apt-get install",
                          "setup-packages.log")


def test_packages_of_check_are_required_only_by_check(clone):
    clone.copy_ready_venv()
    clone.fake("dpkg-query", 'shift 3; for p; do case $p in clang*) ;; '
                             '*) echo "installed $p" ;; esac; done')
    assert clone.setup(TOW_SETUP_UID="1000").returncode == 0
    result = clone.setup("check", TOW_SETUP_UID="1000")
    assert_one_clear_line(result, "clang-tidy")


def test_a_system_without_dpkg_is_reported(clone):
    """PATH has only the programs that set-up needs before dpkg-query."""
    for program in ("bash", "dirname", "mkdir", "flock", "env"):
        (clone.fakes / program).symlink_to(f"/usr/bin/{program}")
    result = clone.setup(PATH=str(clone.fakes))
    assert_one_clear_line(result, "not a Debian system", "TOW_SKIP_PACKAGES=1")


# ---- .venv ----

def break_python(clone):
    (clone.root / ".venv/bin/python").unlink()


def break_package(clone):
    next(clone.root.glob(".venv/lib/*/site-packages/tinypkg.py")).unlink()


@pytest.mark.parametrize("damage", [break_python, break_package])
def test_broken_venv_is_repaired(clone, damage):
    clone.copy_ready_venv()
    damage(clone)
    repaired = clone.setup()
    assert repaired.returncode == 0, repaired.stderr
    assert "[2/4]" in repaired.stdout
    subprocess.run([clone.root / ".venv/bin/python", "-c",
                    "import tinypkg; assert tinypkg.value == 1"], check=True)


def venv_faults(clone, *pins: str) -> list[str]:
    clone.pin_requirements(*pins)
    result = subprocess.run(
        [clone.root / ".venv/bin/python", "-I", "scripts/venv_is_whole.py",
         "scripts/requirements.txt"],
        cwd=clone.root, capture_output=True, text=True, check=False)
    assert (result.returncode != 0) == bool(result.stderr)
    return result.stderr.splitlines()


def test_venv_is_whole_finds_missing_changed_and_truncated_packages(clone):
    clone.copy_ready_venv()
    assert venv_faults(clone, "# comment", "tinypkg==1.0") == []
    assert venv_faults(clone, "tinypkg==1.1") == ["tinypkg is 1.0, not 1.1"]
    assert venv_faults(clone, "other==1.0") == ["other is not installed"]
    next(clone.root.glob(".venv/lib/*/site-packages/tinypkg.py")).write_text("")
    assert venv_faults(clone, "tinypkg==1.0") == [
        "tinypkg: tinypkg.py has 0 bytes, not 10"]


def test_python_without_venv_names_the_package_to_install(clone):
    clone.fake("python-bare", "exit 1")
    result = clone.setup(PYTHON=str(clone.fakes / "python-bare"))
    assert_one_clear_line(result, "python-bare", "apt-get install -y python3-venv")


def test_missing_python_is_named(clone):
    result = clone.setup(PYTHON="/no/such/python3")
    assert_one_clear_line(result, "/no/such/python3", "PYTHON=")


def test_unreachable_index_is_reported(clone, closed_port):
    del clone.environment["PIP_NO_INDEX"], clone.environment["PIP_FIND_LINKS"]
    result = clone.setup(PIP_INDEX_URL=f"http://127.0.0.1:{closed_port}/",
                         PIP_RETRIES="0")
    assert_one_clear_line(result, ".venv failed", "check the network",
                          "setup-venv.log")
    assert not (clone.root / ".venv/towpath-stamp").exists()


# ---- XLA ----

def test_unreachable_index_for_xla_is_reported(clone):
    clone.copy_ready_venv()
    clone.xla_wheel.unlink()
    result = clone.setup()
    assert_one_clear_line(result, "fetching XLA", "check the network",
                          "setup-xla.log")
    assert sorted(os.listdir(clone.cache / "towpath")) == []


def test_corrupted_wheel_is_refused_and_leaves_nothing(clone):
    clone.copy_ready_venv()
    damaged = bytearray(clone.xla_wheel.read_bytes())
    damaged[200] ^= 1
    clone.xla_wheel.write_bytes(damaged)
    result = clone.setup()
    assert_one_clear_line(result, "fetching XLA", "not the file that is pinned",
                          "setup-xla.log")
    assert sorted(os.listdir(clone.cache / "towpath")) == []

    damaged[200] ^= 1
    clone.xla_wheel.write_bytes(damaged)
    assert clone.setup().returncode == 0


def test_wheel_without_xla_is_refused(clone):
    """The pinned wheel does not contain XLA."""
    clone.copy_ready_venv()
    clone.make_xla_wheel(0, members={"tensorflow/python/x.py": b""})
    result = clone.setup()
    assert_one_clear_line(result, "fetching XLA", "corrupt")


def test_damaged_xla_is_fetched_again(clone):
    clone.copy_ready_venv()
    assert clone.setup().returncode == 0
    os.truncate(clone.xla / "libtensorflow_cc.so.2", 10)
    again = clone.setup()
    assert again.returncode == 0 and "[3/4]" in again.stdout
    assert (clone.xla / "libtensorflow_cc.so.2").stat().st_size == 1000


def test_remains_of_interrupted_unpacking_are_removed(clone):
    clone.copy_ready_venv()
    leftover = clone.cache / "towpath/.unpacking.killed"
    leftover.mkdir(parents=True)
    (leftover / "part").write_bytes(b"x" * 100)
    assert clone.setup().returncode == 0
    assert not leftover.exists()


def test_full_disk_is_reported_before_the_download(clone):
    clone.copy_ready_venv()
    clone.pin_xla("0" * 64, unpacked_mb=10**9)
    result = clone.setup()
    assert_one_clear_line(result, "disk is full", str(clone.cache), "TOW_XLA_DIR")


def test_disk_that_fills_up_while_unpacking_is_reported(clone, small_disk):
    """The pin states a smaller size than the wheel has, so only writing can fail."""
    clone.copy_ready_venv()
    clone.make_xla_wheel(library_bytes=5 << 20)
    clone.environment["XDG_CACHE_HOME"] = str(small_disk)
    result = clone.setup()
    assert_one_clear_line(result, "fetching XLA", "disk is full", "setup-xla.log")
    assert sorted(os.listdir(small_disk / "towpath")) == []


def test_disk_that_fills_up_while_creating_the_venv_is_reported(clone, small_disk):
    (clone.root / ".venv").symlink_to(small_disk)
    result = clone.setup()
    assert_one_clear_line(result, ".venv failed", "disk is full", "setup-venv.log")


# ---- the build folder ----

def test_moved_clone_is_configured_again(clone):
    clone.copy_ready_venv()
    assert clone.setup().returncode == 0
    moved = clone.root.rename(clone.root.parent / "moved")
    result = subprocess.run([moved / "scripts/setup.sh"], env=clone.environment,
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    info = (moved / "build/meson-info/meson-info.json").read_text()
    assert str(moved) in info


def test_build_folder_configured_by_hand_is_not_changed(clone):
    clone.copy_ready_venv()
    subprocess.run(["meson", "setup", "build", "--buildtype=release"],
                   cwd=clone.root, capture_output=True, check=True)
    mine = clone.root / "build/mine"
    mine.touch()
    assert clone.setup().returncode == 0
    assert mine.exists()


def test_failed_configuration_shows_the_error_of_meson(clone):
    clone.copy_ready_venv()
    (clone.root / "meson.build").write_text("project('scratch')\nerror('no luck')\n")
    result = clone.setup()
    assert_one_clear_line(result, "meson setup", "no luck", "configure-build.log")
