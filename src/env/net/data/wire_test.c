#include "env/net/data/wire.h"

#include "base/testing.h"
#include "env/tuning.h"

/* -- Addresses ------------------------------------------------------------ */

typedef struct packed {
    uint8_t bytes[256];
    size_t size;
} packed_t;

static packed_t pack(void)
{
    const tow_data_address_t address = {.node = 5,
                                        .proof = 6,
                                        .segment = 8,
                                        .trusts_network = true,
                                        .name = "worker-1",
                                        .listens = "tls:h:1",
                                        .listens_size = 7,
                                        .ucx = "opaque",
                                        .ucx_size = 7};
    packed_t packed = {.size = 0};
    packed.size = tow_data_address_pack(&address, packed.bytes);
    return packed;
}

static void expect_bad_address(const packed_t *packed, const char *reason)
{
    tow_data_address_t address;
    tow_status_t status =
        tow_data_address_parse(packed->bytes, packed->size, &address);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    if (strstr(tow_status_message(status), reason) == NULL)
        fail_msg("\"%s\" instead of \"%s\"", tow_status_message(status),
                 reason);
    tow_status_release(status);
}

static void address_survives_pack_and_parse(void **state)
{
    (void)state;
    const packed_t packed = pack();
    tow_data_address_t address;
    assert_null(tow_data_address_parse(packed.bytes, packed.size, &address));
    assert_int_equal(address.node, 5);
    assert_int_equal(address.proof, 6);
    assert_int_equal(address.segment, 8);
    assert_true(address.trusts_network);
    assert_string_equal(address.name, "worker-1");
    assert_int_equal(address.listens_size, 7);
    assert_memory_equal(address.listens, "tls:h:1", 7);
    assert_int_equal(address.ucx_size, 7);
    assert_string_equal(address.ucx, "opaque");
}

static void damaged_address_is_refused(void **state)
{
    (void)state;
    const packed_t good = pack();
    for (size_t bit = 0; bit < good.size * 8; bit++) {
        packed_t bad = good;
        bad.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect_bad_address(&bad, "lane address");
    }
    for (size_t size = 0; size < good.size; size++) {
        packed_t bad = good;
        bad.size = size;
        expect_bad_address(&bad, "lane address");
    }
}

static void malformed_address_is_rejected_with_the_reason(void **state)
{
    (void)state;
    packed_t bad = pack();
    bad.size++;
    expect_bad_address(&bad, "its header says");
    bad = pack();
    bad.bytes[0] = 0;
    expect_bad_address(&bad, "not a lane address");
    bad = pack();
    bad.bytes[4] = 9;
    expect_bad_address(&bad, "version 9, this release has 4");
    bad = pack();
    bad.bytes[bad.size - 1] ^= 1;
    expect_bad_address(&bad, "wrong checksum");
}

/* -- Messages ------------------------------------------------------------- */

static void frame_is_checked(void **state)
{
    (void)state;
    tow_data_frame_t frame = {.id = TOW_DATA_FRAGMENT,
                              .header_size = sizeof(tow_data_fragment_t),
                              .payload_size = TOW_NET_FRAGMENT_TRUNK_BYTES};
    assert_null(tow_data_check_frame(&frame));
    frame.payload_size++;
    assert_string_equal(tow_data_check_frame(&frame), "a message is too large");
    frame.payload_size = 1;
    frame.header_size--;
    assert_non_null(tow_data_check_frame(&frame));
    frame = (tow_data_frame_t){.id = TOW_DATA_PULL,
                               .header_size = sizeof(tow_data_pull_t)};
    assert_string_equal(tow_data_check_frame(&frame),
                        "a message of an unknown kind");
    frame.id = TOW_DATA_SUBFLOWS + 1;
    assert_non_null(tow_data_check_frame(&frame));
}

