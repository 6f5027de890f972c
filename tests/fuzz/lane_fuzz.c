/* Input: a byte for the kind of message, the size of the header, then header
 * and payload, as UCX delivers them. Fragments are assembled like at a target,
 * into a heap block of the region's size, so that sanitizers detect
 * overruns. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "env/net/data/wire.h"
#include "env/tuning.h"
#include "fuzz.h"

#define REGION_SIZE 4096u
/* Not a UCX message, but bytes of the cross-read endpoint. */
#define OFFER TOW_DATA_ID_COUNT

typedef struct target {
    uint8_t *region;
    tow_data_partial_t partial;
    bool has_partial;
} target_t;

static void place(target_t *target, const tow_data_fragment_t *fragment,
                  const uint8_t *bytes, size_t size)
{
    const tow_data_extent_t span = tow_data_extent_of(fragment);
    if (!tow_data_fits(&span, REGION_SIZE)) return;
    if (fragment->at == 0)
        target->partial = (tow_data_partial_t){.first = *fragment};
    else if (!target->has_partial ||
             !tow_data_partial_continues(&target->partial, fragment))
        return;
    memcpy(target->region + fragment->place + fragment->at, bytes, size);
    target->partial.received += size;
    TOW_ASSERT(target->partial.received <= fragment->total);
    target->has_partial = !(fragment->flags & TOW_DATA_LAST);
    TOW_ASSERT(target->has_partial ==
               (target->partial.received < fragment->total));
}

static void take_fragment(target_t *target, const uint8_t *header,
                          size_t header_size, const uint8_t *payload,
                          size_t payload_size)
{
    static const uint8_t slot[TOW_NET_FRAGMENT_SHM_BYTES];
    tow_data_fragment_t fragment;
    tow_data_ring_ref_t ref;
    if (tow_data_parse_fragment(header, header_size, payload, payload_size,
                                &fragment, &ref) != NULL)
        return;
    TOW_ASSERT(ref.size > 0 && ref.size <= fragment.total - fragment.at);
    const bool is_in_ring = fragment.flags & TOW_DATA_IN_RING;
    TOW_ASSERT(is_in_ring ? ref.size <= sizeof(slot)
                          : ref.size == payload_size);
    place(target, &fragment, is_in_ring ? slot : payload, ref.size);
}

static void take_other(uint8_t kind, const uint8_t *header, size_t header_size,
                       const uint8_t *payload, size_t payload_size)
{
    tow_data_datagram_t datagram;
    tow_data_control_t control;
    tow_data_address_t address;
    if (kind == TOW_DATA_DATAGRAM) {
        if (tow_data_parse_datagram(header, header_size, payload_size,
                                    &datagram) == NULL)
            TOW_ASSERT(payload_size <= TOW_DATAGRAM_SIZE_MAX);
        return;
    }
    if (tow_data_parse_control(header, header_size, payload_size, &control) !=
            NULL ||
        control.kind != TOW_DATA_HELLO)
        return;
    tow_status_t status =
        tow_data_address_parse(payload, payload_size, &address);
    if (status == TOW_OK)
        TOW_ASSERT((const uint8_t *)address.ucx + address.ucx_size ==
                   payload + payload_size);
    tow_status_release(status);
}

/* The range to pull is within the address space and the region. */
static void take_pull(const uint8_t *header, size_t header_size,
                      size_t payload_size)
{
    tow_data_pull_t pull;
    if (tow_data_parse_pull(header, header_size, payload_size, &pull) != NULL)
        return;
    TOW_ASSERT(pull.total > 0 && pull.bytes + pull.total > pull.bytes);
    TOW_ASSERT(pull.bytes + pull.total <= INT64_MAX);
    TOW_ASSERT(pull.write != 0 && pull.guard_address % sizeof(uint64_t) == 0);
    const tow_data_extent_t span = {.place = pull.place, .total = pull.total};
    if (tow_data_fits(&span, REGION_SIZE))
        TOW_ASSERT(pull.place + pull.total <= REGION_SIZE);
}

static void take_offer(const uint8_t *bytes, size_t size)
{
    tow_data_offer_t offer;
    if (tow_data_parse_offer(bytes, size, &offer) != NULL) return;
    TOW_ASSERT(offer.stream != 0 &&
               offer.guard_address % sizeof(uint64_t) == 0);
}

/* Several messages: each begins with its kind and the sizes of its parts. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    target_t target = {.region = malloc(REGION_SIZE)};
    TOW_ASSERT(target.region != NULL);
    while (count >= 4) {
        const uint8_t kind = bytes[0] % (OFFER + 1);
        size_t header_size = bytes[1];
        size_t payload_size = bytes[2] | (size_t)bytes[3] << 8;
        bytes += 4;
        count -= 4;
        if (header_size > count) header_size = count;
        if (payload_size > count - header_size)
            payload_size = count - header_size;
        const uint8_t *payload = bytes + header_size;
        if (kind == TOW_DATA_FRAGMENT)
            take_fragment(&target, bytes, header_size, payload, payload_size);
        else if (kind == TOW_DATA_PULL)
            take_pull(bytes, header_size, payload_size);
        else if (kind == OFFER)
            take_offer(bytes, header_size);
        else
            take_other(kind, bytes, header_size, payload, payload_size);
        bytes += header_size + payload_size;
        count -= header_size + payload_size;
    }
    free(target.region);
    return 0;
}
