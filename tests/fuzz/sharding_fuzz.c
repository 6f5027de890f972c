/* Shardings: text, or 'x', a rank, a number of devices and the bytes of an
 * xla.OpSharding. A sharding that parses survives another round trip, and puts
 * every part on a device. */
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "ir/sharding.h"

static void check_places(const tow_sharding_t *sharding, size_t device_count)
{
    uint32_t index[TOW_RANK_MAX];
    for (size_t i = 0; i < device_count; i++) {
        const uint32_t replica = tow_sharding_part_of(sharding, i, index);
        TOW_ASSERT(replica < sharding->replicas);
        for (uint32_t k = 0; k < sharding->rank; k++)
            TOW_ASSERT(index[k] < sharding->parts[k]);
        TOW_ASSERT(tow_sharding_device_of(sharding, index, replica) == i);
    }
}

static void check_text(const tow_sharding_t *sharding)
{
    char text[TOW_SHARDING_TEXT_MAX];
    tow_sharding_t again;
    tow_sharding_format(sharding, text);
    TOW_ASSERT(tow_sharding_parse(text, strlen(text), &again) == TOW_OK);
    TOW_ASSERT(memcmp(sharding, &again, sizeof(again)) == 0);
}

static void try_xla(const uint8_t *bytes, size_t count)
{
    uint8_t packed[TOW_SHARDING_XLA_MAX];
    tow_sharding_t sharding, again;
    const uint32_t rank = bytes[0] % (TOW_RANK_MAX + 1);
    const size_t devices = 1 + bytes[1] % 64;
    tow_status_t status = tow_sharding_from_xla(
        (tow_bytes_t){bytes + 2, count - 2}, rank, devices, &sharding);
    TOW_ASSERT((status == TOW_OK) == tow_sharding_is_known(&sharding));
    if (status == TOW_OK) {
        TOW_ASSERT(tow_sharding_check(&sharding, devices) == TOW_OK);
        check_places(&sharding, devices);
        check_text(&sharding);
        const size_t size = tow_sharding_to_xla(&sharding, packed);
        TOW_ASSERT(tow_sharding_from_xla((tow_bytes_t){packed, size}, rank,
                                         devices, &again) == TOW_OK);
        TOW_ASSERT(tow_sharding_equal(&sharding, &again));
    }
    tow_status_release(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_sharding_t sharding;
    if (count >= 3 && bytes[0] == 'x') {
        try_xla(bytes + 1, count - 1);
        return 0;
    }
    tow_status_t status =
        tow_sharding_parse((const char *)bytes, count, &sharding);
    if (status == TOW_OK) {
        check_text(&sharding);
        tow_status_t fits = tow_sharding_check(&sharding, 8);
        if (fits == TOW_OK) check_places(&sharding, 8);
        tow_status_release(fits);
    }
    tow_status_release(status);
    return 0;
}
