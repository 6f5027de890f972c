#include "base/testing.h"

#include <string.h>

#include "base/escape_impl.h"

static const char *escape(tow_escape_style_t style, const char *text)
{
    static char out[256];
    size_t length = 0;
    while (*text != '\0')
        length += tow_escape_next(style, &text, out + length);
    out[length] = '\0';
    return out;
}

#define assert_text(in, out) \
    assert_string_equal(escape(TOW_ESCAPE_TEXT, in), out)
#define assert_json(in, out) \
    assert_string_equal(escape(TOW_ESCAPE_JSON, in), out)

static void plain_text_stays_as_it_is(void **state)
{
    assert_text("worker/2 [::1]:7000", "worker/2 [::1]:7000");
    assert_json("Treidelpfad für 駒 🐎", "Treidelpfad für 駒 🐎");
}

static void quotes_and_controls_are_escaped(void **state)
{
    assert_text("a\"b\\c", "a\\\"b\\\\c");
    assert_text("a\nb\rc\td\033[2J\177", "a\\nb\\rc\\td\\u001b[2J\\u007f");
    assert_json("\001", "\\u0001");
}

static void unicode_that_moves_lines_or_direction_is_escaped(void **state)
{
    assert_text("\xc2\x9b"
                "2J",
                "\\u009b2J"); /* C1: a terminal's CSI */
    assert_text("\xe2\x80\xa8", "\\u2028");
    assert_json("\xe2\x80\xae", "\\u202e");
    assert_json("\xe2\x81\xa6", "\\u2066");
}

static void bytes_that_are_not_utf8_are_escaped(void **state)
{
    assert_text("\xff", "\\xff");
    assert_json("\xff", "\\ufffd");
    assert_text("\xc0\xaf", "\\xc0\\xaf");                   /* overlong */
    assert_text("\xe0\x80\xaf", "\\xe0\\x80\\xaf");          /* overlong */
    assert_text("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* surrogate */
    assert_text("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* too large */
    assert_text("\xe2\x80", "\\xe2\\x80"); /* cut off by the end */
    assert_text("\xe2(a", "\\xe2(a");
}

TOW_TEST_MAIN(
    cmocka_unit_test(plain_text_stays_as_it_is),
    cmocka_unit_test(quotes_and_controls_are_escaped),
    cmocka_unit_test(unicode_that_moves_lines_or_direction_is_escaped),
    cmocka_unit_test(bytes_that_are_not_utf8_are_escaped))