static void greeting_is_checked(void **state)
{
    (void)state;
    tow_data_greeting_t greeting = {
        .magic = TOW_DATA_MAGIC, .version = TOW_DATA_VERSION, .node = 1};
    tow_data_greeting_t out;
    assert_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
    greeting.version++;
    assert_non_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
    greeting.version--;
    greeting.node = 0;
    assert_non_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
    greeting.node = 1;
    greeting.kind = TOW_DATA_IS_REVERSE_SUBFLOW; /* Of which trunk? */
    assert_non_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
    greeting.trunk = 1;
    assert_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
    greeting.kind = TOW_DATA_CONNECTION_KIND_END;
    assert_non_null(tow_data_parse_greeting(&greeting, sizeof(greeting), &out));
}

static void request_for_subflows_is_checked(void **state)
{
    (void)state;
    tow_data_subflows_t request = {.count = 1}, out;
    assert_null(tow_data_parse_subflows(&request, sizeof(request), &out));
    assert_non_null(tow_data_parse_subflows(&request, 4, &out));
    request.zero = 1;
    assert_non_null(tow_data_parse_subflows(&request, sizeof(request), &out));
    request = (tow_data_subflows_t){0};
    assert_non_null(tow_data_parse_subflows(&request, sizeof(request), &out));
}

static void datagram_is_checked(void **state)
{
    (void)state;
    const tow_data_datagram_t header = {.stream = 1, .channel = 2};
    tow_data_datagram_t out;
    assert_null(tow_data_parse_datagram(&header, sizeof(header), 0, &out));
    assert_int_equal(out.channel, 2);
    assert_non_null(tow_data_parse_datagram(&header, 15, 0, &out));
    assert_non_null(tow_data_parse_datagram(&header, 0, 0, &out));
    assert_non_null(tow_data_parse_datagram(&header, sizeof(header),
                                            TOW_DATAGRAM_SIZE_MAX + 1, &out));
}

static const char *parse(tow_data_fragment_t header, size_t payload_size)
{
    tow_data_fragment_t out;
    tow_data_ring_ref_t ref;
    return tow_data_parse_fragment(&header, sizeof(header), NULL, payload_size,
                                   &out, &ref);
}

static void fragment_is_checked(void **state)
{
    (void)state;
    tow_data_fragment_t middle = {.total = 100, .at = 10};
    tow_data_fragment_t last = middle;
    last.flags = TOW_DATA_LAST;
    assert_null(parse(middle, 89));
    assert_null(parse(last, 90));
    assert_non_null(parse(middle, 0));
    assert_non_null(parse(middle, 90)); /* Last, without LAST. */
    assert_non_null(parse(last, 89));   /* Not the last. */
    assert_non_null(parse(last, 91));
    middle.flags = 8;
    assert_non_null(parse(middle, 1));
    tow_data_fragment_t out;
    tow_data_ring_ref_t ref;
    assert_non_null(
        tow_data_parse_fragment(&last, sizeof(last) - 1, NULL, 90, &out, &ref));
}

static const char *parse_ref(tow_data_ring_ref_t ref, size_t ref_size,
                             uint64_t total)
{
    const tow_data_fragment_t header = {
        .total = total, .flags = TOW_DATA_IN_RING | TOW_DATA_LAST};
    tow_data_fragment_t out;
    tow_data_ring_ref_t out_ref;
    return tow_data_parse_fragment(&header, sizeof(header), &ref, ref_size,
                                   &out, &out_ref);
}

static void reference_to_a_ring_is_checked(void **state)
{
    (void)state;
    const tow_data_ring_ref_t good = {.ring = 5, .index = 9, .size = 100};
    assert_null(parse_ref(good, sizeof(good), 100));
    assert_non_null(parse_ref(good, sizeof(good) - 1, 100));
    assert_non_null(parse_ref(good, sizeof(good), 99));
    assert_non_null(parse_ref((tow_data_ring_ref_t){.size = 0}, 12, 100));
    const uint32_t most = TOW_NET_FRAGMENT_SHM_BYTES;
    assert_null(parse_ref((tow_data_ring_ref_t){.size = most}, 12, most));
    assert_non_null(
        parse_ref((tow_data_ring_ref_t){.size = most + 1}, 12, most + 1));
}

