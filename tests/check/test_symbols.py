"""scripts/check_symbols.py: no two modules define the same external name."""

import pytest

DEFINITIONS = {
    "function": ("a.c", "int tow_map_get(int key)\n{\n    return key;\n}\n"),
    "function over two lines": (
        "a.c", "const char *tow_map_get(int key,\n                        int other)\n{\n    return 0;\n}\n"),
    "struct": ("a.h", "typedef struct tow_map {\n    int size;\n} tow_map_t;\n"),
    "alias": ("a.h", "typedef struct map tow_map_t;\n"),
    "function type": ("a.h", "typedef void (*tow_map_get)(int key);\n"),
    "macro": ("a.h", "#define TOW_MAP_MAX 5\n"),
    "struct of a folder with the prefix": ("a_impl.h", "struct tow_map {\n    int size;\n};\n"),
}


@pytest.mark.parametrize("name, text", DEFINITIONS.values(), ids=DEFINITIONS)
def test_two_modules_may_not_define_the_same_name(tree, name, text):
    tree.write(f"src/base/{name}", text)
    tree.write(f"src/base/sub/{name}", text)
    assert tree.faults("check_symbols.py") == []
    tree.write(f"src/wire/{name}", text)
    faults = tree.faults("check_symbols.py")
    assert faults and all(f"src/wire/{name}" in fault for fault in faults)


ALLOWED = {
    "static function": ("a.c", "static int get(int key)\n{\n    return key;\n}\n"),
    "declaration": ("a.h", "int tow_map_get(int key);\n"),
    "private type": ("a_impl.h", "typedef struct run {\n    int id;\n} run_t;\n"),
    "fixture": ("world_testing.h", "typedef struct world {\n    int id;\n} tow_world_t;\n"),
    "test": ("a_test.c", "int main(void)\n{\n    return 0;\n}\n"),
    "main": ("a.c", "int main(void)\n{\n    return 0;\n}\n"),
    "comment": ("a.h", "/* typedef struct map tow_map_t; */\n"),
}


@pytest.mark.parametrize("name, text", ALLOWED.values(), ids=ALLOWED)
def test_private_names_may_repeat(tree, name, text):
    tree.write(f"src/base/{name}", text)
    tree.write(f"src/wire/{name}", text)
    assert tree.faults("check_symbols.py") == []
