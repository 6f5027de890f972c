#include "env/net/data/wire.h"

#include "base/hash.h"
#include "env/tuning.h"

_Static_assert(sizeof(tow_data_address_header_t) == 40, "no gaps");
_Static_assert(sizeof(tow_data_frame_t) == 8, "no gaps");
_Static_assert(sizeof(tow_data_greeting_t) == 32, "no gaps");
_Static_assert(sizeof(tow_data_subflows_t) == 8, "no gaps");
_Static_assert(sizeof(tow_data_datagram_t) == 16, "no gaps");
_Static_assert(sizeof(tow_data_fragment_t) == 72, "no gaps");
_Static_assert(sizeof(tow_data_control_t) == 24, "no gaps");
_Static_assert(sizeof(tow_data_pull_t) == 104, "no gaps");
_Static_assert(sizeof(tow_data_offer_t) == 32, "no gaps");
_Static_assert(sizeof(tow_data_ring_ref_t) == 12, "no gaps");

/* -- Addresses ------------------------------------------------------------ */

/* `rest` follows the header. */
static uint32_t address_crc(tow_data_address_header_t header, const void *rest,
                            size_t rest_size)
{
    header.crc = 0;
    uint32_t crc = tow_crc32c(0, &header, sizeof(header));
    return tow_crc32c(crc, rest, rest_size);
}

size_t tow_data_address_size(const tow_data_address_t *address)
{
    return sizeof(tow_data_address_header_t) + strlen(address->name) +
           address->listens_size + address->ucx_size;
}

static uint8_t *append(uint8_t *to, const void *bytes, size_t size)
{
    if (size > 0) memcpy(to, bytes, size);
    return to + size;
}

size_t tow_data_address_pack(const tow_data_address_t *address, void *bytes)
{
    const size_t size = tow_data_address_size(address);
    TOW_ASSERT(size <= TOW_DATA_ADDRESS_SIZE_MAX);
    tow_data_address_header_t header = {
        .magic = TOW_DATA_MAGIC,
        .version = TOW_DATA_VERSION,
        .ucx_size = (uint16_t)address->ucx_size,
        .node = address->node,
        .proof = address->proof,
        .segment = address->segment,
        .listens = (uint16_t)address->listens_size,
        .name_size = (uint8_t)strlen(address->name),
        .flags = address->trusts_network ? TOW_DATA_TRUSTS_NETWORK : 0,
    };
    uint8_t *rest = (uint8_t *)bytes + sizeof(header);
    uint8_t *at = append(rest, address->name, header.name_size);
    at = append(at, address->listens, address->listens_size);
    at = append(at, address->ucx, address->ucx_size);
    header.crc = address_crc(header, rest, (size_t)(at - rest));
    memcpy(bytes, &header, sizeof(header));
    return size;
}

static void unpack_address(const tow_data_address_header_t *header,
                           const uint8_t *rest, tow_data_address_t *out_address)
{
    *out_address = (tow_data_address_t){
        .node = header->node,
        .proof = header->proof,
        .segment = header->segment,
        .trusts_network = header->flags & TOW_DATA_TRUSTS_NETWORK,
        .listens = (const char *)rest + header->name_size,
        .listens_size = header->listens,
        .ucx = rest + header->name_size + header->listens,
        .ucx_size = header->ucx_size};
    memcpy(out_address->name, rest, header->name_size);
}

/* UCX parses an address without knowing its length, so it only gets one whose
 * checksum is right. */
tow_status_t tow_data_address_parse(const void *bytes, size_t size,
                                    tow_data_address_t *out_address)
{
    tow_data_address_header_t header;
    if (size < sizeof(header) || size > TOW_DATA_ADDRESS_SIZE_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "lane address of %zu bytes: expected %zu to %u", size,
                         sizeof(header), TOW_DATA_ADDRESS_SIZE_MAX);
    memcpy(&header, bytes, sizeof(header));
    if (header.magic != TOW_DATA_MAGIC)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "not a lane address: wrong magic number");
    if (header.version != TOW_DATA_VERSION)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "lane address of version %u, this release has %u: both "
            "sides must run the same release",
            header.version, TOW_DATA_VERSION);
    const uint8_t *rest = (const uint8_t *)bytes + sizeof(header);
    const size_t rest_size =
        (size_t)header.name_size + header.listens + header.ucx_size;
    if (rest_size != size - sizeof(header))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "lane address of %zu bytes: its header says %zu", size,
                         sizeof(header) + rest_size);
    if (header.zero != 0 || (header.flags & ~TOW_DATA_ADDRESS_FLAGS) != 0 ||
        header.node == 0 || header.name_size > TOW_PEER_NAME_MAX ||
        memchr(rest, 0, (size_t)header.name_size + header.listens) != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "malformed lane address");
    if (header.crc != address_crc(header, rest, rest_size))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "lane address with a wrong checksum");
    unpack_address(&header, rest, out_address);
    return TOW_OK;
}