static void fragment_cannot_overflow(void **state)
{
    (void)state;
    assert_non_null(parse((tow_data_fragment_t){.total = 0}, 1));
    assert_non_null(
        parse((tow_data_fragment_t){.total = 10, .at = UINT64_MAX}, 11));
    assert_non_null(
        parse((tow_data_fragment_t){.total = 10, .at = 10}, SIZE_MAX));
    assert_null(parse((tow_data_fragment_t){.total = UINT64_MAX}, 5));
}

static const char *parse_control(tow_data_control_t header, size_t payload_size)
{
    tow_data_control_t out;
    return tow_data_parse_control(&header, sizeof(header), payload_size, &out);
}

static void control_is_checked(void **state)
{
    (void)state;
    const tow_data_control_t good = {.version = TOW_DATA_VERSION,
                                     .kind = TOW_DATA_ANSWER};
    assert_null(parse_control(good, 0));
    assert_non_null(parse_control(good, 1));
    tow_data_control_t bad = good;
    bad.version = TOW_DATA_VERSION + 1;
    assert_non_null(parse_control(bad, 0));
    bad = good;
    bad.kind = 0;
    assert_non_null(parse_control(bad, 0));
    bad.kind = TOW_DATA_KIND_END;
    assert_non_null(parse_control(bad, 0));
    bad = good;
    bad.code = 17;
    assert_non_null(parse_control(bad, 0));
    bad = good;
    bad.zero = 1;
    assert_non_null(parse_control(bad, 0));
    bad = good;
    bad.kind = TOW_DATA_HELLO;
    assert_null(parse_control(bad, 100));
    assert_non_null(parse_control(bad, 0));
    assert_non_null(parse_control(bad, TOW_DATA_ADDRESS_SIZE_MAX + 1));
    tow_data_control_t out;
    assert_non_null(tow_data_parse_control(&good, 23, 0, &out));
}

static const char *parse_pull(tow_data_pull_t header)
{
    tow_data_pull_t out;
    return tow_data_parse_pull(&header, sizeof(header), 0, &out);
}

static void pull_is_checked(void **state)
{
    (void)state;
    const tow_data_pull_t good = {
        .write = 5, .total = 100, .bytes = 4096, .guard_address = 8192};
    tow_data_pull_t bad = good, out;
    assert_null(parse_pull(good));
    assert_non_null(tow_data_parse_pull(&good, sizeof(good), 1, &out));
    assert_non_null(tow_data_parse_pull(&good, sizeof(good) - 1, 0, &out));
    bad.total = 0;
    assert_non_null(parse_pull(bad));
    bad.total = INT64_MAX; /* The end is outside the address space. */
    assert_non_null(parse_pull(bad));
    bad.total = UINT64_MAX - 4000; /* Wraps around. */
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.bytes = 0;
    assert_non_null(parse_pull(bad));
    bad.bytes = UINT64_MAX - 50;
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.write = 0; /* The value of a cleared guard. */
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.guard_address = 8191;
    assert_non_null(parse_pull(bad));
    bad.guard_address = 0;
    assert_non_null(parse_pull(bad));
    bad.guard_address = UINT64_MAX - 7;
    assert_non_null(parse_pull(bad));
}

static void block_of_a_pull_is_checked(void **state)
{
    (void)state;
    const tow_data_pull_t good = {.write = 5,
                                  .total = 100,
                                  .bytes = 4096,
                                  .guard_address = 8192,
                                  .block = 1,
                                  .block_size = 4096,
                                  .block_offset = 4096 - 100,
                                  .flags = TOW_DATA_MAY_SHARE};
    tow_data_pull_t bad = good;
    assert_null(parse_pull(good));
    bad.block_offset++;
    assert_non_null(parse_pull(bad));
    bad.block_offset = UINT64_MAX; /* Wraps around. */
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.block_size = UINT64_MAX;
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.block_fd = UINT32_MAX;
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.flags |= 2;
    assert_non_null(parse_pull(bad));
    bad = good;
    bad.block = 0;
    assert_non_null(parse_pull(bad));
}

