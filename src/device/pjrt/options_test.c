#include "base/testing.h"

#include "device/pjrt/pjrt_impl.h"

static void options_name_one_device(void **state)
{
    /* As protobuf packs executable_build_options { device_ordinal: -1,
     * num_replicas: 1, num_partitions: 1, device_assignment { replica_count: 1,
     * computation_count: 1, computation_devices { replica_device_ids: 2049 } }
     * }. */
    static const uint8_t expected[] = {
        0x1a, 0x1a, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0x01, 0x20, 0x01, 0x28, 0x01, 0x4a, 0x09, 0x08,
        0x01, 0x10, 0x01, 0x1a, 0x03, 0x08, 0x81, 0x10};
    uint8_t bytes[PJRT_OPTIONS_BYTES_MAX];
    assert_int_equal(tow_pjrt_options_pack(2049, bytes), sizeof(expected));
    assert_memory_equal(bytes, expected, sizeof(expected));
}

static void options_fit_for_any_device(void **state)
{
    uint8_t bytes[PJRT_OPTIONS_BYTES_MAX];
    assert_true(tow_pjrt_options_pack(INT64_MAX, bytes) <= sizeof(bytes));
    assert_true(tow_pjrt_options_pack(-1, bytes) <= sizeof(bytes));
}

TOW_TEST_MAIN(cmocka_unit_test(options_name_one_device),
              cmocka_unit_test(options_fit_for_any_device))
