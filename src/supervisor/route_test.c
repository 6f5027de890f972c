#include "supervisor/route.h"

#include <string.h>

#include "base/testing.h"

static void source_of_loopback_is_loopback(void **state)
{
    (void)state;
    tow_address_t address;
    char host[sizeof(address.host)];
    assert_null(tow_address_parse("tls:127.0.0.1:4000", &address));
    assert_null(tow_route_source(&address, host, sizeof(host)));
    assert_string_equal(host, "127.0.0.1");
    /* In place. */
    assert_null(tow_route_source(&address, address.host, sizeof(address.host)));
    assert_string_equal(address.host, "127.0.0.1");
}

static void interface_has_an_address(void **state)
{
    (void)state;
    char host[64];
    assert_null(tow_route_named("lo", host, sizeof(host)));
    assert_string_equal(host, "127.0.0.1");
    assert_null(tow_route_named("10.1.2.3", host, sizeof(host)));
    assert_string_equal(host, "10.1.2.3");
    assert_null(tow_route_named("2001:db8::7", host, sizeof(host)));
    assert_string_equal(host, "2001:db8::7");
}

static void unknown_interface_is_named(void **state)
{
    (void)state;
    char host[64];
    tow_status_t status = tow_route_named("no-such-if", host, sizeof(host));
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(status), "'no-such-if'"));
    tow_status_release(status);
}

TOW_TEST_MAIN(cmocka_unit_test(source_of_loopback_is_loopback),
              cmocka_unit_test(interface_has_an_address),
              cmocka_unit_test(unknown_interface_is_named))