/* -- Messages ------------------------------------------------------------- */

const char *tow_data_check_frame(const tow_data_frame_t *frame)
{
    /* Fragments cannot be empty, the other payloads can. */
    static const struct {
        uint32_t header_size;
        uint32_t payload_size_max;
    } kinds[] = {
        [TOW_DATA_DATAGRAM] = {sizeof(tow_data_datagram_t),
                               TOW_DATAGRAM_SIZE_MAX},
        [TOW_DATA_FRAGMENT] = {sizeof(tow_data_fragment_t),
                               TOW_NET_FRAGMENT_TRUNK_BYTES},
        [TOW_DATA_CONTROL] = {sizeof(tow_data_control_t),
                              TOW_DATA_ADDRESS_SIZE_MAX},
        [TOW_DATA_GREETING] = {sizeof(tow_data_greeting_t), 0},
        [TOW_DATA_SUBFLOWS] = {sizeof(tow_data_subflows_t), 0},
    };
    if (frame->id >= TOW_COUNT_OF(kinds) || kinds[frame->id].header_size == 0)
        return "a message of an unknown kind";
    if (frame->zero != 0) return "a message has unknown fields";
    if (frame->header_size != kinds[frame->id].header_size)
        return "a message's header has a wrong size";
    if (frame->payload_size > kinds[frame->id].payload_size_max)
        return "a message is too large";
    return NULL;
}

const char *tow_data_parse_greeting(const void *header, size_t header_size,
                                    tow_data_greeting_t *out)
{
    if (header_size != sizeof(*out)) return "a greeting has a wrong size";
    memcpy(out, header, sizeof(*out));
    if (out->magic != TOW_DATA_MAGIC || out->node == 0)
        return "this is not a greeting";
    if (out->version != TOW_DATA_VERSION)
        return "a greeting of another version: both sides must run the same "
               "release";
    if (out->kind >= TOW_DATA_CONNECTION_KIND_END ||
        (out->kind != TOW_DATA_IS_TRUNK && out->trunk == 0))
        return "a greeting has unknown fields";
    return NULL;
}

const char *tow_data_parse_subflows(const void *header, size_t header_size,
                                    tow_data_subflows_t *out)
{
    if (header_size != sizeof(*out))
        return "a request for subflows has a wrong size";
    memcpy(out, header, sizeof(*out));
    if (out->zero != 0 || out->count == 0)
        return "a request for subflows is malformed";
    return NULL;
}

const char *tow_data_parse_datagram(const void *header, size_t header_size,
                                    size_t payload_size,
                                    tow_data_datagram_t *out)
{
    if (header_size != sizeof(*out))
        return "a datagram's header has a wrong size";
    if (payload_size > TOW_DATAGRAM_SIZE_MAX) return "a datagram is too large";
    memcpy(out, header, sizeof(*out));
    return NULL;
}

static const char *find_bytes(const tow_data_fragment_t *fragment,
                              const void *payload, size_t payload_size,
                              tow_data_ring_ref_t *out_ref)
{
    *out_ref = (tow_data_ring_ref_t){.size = (uint32_t)payload_size};
    if (payload_size > UINT32_MAX) return "a fragment is too large";
    if (!(fragment->flags & TOW_DATA_IN_RING)) return NULL;
    if (payload_size != sizeof(*out_ref))
        return "a reference to a ring has a wrong size";
    memcpy(out_ref, payload, sizeof(*out_ref));
    if (out_ref->size > TOW_NET_FRAGMENT_SHM_BYTES)
        return "a fragment goes beyond its slot";
    return NULL;
}

