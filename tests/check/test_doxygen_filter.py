"""scripts/doxygen_filter.py turns plain comments of a header into Doxygen comments."""

HEADER = """\
/* What it is for: <a> & "b". */
#ifndef X_H_
#define X_H_

/* Hidden from readers. */
#pragma GCC visibility push(default)

/* -- Arrays ------- */

/* Copies `a < b`. */
int copy(int a);
int size(void); /* bytes */
#endif /* X_H_ */
"""


def test_comments_are_marked_by_their_position(tree):
    tree.write("x.h", HEADER)
    done = tree.run("doxygen_filter.py", str(tree.root / "x.h"))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert text.startswith("/** @file\n What it is for: \\<a\\> & `\"b\"`. */")
    assert "\n/* Hidden from readers. */\n#pragma" in text
    assert "/** @defgroup arrays Arrays\n@{ */" in text
    assert "/** Copies `a < b`. */\nint copy" in text
    assert "int size(void); /**< bytes */" in text
    assert "#endif /* X_H_ */" in text
    assert text.endswith("/** @} */\n")


def test_a_missing_argument_is_a_usage_error(tree):
    result = tree.run("doxygen_filter.py")
    assert result.returncode == 2 and "usage" in result.stderr
