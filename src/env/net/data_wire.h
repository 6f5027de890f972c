/* What travels on lanes, as bytes: addresses and the headers of active
 * messages. Pure functions: no UCX, no memory, no clock.
 *
 * A lane is a stream in one direction: whoever opens it draws a random number
 * for it and says HELLO with its own lane address, so that answers find their
 * way back. Every later message carries that number. A number that nobody said
 * HELLO for, or whose lane has been closed by force, is refused: that is the
 * fence which keeps what a dead peer has left in a queue out of our memory.
 *
 * Messages of one stream arrive in order, so a write is put together by
 * counting. All numbers are little-endian. */
#ifndef TOW_ENV_NET_DATA_WIRE_H_
#define TOW_ENV_NET_DATA_WIRE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "env/env.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "headers are written as they lie in memory");

/* -- Addresses ------------------------------------------------------------ */

#define TOW_DATA_MAGIC            0x4c574f54u /* "TOWL" */
#define TOW_DATA_VERSION          2u
#define TOW_DATA_ADDRESS_SIZE_MAX 2048u

/* Before the UCX address. */
typedef struct tow_data_address_header {
    uint32_t magic;
    uint16_t version;
    uint16_t ucx_size;
    uint64_t node; /* random: this life of this data plane */
    uint64_t host; /* equal where shared memory is shared; 0: it is not used */
    uint32_t crc;  /* CRC32C of all the rest, this field as 0 */
    uint32_t zero;
} tow_data_address_header_t;

typedef struct tow_data_address {
    uint64_t node;
    uint64_t host;
    const void *ucx; /* lent: lies in the parsed bytes */
    size_t ucx_size;
} tow_data_address_t;

/* `bytes` has room for the header and address->ucx_size. Returns the size. */
size_t tow_data_address_pack(const tow_data_address_t *address, void *bytes);
/* INVALID_ARGUMENT that says what is wrong. */
tow_status_t tow_data_address_parse(const void *bytes, size_t size,
                                    tow_data_address_t *out_address)
    TOW_MUST_USE;

/* -- Messages ------------------------------------------------------------- */

/* Ids of UCX active messages. */
typedef enum tow_data_id {
    TOW_DATA_DATAGRAM,
    TOW_DATA_FRAGMENT,
    TOW_DATA_CONTROL,
    TOW_DATA_PULL,
    TOW_DATA_ID_COUNT,
} tow_data_id_t;

/* With 16 bytes, a datagram of up to 69 bytes goes UCX's shortest way. */
typedef struct tow_data_datagram {
    uint64_t stream;
    uint64_t channel;
} tow_data_datagram_t;

enum {
    TOW_DATA_CHECKED = 1, /* the target compares checksums */
    TOW_DATA_LAST = 2,    /* the write ends here; `crc` is of all of it */
    TOW_DATA_IN_RING = 4, /* the payload is a reference to the bytes */
    TOW_DATA_FRAGMENT_FLAGS =
        TOW_DATA_CHECKED | TOW_DATA_LAST | TOW_DATA_IN_RING,
};

/* Where the bytes of a fragment lie; see data_ring.h. */
typedef struct tow_data_ring_ref {
    int32_t ring;
    uint32_t index; /* counts up */
    uint32_t size;
} tow_data_ring_ref_t;

/* A piece of a write. All but `at`, `crc` and LAST is the same in each. */
typedef struct tow_data_fragment {
    uint64_t stream;
    uint64_t write; /* counts up within the stream */
    uint64_t region;
    uint64_t secret;
    uint64_t place; /* of the write in the region */
    uint64_t total; /* bytes of the write */
    uint64_t at;    /* of this piece in the write */
    uint64_t tag;
    uint32_t crc;
    uint32_t flags;
} tow_data_fragment_t;

/* A whole write that the target is to fetch from the writer's memory by itself:
 * see data_reach.h. */