const char *tow_data_parse_fragment(const void *header, size_t header_size,
                                    const void *payload, size_t payload_size,
                                    tow_data_fragment_t *out,
                                    tow_data_ring_ref_t *out_ref)
{
    if (header_size != sizeof(*out))
        return "a fragment's header has a wrong size";
    memcpy(out, header, sizeof(*out));
    if (out->flags & ~(uint32_t)TOW_DATA_FRAGMENT_FLAGS)
        return "a fragment has unknown flags";
    const char *problem = find_bytes(out, payload, payload_size, out_ref);
    if (problem != NULL) return problem;
    if (out_ref->size == 0) return "a fragment is empty";
    if (out->at >= out->total || out_ref->size > out->total - out->at)
        return "a fragment goes beyond its write";
    const bool is_last = out_ref->size == out->total - out->at;
    if (is_last != ((out->flags & TOW_DATA_LAST) != 0))
        return "a fragment has a wrong LAST flag";
    return NULL;
}

/* An unaligned guard could be read half-changed. */
static bool is_word(uint64_t address)
{
    return address != 0 && address % sizeof(uint64_t) == 0 &&
           address <= INT64_MAX - sizeof(uint64_t);
}

static const char *check_block(const tow_data_pull_t *pull)
{
    if (pull->flags & ~(uint32_t)TOW_DATA_PULL_FLAGS)
        return "a pull has unknown flags";
    if (pull->block == 0)
        return pull->block_size == 0 && pull->block_offset == 0 &&
                       pull->block_fd == 0 && pull->flags == 0
                   ? NULL
                   : "a pull has block fields without a block";
    if (pull->block_fd > INT32_MAX || pull->block_size > INT64_MAX ||
        pull->block_offset > pull->block_size ||
        pull->total > pull->block_size - pull->block_offset)
        return "a pull goes beyond its block";
    return NULL;
}

const char *tow_data_parse_pull(const void *header, size_t header_size,
                                size_t payload_size, tow_data_pull_t *out)
{
    if (header_size != sizeof(*out) || payload_size != 0)
        return "a pull has a wrong size";
    memcpy(out, header, sizeof(*out));
    if (out->total == 0) return "a pull of 0 bytes";
    if (out->write == 0 || !is_word(out->guard_address))
        return "a pull without a guard";
    if (out->bytes == 0 || out->total > INT64_MAX ||
        out->bytes > INT64_MAX - out->total)
        return "a pull from outside the address space";
    return check_block(out);
}

const char *tow_data_parse_offer(const void *bytes, size_t size,
                                 tow_data_offer_t *out)
{
    if (size != sizeof(*out)) return "an offer has a wrong size";
    memcpy(out, bytes, sizeof(*out));
    if (out->magic != TOW_DATA_OFFER_MAGIC || out->zero != 0)
        return "this is not an offer";
    if (out->stream == 0 || out->value == 0 || !is_word(out->guard_address))
        return "an offer without a proof";
    return NULL;
}

const char *tow_data_parse_control(const void *header, size_t header_size,
                                   size_t payload_size, tow_data_control_t *out)
{
    if (header_size != sizeof(*out))
        return "a control message's header has a wrong size";
    memcpy(out, header, sizeof(*out));
    if (out->version != TOW_DATA_VERSION)
        return "a control message of another version";
    if (out->kind == 0 || out->kind >= TOW_DATA_KIND_END)
        return "a control message of an unknown kind";
    if (out->zero != 0) return "a control message has unknown fields";
    if (out->code > TOW_UNAUTHENTICATED)
        return "a control message with an unknown code";
    if (payload_size > TOW_DATA_ADDRESS_SIZE_MAX ||
        (payload_size > 0) != (out->kind == TOW_DATA_HELLO))
        return "a control message has a payload of a wrong size";
    return NULL;
}

/* -- Reassembly of writes ------------------------------------------------- */

bool tow_data_fragment_is_of(const tow_data_fragment_t *first,
                             const tow_data_fragment_t *next)
{
    return next->stream == first->stream && next->write == first->write &&
           next->region == first->region && next->secret == first->secret &&
           next->place == first->place && next->total == first->total &&
           next->tag == first->tag &&
           (next->flags & TOW_DATA_CHECKED) ==
               (first->flags & TOW_DATA_CHECKED);
}

bool tow_data_partial_continues(const tow_data_partial_t *partial,
                                const tow_data_fragment_t *next)
{
    return tow_data_fragment_is_of(&partial->first, next) &&
           next->at == partial->received;
}