static void offer_is_checked(void **state)
{
    (void)state;
    const tow_data_offer_t good = {.magic = TOW_DATA_OFFER_MAGIC,
                                   .stream = 1,
                                   .guard_address = 8,
                                   .value = 2};
    tow_data_offer_t bad = good, out;
    assert_null(tow_data_parse_offer(&good, sizeof(good), &out));
    assert_int_equal(out.value, 2);
    assert_non_null(tow_data_parse_offer(&good, sizeof(good) + 1, &out));
    assert_non_null(tow_data_parse_offer(&good, 0, &out));
    bad.magic ^= 1;
    assert_non_null(tow_data_parse_offer(&bad, sizeof(bad), &out));
    bad = good;
    bad.zero = 1;
    assert_non_null(tow_data_parse_offer(&bad, sizeof(bad), &out));
    bad = good;
    bad.value = 0;
    assert_non_null(tow_data_parse_offer(&bad, sizeof(bad), &out));
    bad = good;
    bad.guard_address = 4;
    assert_non_null(tow_data_parse_offer(&bad, sizeof(bad), &out));
}

/* -- Writes --------------------------------------------------------------- */

static bool fits(uint64_t place, uint64_t total, uint64_t region_size)
{
    const tow_data_extent_t span = {.place = place, .total = total};
    return tow_data_fits(&span, region_size);
}

static void write_fits_only_within_its_region(void **state)
{
    (void)state;
    assert_true(fits(0, 10, 10));
    assert_true(fits(9, 1, 10));
    assert_false(fits(10, 1, 10));
    assert_false(fits(0, 11, 10));
    assert_false(fits(11, 1, 10));
    assert_false(fits(UINT64_MAX, 1, 10));
    assert_false(fits(UINT64_MAX - 4, 10, 10));
    assert_false(fits(5, UINT64_MAX, 10));
}

static void fragments_of_one_write_fit_together(void **state)
{
    (void)state;
    const tow_data_fragment_t first = {.write = 1,
                                       .region = 2,
                                       .secret = 3,
                                       .place = 4,
                                       .total = 50,
                                       .tag = 6};
    const tow_data_partial_t partial = {.first = first, .received = 20};
    tow_data_fragment_t next = first;
    next.at = 20;
    assert_true(tow_data_partial_continues(&partial, &next));
    next.flags = TOW_DATA_LAST;
    assert_true(tow_data_partial_continues(&partial, &next));
    next.flags = TOW_DATA_CHECKED;
    assert_false(tow_data_partial_continues(&partial, &next));
    uint64_t *const fields[] = {&next.write, &next.region, &next.secret,
                                &next.place, &next.total,  &next.at,
                                &next.tag};
    for (size_t i = 0; i < TOW_COUNT_OF(fields); i++) {
        next = first;
        next.at = 20;
        *fields[i] += 1;
        assert_false(tow_data_partial_continues(&partial, &next));
    }
}

TOW_TEST_MAIN(cmocka_unit_test(address_survives_pack_and_parse),
              cmocka_unit_test(damaged_address_is_refused),
              cmocka_unit_test(malformed_address_is_rejected_with_the_reason),
              cmocka_unit_test(frame_is_checked),
              cmocka_unit_test(greeting_is_checked),
              cmocka_unit_test(request_for_subflows_is_checked),
              cmocka_unit_test(datagram_is_checked),
              cmocka_unit_test(fragment_is_checked),
              cmocka_unit_test(fragment_cannot_overflow),
              cmocka_unit_test(reference_to_a_ring_is_checked),
              cmocka_unit_test(control_is_checked),
              cmocka_unit_test(pull_is_checked),
              cmocka_unit_test(block_of_a_pull_is_checked),
              cmocka_unit_test(offer_is_checked),
              cmocka_unit_test(write_fits_only_within_its_region),
              cmocka_unit_test(fragments_of_one_write_fit_together))
