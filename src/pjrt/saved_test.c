#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "pjrt/saved.h"

static tow_bytes_t pack(const char *program, const char *options)
{
    void *bytes;
    size_t size;
    tow_status_t status =
        tow_saved_pack(&(tow_saved_t){.program = {program, strlen(program)},
                                      .options = {options, strlen(options)}},
                       &bytes, &size);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return (tow_bytes_t){bytes, size};
}

static void expect_refused(tow_bytes_t bytes, const char *why)
{
    tow_saved_t saved;
    tow_status_t status = tow_saved_unpack(bytes, &saved);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    if (strstr(tow_status_message(status), why) == NULL)
        fail_msg("%s", tow_status_message(status));
    tow_status_release(status);
}

static void what_was_saved_comes_back(void **state)
{
    static const char *const texts[][2] = {
        {"a program", "options"}, {"a program", ""}, {"", ""}};
    for (size_t i = 0; i < 3; i++) {
        tow_bytes_t bytes = pack(texts[i][0], texts[i][1]);
        tow_saved_t saved;
        assert_true(tow_saved_unpack(bytes, &saved) == TOW_OK);
        assert_int_equal(saved.program.size, strlen(texts[i][0]));
        assert_memory_equal(saved.program.data, texts[i][0],
                            saved.program.size);
        assert_int_equal(saved.options.size, strlen(texts[i][1]));
        assert_memory_equal(saved.options.data, texts[i][1],
                            saved.options.size);
        tow_free((void *)bytes.data);
    }
}

static void a_part_of_it_is_refused(void **state)
{
    tow_bytes_t bytes = pack("a program", "options");
    for (size_t size = 0; size < 32; size++)
        expect_refused((tow_bytes_t){bytes.data, size}, "another platform");
    for (size_t size = 32; size < bytes.size; size++)
        expect_refused((tow_bytes_t){bytes.data, size}, "not complete");
    tow_free((void *)bytes.data);
}

static void a_changed_byte_is_noticed(void **state)
{
    tow_bytes_t bytes = pack("a program", "options");
    uint8_t *mutable = (uint8_t *)bytes.data;
    for (size_t i = 0; i < bytes.size; i++) {
        mutable[i] ^= 0x40;
        expect_refused(bytes, i < 8    ? "another platform"
                              : i < 12 ? "compile it again"
                              : i < 16 ? "checksum"
                              : i < 32 ? "not complete"
                                       : "checksum");
        mutable[i] ^= 0x40;
    }
    tow_free(mutable);
}

static void other_bytes_are_refused(void **state)
{
    expect_refused((tow_bytes_t){NULL, 0}, "0 bytes");
    expect_refused((tow_bytes_t){"\x7f"
                                 "ELF, surely of another platform than ours",
                                 40},
                   "another platform");
}

TOW_TEST_MAIN(cmocka_unit_test(what_was_saved_comes_back),
              cmocka_unit_test(a_part_of_it_is_refused),
              cmocka_unit_test(a_changed_byte_is_noticed),
              cmocka_unit_test(other_bytes_are_refused))