typedef struct tow_data_pull {
    uint64_t stream;
    uint64_t write; /* also stands at `word` while the bytes hold; not 0 */
    uint64_t region;
    uint64_t secret;
    uint64_t place;
    uint64_t total;
    uint64_t tag;
    uint64_t bytes; /* addresses in the writer's process */
    uint64_t word;
    /* The block of memory that has all the bytes and can be mapped: see
     * base/block.h. 0: none. */
    uint64_t block;
    uint64_t block_size;
    uint64_t block_offset; /* of the bytes */
    uint32_t block_fd;     /* in the writer's process */
    uint32_t flags;
} tow_data_pull_t;

enum {
    TOW_DATA_LENDS = 1, /* the bytes may be used where they are */
    TOW_DATA_PULL_FLAGS = TOW_DATA_LENDS,
};

/* How a lane shows its target which process is at its other end: the kernel puts
 * the process id beside it. Goes through a door, not through UCX. */
#define TOW_DATA_OFFER_MAGIC 0x52574f54u /* "TOWR" */
typedef struct tow_data_offer {
    uint32_t magic;
    uint32_t zero;
    uint64_t stream;
    uint64_t word;  /* an address: there stands ... */
    uint64_t value; /* ... this, a random number */
} tow_data_offer_t;

typedef enum tow_data_control_kind {
    TOW_DATA_HELLO = 1, /* a stream begins; payload: our lane address */
    /* Answers can be sent; `write` is 1 if pulls are welcome too. */
    TOW_DATA_HELLO_BACK,
    TOW_DATA_BYE,      /* it ends; the target forgets it */
    TOW_DATA_BYE_BACK, /* all before your BYE has arrived */
    TOW_DATA_RESET,    /* your stream is not known here any more */
    TOW_DATA_ANSWER,   /* how a write ended: `write`, `code` */
    TOW_DATA_LENT,     /* it is used where it is; the ANSWER follows one day */
    TOW_DATA_KIND_END,
} tow_data_control_kind_t;

typedef struct tow_data_control {
    uint64_t stream; /* the opener's number, both ways */
    uint64_t write;
    uint16_t version;
    uint8_t kind;
    uint8_t code; /* tow_code_t */
    uint32_t zero;
} tow_data_control_t;

/* Each returns NULL and fills `out`, or says what is wrong with the message.
 * What has been parsed is consistent in itself; whether there is such a region
 * is not known here. */
const char *tow_data_parse_datagram(const void *header, size_t header_size,
                                    size_t payload_size,
                                    tow_data_datagram_t *out) TOW_MUST_USE;
/* Also fills `out_ref`: its size is that of the fragment's bytes, wherever they
 * are; the rest is 0 unless they are in a ring. */
const char *tow_data_parse_fragment(const void *header, size_t header_size,
                                    const void *payload, size_t payload_size,
                                    tow_data_fragment_t *out,
                                    tow_data_ring_ref_t *out_ref) TOW_MUST_USE;
const char *tow_data_parse_pull(const void *header, size_t header_size,
                                size_t payload_size, tow_data_pull_t *out)
    TOW_MUST_USE;
const char *tow_data_parse_offer(const void *bytes, size_t size,
                                 tow_data_offer_t *out) TOW_MUST_USE;
const char *tow_data_parse_control(const void *header, size_t header_size,
                                   size_t payload_size, tow_data_control_t *out)
    TOW_MUST_USE;

/* -- Writes being put together -------------------------------------------- */

typedef struct tow_data_partial {
    tow_data_fragment_t first;
    uint64_t received;
    uint32_t crc; /* of what was received */
} tow_data_partial_t;

/* Where a write goes. */
typedef struct tow_data_span {
    uint64_t region;
    uint64_t secret;
    uint64_t place;
    uint64_t total;
} tow_data_span_t;

static inline tow_data_span_t tow_data_span_of(
    const tow_data_fragment_t *fragment)
{
    return (tow_data_span_t){fragment->region, fragment->secret,
                             fragment->place, fragment->total};
}

/* Whether the write lies within a region of `region_size` bytes. */
static inline bool tow_data_fits(const tow_data_span_t *span,
                                 uint64_t region_size)
{
    return span->place <= region_size &&
           span->total <= region_size - span->place;
}

/* Whether `next` is the piece that comes after those that were received. */
bool tow_data_partial_continues(const tow_data_partial_t *partial,
                                const tow_data_fragment_t *next);

#endif /* TOW_ENV_NET_DATA_WIRE_H_ */
