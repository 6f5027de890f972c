#include "base/testing.h"

#include <string.h>

#include "wire/text_impl.h"

static void quoting_keeps_ascii_and_escapes_the_rest(void **state)
{
    char text[64];
    const char bytes[] = "a\"\\\n\r\t\x1b\x00\x7f\xc3z";
    assert_string_equal(
        tow_text_quote(bytes, sizeof(bytes) - 1, text, sizeof(text)),
        "\"a\\\"\\\\\\n\\r\\t\\x1b\\x00\\x7f\\xc3z\"");
    assert_string_equal(tow_text_quote("", 0, text, sizeof(text)), "\"\"");
}

static void quoting_never_leaves_its_room(void **state)
{
    char bytes[256];
    memset(bytes, 1, sizeof(bytes));
    for (size_t capacity = 8; capacity < 64; capacity++) {
        char text[80];
        memset(text, '#', sizeof(text));
        tow_text_quote(bytes, sizeof(bytes), text, capacity);
        assert_true(strlen(text) < capacity);
        assert_int_equal(text[capacity], '#');
        assert_non_null(strstr(text, "...\""));
    }
    char text[TOW_QUOTED_SIZE(sizeof(bytes))];
    tow_text_quote(bytes, sizeof(bytes), text, sizeof(text));
    assert_null(strstr(text, "..."));
}

static void shell_words_are_quoted_only_where_needed(void **state)
{
    char text[64];
    assert_string_equal(
        tow_text_quote_for_shell("/run/tow-1/token", text, sizeof(text)),
        "/run/tow-1/token");
    assert_string_equal(
        tow_text_quote_for_shell("my token's $x", text, sizeof(text)),
        "'my token'\\''s $x'");
    assert_string_equal(tow_text_quote_for_shell("", text, sizeof(text)), "''");
    char small[8];
    tow_text_quote_for_shell("a a a a a a a a", small, sizeof(small));
    assert_true(strlen(small) < sizeof(small));
}

static void names_are_letters_digits_and_four_signs(void **state)
{
    assert_true(tow_text_is_name("worker/3", 8, 63));
    assert_true(tow_text_is_name("A-z_0.9/", 8, 63));
    assert_false(tow_text_is_name("", 0, 63));
    assert_false(tow_text_is_name("abcd", 4, 3));
    const char bad[] = " \n\"\\:;$@~\x7f\x80\xff";
    for (size_t i = 0; i < sizeof(bad); i++) /* the NUL too */
        assert_false(tow_text_is_name(bad + i, 1, 63));
}

static void plain_text_is_printable_ascii(void **state)
{
    assert_true(tow_text_is_plain("towpath 0.1.0 ~", 15));
    assert_false(tow_text_is_plain("a\nb", 3));
    assert_false(tow_text_is_plain("\x7f", 1));
    assert_false(tow_text_is_plain("\xc3\xa4", 2));
}

TOW_TEST_MAIN(cmocka_unit_test(quoting_keeps_ascii_and_escapes_the_rest),
              cmocka_unit_test(quoting_never_leaves_its_room),
              cmocka_unit_test(shell_words_are_quoted_only_where_needed),
              cmocka_unit_test(names_are_letters_digits_and_four_signs),
              cmocka_unit_test(plain_text_is_printable_ascii))
