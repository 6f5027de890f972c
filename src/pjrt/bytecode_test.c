#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "pjrt/bytecode.h"

/* Numbers below 128 are one byte. */
#define V(n) (char)((n) << 1 | 1)

#define HEAD 'M', 'L', '\xef', 'R', V(6), 'x', '\0'
/* Two strings, and the sizes of the last one first. */
#define STRINGS                                                            \
    0, V(16), V(2), V(5), V(8), 'b', 'u', 'i', 'l', 't', 'i', 'n', 0, 'v', \
        'h', 'l', 'o', 0
/* vhlo has a version, a section of two bytes; then builtin. */
#define DIALECTS 1, V(7), V(2), V(1 << 1 | 1), 7, V(2), 9, 9, V(0 << 1)
/* One attribute of vhlo; types: its number 24, which is its own business, and
 * of builtin the numbers 24 and 5. */
#define ENTRIES 2, V(4), V(24), V(24), V(24), V(5)
#define OFFSETS                                                           \
    3, V(12), V(1), V(3), V(0), V(1), V(3), V(0), V(1), V(3), V(1), V(2), \
        V(3), V(3)

static const char program[] = {HEAD, STRINGS, DIALECTS, ENTRIES, OFFSETS};

static tow_bytes_t bytes_of(const char *bytes, size_t size)
{
    return (tow_bytes_t){bytes, size};
}

static void builtin_types_become_text(void **state)
{
    static const char spelled[] = {
        HEAD, STRINGS, DIALECTS, 2,    V(12), V(24),     V(24), 'f',
        '8',  'E',     '4',      'M',  '3',   'F',       'N',   0,
        V(5), 3,       V(12),    V(1), V(3),  V(0),      V(1),  V(3),
        V(0), V(1),    V(3),     V(1), V(2),  V(9 << 1), V(3)};
    size_t size;
    void *made = tow_bytecode_spell(bytes_of(program, sizeof(program)), &size);
    assert_non_null(made);
    assert_int_equal(size, sizeof(spelled));
    assert_memory_equal(made, spelled, size);
    size_t again;
    assert_null(tow_bytecode_spell(bytes_of(made, size), &again));
    tow_free(made);
}

static void sections_keep_their_alignment(void **state)
{
    char aligned[sizeof(program) + 32];
    size_t size = sizeof(program);
    memcpy(aligned, program, size);
    aligned[size++] = (char)(4 | 0x80);
    aligned[size++] = V(3);
    aligned[size++] = V(8);
    while (size % 8 != 0)
        aligned[size++] = (char)0xcb;
    memcpy(aligned + size, "ir!", 3);
    size += 3;
    size_t made_size;
    char *made = tow_bytecode_spell(bytes_of(aligned, size), &made_size);
    assert_non_null(made);
    assert_int_equal((made_size - 3) % 8, 0);
    assert_memory_equal(made + made_size - 3, "ir!", 3);
    tow_free(made);
}

/* Copies of exact size, so that a sanitizer sees who reads past the end. */
static void truncated_programs_are_left_unchanged(void **state)
{
    for (size_t size = 0; size < sizeof(program); size++) {
        char *cut = tow_malloc(size + 1);
        size_t made_size;
        memcpy(cut, program, size);
        char *exact = tow_realloc(cut, size > 0 ? size : 1);
        assert_null(tow_bytecode_spell(bytes_of(exact, size), &made_size));
        tow_free(exact);
    }
    for (size_t i = 0; i < sizeof(program); i++)
        for (int value = 0; value < 256; value += 5) {
            char *changed = tow_malloc(sizeof(program));
            size_t made_size;
            memcpy(changed, program, sizeof(program));
            changed[i] = (char)value;
            tow_free(tow_bytecode_spell(bytes_of(changed, sizeof(program)),
                                        &made_size));
            tow_free(changed);
        }
    size_t size;
    assert_null(tow_bytecode_spell(bytes_of("module {}", 9), &size));
}

TOW_TEST_MAIN(cmocka_unit_test(builtin_types_become_text),
              cmocka_unit_test(sections_keep_their_alignment),
              cmocka_unit_test(truncated_programs_are_left_unchanged))
