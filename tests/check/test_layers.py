"""scripts/check_layers.py accepts and rejects includes."""

import pytest


def layers(tree) -> list[str]:
    return tree.faults("check_layers.py")


def test_includes_that_point_down_pass(tree):
    tree.write("include/towpath/towpath.h", "#include <towpath/status.h>\n")
    tree.write("include/towpath/status.h", "#include <stdint.h>\n")
    tree.write("src/base/log.h", '#include "towpath/status.h"\n')
    tree.write("src/wire/frame.c", '#include "frame_impl.h"\n#include "base/log.h"\n')
    tree.write("src/wire/frame_impl.h", "")
    tree.write("src/env/net/tcp.c", '#include "wire/frame.h"\n#include "env/env.h"\n')
    tree.write("src/version.c", '#include "base/log.h"\n')
    tree.write("examples/hello.c", "#include <towpath/towpath.h>\n")
    assert layers(tree) == []


@pytest.mark.parametrize("includer, included", [
    ("base", "env"), ("base", "wire"), ("wire", "env"), ("store", "sched"),
    ("sched", "client"), ("client", "tool")])
def test_include_that_points_up_fails(tree, includer, included):
    tree.write(f"src/{includer}/a.c", f'\n  #  include "{included}/b.h"\n')
    [fault] = layers(tree)
    assert fault.startswith(f"src/{includer}/a.c:2: includes {included}/b.h: ")


def test_relative_include_is_checked(tree):
    tree.write("src/env/env.h", "")
    tree.write("src/base/a.c", '#include "../env/env.h"\n')
    [fault] = layers(tree)
    assert "env comes after base" in fault


def test_generated_header_is_checked(tree):
    tree.write("src/base/a.c", '#include "wire/control.pb.h"\n')
    assert len(layers(tree)) == 1


def test_impl_header_stays_in_its_folder(tree):
    tree.write("src/base/map_impl.h", "")
    tree.write("src/base/map_test.c", '#include "base/map_impl.h"\n')
    assert layers(tree) == []
    tree.write("src/env/a.c", '#include "base/map_impl.h"\n')
    tree.write("tests/integration/b.c", '#include "base/map_impl.h"\n')
    assert [fault.split(":")[0] for fault in layers(tree)] == [
        "src/env/a.c", "tests/integration/b.c"]


def test_examples_and_public_headers_include_public_headers_only(tree):
    tree.write("examples/hello.c", '#include "base/log.h"\n')
    tree.write("include/towpath/towpath.h", '#include "base/log.h"\n')
    assert len(layers(tree)) == 2


def test_module_without_a_layer_fails(tree):
    tree.write("src/util/a.c", "")
    [fault] = layers(tree)
    assert "src/util is in no layer" in fault


def test_includes_outside_the_tree_pass(tree):
    tree.write("src/base/a.c", '#include <time.h>\n#include "cmocka.h"\n')
    assert layers(tree) == []
