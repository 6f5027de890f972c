"""scripts/check_source.py. Forbidden words are assembled at run time, because this
file is checked too."""

import pytest

NOTES = ["TO" + "DO", "FIX" + "ME", "XX" + "X"]


@pytest.mark.parametrize("note", NOTES)
def test_note_needs_a_reason(tree, note):
    tree.write("src/a.c", f"/* {note}(the peer cannot say it yet): ask. */\n")
    assert tree.faults("check_source.py", "todo") == []
    tree.write("src/b.c", f"\n/* {note}: later */\n")
    tree.write("scripts/c.py", f"# {note}() no reason\n")
    faults = tree.faults("check_source.py", "todo")
    assert [fault.split(": ")[0] for fault in faults] == [
        "scripts/c.py:1", "src/b.c:2"]


def test_longer_words_are_not_notes(tree):
    tree.write("src/a.c", 'char name[] = "/tmp/x-' + "X" * 6 + '";\n')
    assert tree.faults("check_source.py", "todo") == []


IMPURE = ["#include <time.h>", "#include <sys/socket.h>", "#include <pthread.h>",
          "now = clock_gettime(id, &time);", "x = rand();", "usleep (5);",
          "if (getrandom(b, 32, 0) < 0) return;"]


@pytest.mark.parametrize("line", IMPURE)
def test_state_machine_may_not_bypass_the_environment(tree, line):
    tree.write("src/sched/gang.c", f"int a;\n{line}\n")
    [fault] = tree.faults("check_source.py", "purity")
    assert fault.startswith("src/sched/gang.c:2: ")


@pytest.mark.parametrize("folder", ["base", "env/net", "device/sim", "tool"])
def test_modules_on_the_list_may_bypass_the_environment(tree, folder):
    tree.write(f"src/{folder}/a.c", "\n".join(IMPURE))
    assert tree.faults("check_source.py", "purity") == []


def test_comments_strings_and_methods_are_ignored(tree):
    tree.write("src/sched/gang.c", "\n".join([
        "/* usleep(5) would be wrong", "   and so would rand() */",
        'log("clock_gettime() failed");', "// nanosleep(x)",
        "env->random(env);", "ops.sleep(1);", "tow_random(env);",
        "send(self, message);"]))
    assert tree.faults("check_source.py", "purity") == []


def test_exception_needs_a_reason(tree):
    tree.write("src/wire/a.c", "RAND_bytes(t, 32); /* tow-allow: keys */\n"
                               "RAND_bytes(t, 32); /* tow-allow: */\n")
    [fault] = tree.faults("check_source.py", "purity")
    assert fault.startswith("src/wire/a.c:2: ")


@pytest.mark.parametrize("text", [
    "/" + "root/.cache", "cd /" + "work/main", "/home/" + "someone/src/",
    "https://" + "pypi" + ".org/simple", "http://deb." + "debian" + ".org/x"])
def test_machine_paths_and_registry_hosts_fail(tree, text):
    tree.write("docs/a.md", f"fine\n{text}\n")
    [fault] = tree.faults("check_source.py", "paths")
    assert fault.startswith("docs/a.md:2: ")


def test_other_paths_pass(tree):
    tree.write("docs/a.md", "$root/build src/work/x.c ${XDG_CACHE_HOME}/towpath "
                            "/usr/bin/python3 /tmp/stage www.debian" + ".org\n")
    assert tree.faults("check_source.py", "paths") == []


def test_unknown_rule_is_a_usage_error(tree):
    result = tree.run("check_source.py", "nonsense")
    assert result.returncode == 2 and "usage" in result.stderr
