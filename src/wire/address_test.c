#include "base/testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "wire/address.h"

static tow_address_t parsed(const char *text)
{
    tow_address_t address;
    tow_status_t status = tow_address_parse(text, &address);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return address;
}

static void addresses_of_each_kind_parse_and_print_back(void **state)
{
    static const struct {
        const char *text;
        tow_address_kind_t kind;
        const char *host;
        uint16_t port;
    } table[] = {
        {"unix:/run/tow.sock", TOW_ADDRESS_UNIX, "/run/tow.sock", 0},
        {"unix:relative path:1", TOW_ADDRESS_UNIX, "relative path:1", 0},
        {"tcp:127.0.0.1:7000", TOW_ADDRESS_TCP, "127.0.0.1", 7000},
        {"tcp:localhost:0", TOW_ADDRESS_TCP, "localhost", 0},
        {"tcp:[::1]:65535", TOW_ADDRESS_TCP, "::1", 65535},
        {"tls:host-1.example.org:7", TOW_ADDRESS_TLS, "host-1.example.org", 7},
        {"tls:[2001:db8::5]:80", TOW_ADDRESS_TLS, "2001:db8::5", 80},
        {"sim:worker/3", TOW_ADDRESS_SIM, "worker/3", 0},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        tow_address_t address = parsed(table[i].text);
        assert_int_equal(address.kind, table[i].kind);
        assert_string_equal(address.host, table[i].host);
        assert_int_equal(address.port, table[i].port);
        char text[TOW_ADDRESS_TEXT_MAX + 32];
        tow_address_format(&address, text, sizeof(text));
        assert_string_equal(text, table[i].text);
    }
}

static void wrong_addresses_say_what_is_wrong(void **state)
{
    static const struct {
        const char *text;
        const char *words;
    } table[] = {
        {"", "expected unix:PATH, tcp:HOST:PORT"},
        {"localhost:80", "expected unix:PATH"},
        {"http://host", "expected unix:PATH"},
        {"TCP:127.0.0.1:1", "expected unix:PATH"},
        {"unix:", "the path is missing"},
        {"tcp:", "the port is missing"},
        {"tcp:localhost", "the port is missing"},
        {"tcp::80", "the host is missing"},
        {"tcp:localhost:", "the port is missing"},
        {"tcp:localhost:x", "not a number"},
        {"tcp:localhost:-1", "not a number"},
        {"tcp:localhost:+1", "not a number"},
        {"tcp:localhost: 1", "not a number"},
        {"tcp:localhost:65536", "at most 65535"},
        {"tcp:localhost:99999999999999999999", "at most 65535"},
        {"tcp:::1:80", "in brackets"},
        {"tcp:[::1:80", "the ]"},
        {"tcp:[]:80", "no IPv6 address"},
        {"tcp:[127.0.0.1]:80", "no IPv6 address"},
        {"tcp:[fe80::1%eth0]:80", "no IPv6 address"},
        {"tcp:[::1]", "the port is missing"},
        {"tcp:[::1]80", "the port is missing"},
        {"tcp:127.1:80", "four numbers"},
        {"tcp:127.0.0.256:80", "four numbers"},
        {"tcp:2130706433:80", "four numbers"},
        {"tcp:a..b:80", "neither a name nor an address"},
        {"tcp:.a:80", "neither a name nor an address"},
        {"tcp:a/b:80", "a character that host names cannot have"},
        {"tls:a b:80", "a character that host names cannot have"},
        {"sim:", "a simulated name"},
        {"sim:a b", "a simulated name"},
        {"unix:/a\nb", "printable ASCII"},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        tow_address_t address;
        tow_status_t status = tow_address_parse(table[i].text, &address);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        const char *message = tow_status_message(status);
        if (strstr(message, table[i].words) == NULL)
            fail_msg("'%s' gave: %s", table[i].text, message);
        assert_null(strchr(message, '\n'));
        tow_status_release(status);
    }
}

static void host_names_are_kept_in_lower_case(void **state)
{
    assert_string_equal(parsed("tls:LocalHost:1").host, "localhost");
    assert_string_equal(parsed("tls:A-Z.Example:1").host, "a-z.example");
    assert_string_equal(parsed("unix:/Run/A").host, "/Run/A");
    /* A struct filled by hand is checked in the same way. */
    const tow_address_t by_hand = {.kind = TOW_ADDRESS_TCP,
                                   .host = "LOCALHOST"};
    assert_false(tow_address_is_local(&by_hand));
}

static void parse_long(const char *prefix, char filler, size_t count,
                       const char *suffix, bool good)
{
    char text[1024];
    size_t length = strlen(prefix);
    memcpy(text, prefix, length);
    memset(text + length, filler, count);
    memcpy(text + length + count, suffix, strlen(suffix) + 1);
    tow_address_t address;
    tow_status_t status = tow_address_parse(text, &address);
    assert_int_equal(tow_status_code(status),
                     good ? TOW_CODE_OK : TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

static void lengths_are_bounded(void **state)
{
    parse_long("unix:/", 'a', 106, "", true);
    parse_long("unix:/", 'a', 107, "", false);
    parse_long("sim:", 'a', 63, "", true);
    parse_long("sim:", 'a', 64, "", false);
    parse_long("tcp:", 'a', 63, ":1", true);
    parse_long("tcp:", 'a', 64, ":1", false);
    parse_long("tcp:", 'a', 800, ":1", false);
    parse_long("tcp:a:", '0', 240, "1", true);
    parse_long("tcp:a:", '0', 260, "1", false);
}

static void only_what_stays_on_this_host_is_local(void **state)
{
    static const char *const local[] = {
        "unix:/x",         "sim:x",           "tcp:127.0.0.1:1",
        "tcp:127.9.8.7:1", "tcp:localhost:1", "tls:LocalHost:1",
        "tcp:[::1]:1",     "tcp:[0:0::1]:1",
    };
    static const char *const beyond[] = {
        "tcp:0.0.0.0:1",   "tcp:128.0.0.1:1",
        "tcp:10.0.0.1:1",  "tcp:[::]:1",
        "tcp:[::2]:1",     "tcp:localhost.example:1",
        "tls:host:1",      "tcp:[fe80::1]:1",
        "tcp:1.0.0.127:1", "tcp:127.0.0.1.nip.io:1",
    };
    for (size_t i = 0; i < TOW_COUNT_OF(local); i++) {
        tow_address_t address = parsed(local[i]);
        if (!tow_address_is_local(&address)) fail_msg("%s", local[i]);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(beyond); i++) {
        tow_address_t address = parsed(beyond[i]);
        if (tow_address_is_local(&address)) fail_msg("%s", beyond[i]);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(addresses_of_each_kind_parse_and_print_back),
              cmocka_unit_test(wrong_addresses_say_what_is_wrong),
              cmocka_unit_test(host_names_are_kept_in_lower_case),
              cmocka_unit_test(lengths_are_bounded),
              cmocka_unit_test(only_what_stays_on_this_host_is_local))
